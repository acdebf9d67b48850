"""Let loss terms learn from a part of a step, as if its responses were all."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from turnwise.base.shapes import Bool, Float, Int
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace, Traced
from turnwise.objective.losses import Aggregate
from turnwise.objective.terms import Loss, Pass, StepView, Term, TermLoss
from turnwise.objective.token_rules.base import TokenCredit

Rows = Int[np.ndarray, " rows"]


@dataclasses.dataclass(frozen=True)
class PartView(StepView):
    """Inputs of loss terms for a part of a step."""

    present: int | None = None  # trajectories that `aggregate = "constant"` counts; None: those of the part
    reached: int | None = None  # trajectories that the other means over trajectories count, likewise
    whole: StepView | None = None  # view of the whole step, which rules for tokens look at; None: they look at the part
    chosen_T: Bool[np.ndarray, " W"] | None = None  # `[tokens of the whole step]` bool, those that this part has
    factor_T: Float[np.ndarray, " T"] | None = None  # factor on advantages that a rule for tokens gives

    def weights(self, aggregate: Aggregate, kept_T: Bool[np.ndarray, " T"] | None = None) -> Float[np.ndarray, " T"]:
        """Compute each token's weight; a trajectory that is counted and not in the part has a loss of 0."""
        counted = self.present if aggregate == "constant" else self.reached
        share = 1.0 if aggregate == "token-mean" or counted is None else self.batch.num_trajectories / counted
        return super().weights(aggregate, kept_T) * share


def whole_of(step: StepView) -> tuple[StepView, np.ndarray | None]:
    """Return what rules for tokens look at, and which of its tokens a view has; None: all."""
    return (step.whole, step.chosen_T) if isinstance(step, PartView) and step.whole else (step, None)


def own_part(credit: TokenCredit, step: StepView) -> TokenCredit:
    """Return what a rule for tokens says about those that a view has."""
    if not isinstance(step, PartView) or step.whole is None:
        return credit
    credit = credit.part(step.chosen_T)
    if credit.advantage_T is None or step.factor_T is None:
        return credit
    return dataclasses.replace(credit, advantage_T=credit.advantage_T * step.factor_T)


def part_of(step: StepView, rows: Rows, **columns: np.ndarray) -> StepView:
    """Return the view of some responses of a step; trajectories and groups without any are not in it."""
    batch, credit = step.batch, step.credit
    assert batch.tokens is not None
    chosen_T = np.isin(batch.tokens.ids, rows)
    owner = batch.trajectories.ids[rows]
    kept = {name: column[chosen_T if name.endswith("_T") else rows] for name, column in batch.columns.items()}
    part = Batch(
        Segments.from_sorted_ids(batch.groups.ids[np.unique(owner)]),
        Segments.from_sorted_ids(owner),
        batch.reward_R[rows],
        {**kept, **columns},
        Segments.from_lengths(batch.tokens.lengths[rows]),
    )
    within_T, kept_R, advantage_R = credit.within_T(batch.tokens), credit.kept_R, credit.advantage_R[rows]
    if within_T is None and kept_R is None:
        return dataclasses.replace(step, batch=part, credit=Trace(advantage_R))
    traced = Traced(
        "part",
        advantage_R,
        np.ones(len(rows)),
        advantage_R,
        within_T=None if within_T is None else within_T[chosen_T],
        kept_R=None if kept_R is None else kept_R[rows],
    )
    return dataclasses.replace(step, batch=part, credit=Trace(advantage_R, (traced,)))


def prepare_part(prepare: Callable[[StepView], TermLoss], step: StepView, rows: Rows) -> TermLoss:
    """Prepare a loss term for some responses of a step, and return its loss on any tokens of the step."""
    batch = step.batch
    assert batch.tokens is not None
    owner = np.unique(batch.trajectories.ids[rows])
    matters_N, pair_N = np.zeros(batch.num_trajectories, dtype=bool), None
    if not len(rows):
        return TermLoss(lambda given: (given.logprob.sum() * 0.0, {}), matters_N)
    part = prepare(part_of(step, rows))
    chosen_T = np.isin(batch.tokens.ids, rows)
    place_T = torch.from_numpy(np.where(chosen_T, np.cumsum(chosen_T) - 1, -1))
    matters_N[owner] = part.matters_N
    if part.pair_N is not None:
        pair_N = int(part.pair_N.max()) + 1 + np.arange(batch.num_trajectories)
        pair_N[owner] = part.pair_N

    def placed(loss: Loss) -> Loss:
        def of_part(given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
            place = place_T[given.where.clamp(max=len(place_T) - 1)]
            here = (place >= 0) & (given.where < len(place_T))  # demonstrations come after the step's tokens
            if not here.any():
                return given.logprob.sum() * 0.0, {}
            at = here.to(given.logprob.device)
            return loss(Pass(given.logprob[at], given.entropy[at], place[here]))

        return of_part

    missing = placed(part.missing) if part.missing else None
    return TermLoss(placed(part.loss), matters_N, part.metrics, pair_N, missing)


def prepare_kept(term: Term, step: StepView) -> TermLoss:
    """Prepare a loss term that compares tokens for the responses that the method keeps in the loss."""
    assert step.credit.kept_R is not None
    rows, whole = np.flatnonzero(step.credit.kept_R), PartView(**{"present": step.batch.num_trajectories, **vars(step)})

    return prepare_part(lambda part: term.prepare(all_kept(part)), whole, rows)


def all_kept(part: StepView) -> StepView:
    """Return the view of a part without its choice of responses: the loss has all of them."""
    blocks = tuple(dataclasses.replace(each, kept_R=None) for each in part.credit.blocks)
    return dataclasses.replace(part, credit=Trace(part.credit.advantage_R, blocks))
