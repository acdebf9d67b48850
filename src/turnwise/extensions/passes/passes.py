"""Update turn by turn, the last turn first: SeeUPO's passes over a step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Bool, Float, Int
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace
from turnwise.extensions.passes.settings import PassesConfig
from turnwise.objective.gradient import Diverged
from turnwise.objective.objective import Objective, StepLoss
from turnwise.objective.part import PartView, part_of
from turnwise.objective.policy import OLD
from turnwise.objective.scorer import Scorer
from turnwise.objective.terms import StepView
from turnwise.objective.tokens import Sequences
from turnwise.train.extension import Extension
from turnwise.train.update import METRICS, Learner, Measured

LEAST_STD = 1e-6
"""Advantages that spread less over the step's trajectories are not divided by their deviation."""
MAX_LOG_RATIO = 10.0
"""Bound of a turn's mean log-ratio, before it becomes a ratio (nats)."""


class TurnPasses(Learner):
    """Update a policy with one pass per turn index, last turn first, each with the current weights as the old ones.

        A_i     = clip(A_i / std_N(A), -max_advantage, max_advantage)      A: the method's; std over trajectories
        m_i     = 1
        for t = T-1, ..., 0:
            old  = log pi under the current weights, on the tokens of turn t
            update on turn t alone, with advantages m_i A_i
            s_i  = exp(mean over the turn's tokens of log pi - old)
            m_i <- clip(m_i clip(s_i, 1 - clip, 1 + clip), 1 - clip, 1 + clip)

    Each turn index is an agent of a sequence of agents with shared weights, updated against the current later ones.
    Theory multiplies the ratios of all later turns; this is one clipped number per trajectory, as in the authors' code.
    A trajectory without the turn counts in the mean over trajectories with a loss of 0. It keeps its m_i; in the
    authors' code its padding has a ratio too. The deviation is the sample's (n - 1).

    With `update.old_policy = "behavior"`, `old` is the log-probability under the weights that sampled. Then both later
    turns and the time since are corrected for. Token rules and mismatch weights look at the whole step before the first
    pass. Terms that compare whole trajectories, such as a preference or the critic's, learn in a last pass over the
    whole step. These three are ours.

    Reference: SeeUPO, arXiv 2602.06554; modelscope/AgentEvolver, branch seeupo, ba_ray_trainer.py.
    """

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
        if credit.within_T(measured.batch.tokens) is not None:
            raise ConfigError(
                "update.passes learns one advantage per response, and the method gives each token its own; remove "
                "update.passes, or choose another method"
            )
        changed = False

        def first_change() -> None:
            nonlocal changed
            if not changed:
                before_change()
            changed = True

        given = model, optimizer, measured, credit, step
        of_whole, of_turns = self.objective.split(lambda term: getattr(term, "whole", False))
        warms_up = self.value is not None and step <= self.value.critic.settings.warmup_steps
        metrics: dict[str, float] = dict.fromkeys(METRICS, 0.0)
        if of_turns.terms and not warms_up:
            metrics |= self._turn_by_turn(of_turns, *given, before_change=first_change)
        if not of_whole.terms:
            return metrics
        about: dict[str, Any] = {**vars(self), "objective": of_whole}
        whole = Learner(**about).update(*given, before_change=first_change)
        return metrics | {name: value for name, value in whole.items() if name not in METRICS}

    def _turn_by_turn(
        self,
        objective: Objective,
        model: Any,
        optimizer: torch.optim.Optimizer,
        measured: Measured,
        credit: Trace,
        step: int,
        *,
        before_change: Callable[[], None],
    ) -> dict[str, float]:
        """Take one pass per turn index with the terms that do not compare whole trajectories."""
        settings, batch = self.settings.section(PassesConfig), measured.batch
        assert settings is not None
        assert batch.tokens is not None
        ratio_N = np.ones(batch.num_trajectories)
        totals: dict[str, float] = {}
        num_turns = int(batch.turn_R.max()) + 1
        kept_R = credit.in_loss_R
        if self.lessons:
            kept_R = kept_R & ~batch.trajectories.broadcast(self.lessons.left_N)
        advantage_R = normalised(credit.advantage_R, batch, kept_R, most=settings.max_advantage)
        whole, kept_T = None, batch.tokens.broadcast(kept_R)
        slowed = self.settings.model_copy(update={"learning_rate": self.settings.learning_rate * credit.rate})
        own = {"settings": slowed, "objective": objective, "value": None, "lessons": None}
        about: dict[str, Any] = vars(self) | own
        about_run = step, self.steps, self.seed, self.settings.mini_batches, self.max_new_tokens
        plain = PartView(batch, Trace(advantage_R), *about_run)
        for turn in reversed(range(num_turns)):
            rows = np.flatnonzero((batch.turn_R == turn) & kept_R)
            if not len(rows):
                continue
            whole = whole or part_of(plain, np.flatnonzero(kept_R))
            owner = batch.trajectories.ids[rows]
            sequences = cut(measured.sequences, batch.tokens, rows)
            score = Scorer(sequences, self.precision, self.temperature, self.budget)
            start_T, entropy_T = score(model)
            credit_R = advantage_R.copy()
            credit_R[rows] *= ratio_N[owner]
            seen = dataclasses.replace(
                plain,
                credit=Trace(credit_R),
                reached=whole.batch.num_trajectories,
                present=batch.num_trajectories,
                whole=whole,
                chosen_T=np.isin(batch.tokens.ids, rows)[kept_T],
                factor_T=np.repeat(ratio_N[owner], batch.tokens.lengths[rows]),
            )
            view = part_of(seen, rows, logprob_T=start_T, entropy_T=entropy_T)
            part = Measured(view.batch, sequences)
            try:
                metrics = _OfTurn(**about, view=view).update(
                    model, optimizer, part, view.credit, step, before_change=before_change
                )
            except Diverged as error:
                raise Diverged(owner[error.trajectories].tolist(), error.finite) from None
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value / num_turns
            if turn:
                old_T = view.batch.columns[OLD[self.settings.old_policy]]
                assert view.batch.tokens is not None
                log_ratio = view.batch.tokens.mean(score(model)[0] - old_T)
                ratio_N[owner] = next_ratio(ratio_N[owner], log_ratio, clip=settings.clip)
        return totals | {"turn_ratio_mean": float(ratio_N.mean()), "turn_ratio_min": float(ratio_N.min())}


