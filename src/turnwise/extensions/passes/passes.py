"""Update turn by turn, the last turn first: SeeUPO's passes over a step."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace
from turnwise.extensions.passes.settings import PassesConfig
from turnwise.objective.gradient import Diverged
from turnwise.objective.losses import Aggregate
from turnwise.objective.scorer import Scorer
from turnwise.objective.terms import StepView
from turnwise.objective.tokens import Sequences
from turnwise.train.update import Learner, Measured

LEAST_STD = 1e-6
"""Advantages that spread less over the step's trajectories are not divided by their deviation."""
MAX_LOG_RATIO = 10.0
"""Bound of a turn's mean log-ratio, before it becomes a ratio (nats)."""
REACHED, PRESENT = "reached", "present"
"""Columns with the number of trajectories that the turn's rows are of: those of which any response is kept, and all."""


class TurnView(StepView):
    """Inputs of loss terms for one turn of a step: in means over responses, a trajectory without the turn counts 0."""

    def weights(self, aggregate: Aggregate, kept_T: Bool[np.ndarray, " T"] | None = None) -> Float[np.ndarray, " T"]:
        """Compute each token's weight.

        "token-mean" runs over the turn's tokens, "constant" counts all trajectories of the step, the other means those
        of which the method leaves a response in.
        """
        rows = self.batch.num_responses
        counted = self.batch.columns[PRESENT if aggregate == "constant" else REACHED][0]
        share = 1.0 if aggregate == "token-mean" else float(rows / counted)
        return super().weights(aggregate, kept_T) * share


class TurnPasses(Learner):
    """Update a policy with one pass per turn index, last turn first, each with the present weights as the old ones.

        A_i     = clip(A_i / std_N(A), -max_advantage, max_advantage)      A: the method's; std over trajectories
        m_i     = 1
        for t = T-1, ..., 0:
            old  = log pi under the present weights, on the tokens of turn t
            update on turn t alone, with advantages m_i A_i
            s_i  = exp(mean over the turn's tokens of log pi - old)
            m_i <- clip(m_i clip(s_i, 1 - clip, 1 + clip), 1 - clip, 1 + clip)

    Each turn index is an agent of a sequence of agents with shared weights, updated against the later ones as they are
    now. Theory multiplies the ratios of all later turns; this is one clipped number per trajectory, as in the authors'
    code. A trajectory without the turn counts in the mean over trajectories with a loss of 0. It keeps its m_i; in the
    authors' code its padding has a ratio too. The deviation is the sample's (n - 1).

    Reference: SeeUPO, arXiv 2602.06554; modelscope/AgentEvolver, branch seeupo, ba_ray_trainer.py.
    """

    view: ClassVar[type[StepView]] = TurnView

    def update(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        measured: Measured,
        credit: Trace,
        step: int,
        *,
        before_change: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Take the passes of a training step and return their mean metrics; see `Learner.update`.

        Raises:
            ConfigError: The method gives tokens of a response different credit.
        """
        settings, batch = self.settings.section(PassesConfig), measured.batch
        assert settings is not None
        if credit.within_T(batch.tokens) is not None:
            raise ConfigError(
                "update.passes learns one advantage per response, and the method gives each token its own; remove "
                "update.passes, or choose another method"
            )
        advantage_R = normalised(credit.advantage_R, batch, most=settings.max_advantage)
        ratio_N, changed = np.ones(batch.num_trajectories), False
        totals: dict[str, float] = {}
        num_turns = int(batch.turn_R.max()) + 1
        kept_R = np.ones(batch.num_responses, dtype=bool) if credit.kept_R is None else credit.kept_R
        num_kept = int(batch.trajectories.max(kept_R.astype(np.float64)).sum())

        def first_change() -> None:
            nonlocal changed
            if not changed:
                before_change()
            changed = True

        for turn in reversed(range(num_turns)):
            rows = np.flatnonzero((batch.turn_R == turn) & kept_R)
            if not len(rows):
                continue
            owner = batch.trajectories.ids[rows]
            part = part_of(measured, rows)
            score = Scorer(part.sequences, self.precision, self.temperature, self.budget)
            old_T, entropy_T = score(model)
            counts = {REACHED: num_kept, PRESENT: batch.num_trajectories}
            counted = {name: np.full(len(rows), count) for name, count in counts.items()}
            part = _with_columns(part, logprob_T=old_T, entropy_T=entropy_T, **counted)
            try:
                told = super().update(
                    model,
                    optimizer,
                    part,
                    Trace(advantage_R[rows] * ratio_N[owner]),
                    step,
                    before_change=first_change,
                )
            except Diverged as error:
                raise Diverged(owner[error.trajectories].tolist(), error.finite) from None
            for name, value in told.items():
                totals[name] = totals.get(name, 0.0) + value / num_turns
            if turn:
                assert part.batch.tokens is not None
                log_ratio = part.batch.tokens.mean(score(model)[0] - old_T)
                ratio_N[owner] = next_ratio(ratio_N[owner], log_ratio, clip=settings.clip)
        return totals | {"turn_ratio_mean": float(ratio_N.mean()), "turn_ratio_min": float(ratio_N.min())}


def normalised(advantage_R: Float[np.ndarray, " R"], batch: Batch, *, most: float) -> Float[np.ndarray, " R"]:
    """Divide advantages by their deviation over the step's trajectories, and clip them to `[-most, most]`."""
    mean_N = batch.trajectories.mean(advantage_R)
    std = float(mean_N.std(ddof=1)) if len(mean_N) > 1 else 0.0
    return np.clip(advantage_R / std if std > LEAST_STD else advantage_R, -most, most)


def next_ratio(ratio: np.ndarray, log_ratio: np.ndarray, *, clip: float) -> np.ndarray:
    """Multiply the correction of each trajectory by a turn's clipped probability ratio, and clip the product.

    Args:
        ratio: `[trajectories]` correction by the later turns.
        log_ratio: `[trajectories]` mean log-ratio of the turn's tokens, after against before its update (nats).
        clip: Distance of both bounds from 1.
    """
    own = np.exp(np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    return np.clip(ratio * np.clip(own, 1 - clip, 1 + clip), 1 - clip, 1 + clip)


def part_of(measured: Measured, rows: Int[np.ndarray, " r"]) -> Measured:
    """Select one response of each of some trajectories, with the tokens that it was generated from.

    Args:
        measured: The whole step.
        rows: Responses in order, at most one per trajectory.
    """
    batch, sequences = measured.batch, measured.sequences
    assert batch.tokens is not None
    chosen_T = np.isin(batch.tokens.ids, rows)
    group = batch.groups.ids[batch.trajectories.ids[rows]]
    columns = {name: column[chosen_T if name.endswith("_T") else rows] for name, column in batch.columns.items()}
    part = Batch(
        Segments.from_sorted_ids(group),
        Segments.from_lengths(np.ones(len(rows), dtype=np.int64)),
        batch.reward_R[rows],
        columns,
        Segments.from_lengths(batch.tokens.lengths[rows]),
    )
    first, size = batch.tokens.offsets[rows], batch.tokens.lengths[rows]
    sequence = sequences.tokens.ids[first]
    start = first - sequences.tokens.offsets[sequence]
    generated = [sequences.generated[s][a : a + n] for s, a, n in zip(sequence, start, size, strict=True)]
    token_ids = [sequences.token_ids[s][: places[-1] + 1] for s, places in zip(sequence, generated, strict=True)]
    cut = Sequences(token_ids, generated, Segments.from_lengths(size), np.arange(len(rows)))
    return Measured(part, cut)


def _with_columns(measured: Measured, **columns: np.ndarray) -> Measured:
    batch = measured.batch
    kept = {**batch.columns, **columns}
    return dataclasses.replace(
        measured, batch=Batch(batch.groups, batch.trajectories, batch.reward_R, kept, batch.tokens)
    )