@dataclasses.dataclass
class _OfTurn(Learner):
    """Update a policy on a turn."""

    view: StepView | None = None

    def prepare(self, measured: Measured, credit: Trace, step: int) -> tuple[StepLoss, Sequences]:
        """Prepare the loss of the turn."""
        assert self.view is not None
        return self.objective.prepare(self.view), measured.sequences


def normalised(
    advantage_R: Float[np.ndarray, " R"], batch: Batch, kept_R: Bool[np.ndarray, " R"] | bool = True, *, most: float
) -> Float[np.ndarray, " R"]:
    """Divide advantages by their deviation over the trajectories learned from, and clip them to `[-most, most]`."""
    num_N = batch.trajectories.sum(np.ones(batch.num_responses) * kept_R)
    mean_N = batch.trajectories.sum(advantage_R * kept_R)[num_N > 0] / num_N[num_N > 0]
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


def cut(sequences: Sequences, tokens: Segments, rows: Int[np.ndarray, " r"]) -> Sequences:
    """Return a sequence per response, with the tokens that it was generated from.

    Args:
        sequences: Those of the whole step.
        tokens: Segments of its generated tokens, one per response.
        rows: Responses in order, at most one per trajectory.
    """
    first, size = tokens.offsets[rows], tokens.lengths[rows]
    sequence = sequences.tokens.ids[first]
    start = first - sequences.tokens.offsets[sequence]
    generated = [sequences.generated[s][a : a + n] for s, a, n in zip(sequence, start, size, strict=True)]
    token_ids = [sequences.token_ids[s][: places[-1] + 1] for s, places in zip(sequence, generated, strict=True)]
    return Sequences(token_ids, generated, Segments.from_lengths(size), np.arange(len(rows)))


class ByTurns(Extension):
    """Update as `update.passes` says."""

    def learner(self) -> type[TurnPasses]:
        """Return what makes the learner."""
        return TurnPasses
