"""Correct for an engine whose probabilities differ from the trainer's."""

import dataclasses
from typing import Any

import numpy as np

from turnwise.base.shapes import Bool, Float
from turnwise.credit.segments import Segments
from turnwise.objective.part import whole_of
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import StepView
from turnwise.objective.token_rules.base import Mismatch, Spread


@dataclasses.dataclass(frozen=True)
class Correction:
    """Correction of tokens for the engine's probabilities."""

    factor_T: Float[np.ndarray, " T"]  # `[tokens]` weight in the loss
    above_T: Bool[np.ndarray, " T"]  # `[tokens]` whether the ratio is above the upper bound
    below_T: Bool[np.ndarray, " T"]  # `[tokens]` whether the ratio is below the lower bound
    # `[tokens]` whether the loss and its denominators have the token; None: all
    kept_T: Bool[np.ndarray, " T"] | None = None

    def part(self, chosen_T: Bool[np.ndarray, " T"] | None) -> "Correction":
        """Return the correction of some of the tokens; None: all."""
        columns = {name: value for name, value in vars(self).items() if value is not None}
        return self if chosen_T is None else Correction(**{name: value[chosen_T] for name, value in columns.items()})


def correct_mismatch(
    old_logprob: Float[np.ndarray, " T"],
    behavior_logprob: Float[np.ndarray, " T"],
    *,
    cap: float,
    floor: float = 0.0,
    form: Mismatch = "truncate",
    spans: Segments | None = None,
    of_span: Spread = "product",
) -> Correction:
    """Weigh tokens by the trainer's probabilities over the engine's, within bounds.

        rho      = exp(old_logprob - behavior_logprob) of a token; of a span the product, or the geometric mean
        truncate   weight min(max(rho, floor), cap)                       TIS
        mask       weight rho where floor <= rho <= cap, else 0           IcePop by token, MIS by trajectory
        reject     weight 1 where floor <= rho <= cap; other tokens leave the loss and its denominators

    Without bounds, the weighted gradient equals in expectation that of tokens (or spans) sampled by the trainer. The
    bounds limit its variance, at the cost of bias. The geometric mean does not shrink with the length of a span, and
    is no importance weight.

    Args:
        old_logprob: `[tokens]` log-probability under the trainer's weights at the start of the step (nats).
        behavior_logprob: `[tokens]` log-probability reported by the engine (nats).
        cap: Upper bound of rho; above 0.
        floor: Lower bound of rho; 0 is none.
        form: What happens to tokens beyond the bounds, see above.
        spans: Segments of tokens that share one rho, such as trajectories. Default: one span per token.
        of_span: "product" of the ratios of a span, or "geometric": their geometric mean.

    Reference: TIS: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025). IcePop
    (floor 0.5, cap 5): Ring-1T, arXiv 2510.18855. MIS and geometric rejection: Liu et al., "When Speed Kills Stability"
    (2025); all as in verl's `rollout_corr_helper`, whose rejection bounds 1 / rho.
    """
    log_ratio = np.asarray(old_logprob, dtype=np.float64) - behavior_logprob
    if spans is not None:
        log_ratio = spans.broadcast(spans.sum(log_ratio) if of_span == "product" else spans.mean(log_ratio))
    low, high = np.log(floor) if floor else -np.inf, np.log(cap)
    above, below = log_ratio > high, log_ratio < low
    inside, factor = ~(above | below), np.exp(np.clip(log_ratio, low, high))
    match form:
        case "truncate":
            return Correction(factor, above, below)
        case "mask":
            return Correction(np.where(inside, factor, 0.0), above, below)
        case "reject":
            return Correction(inside.astype(np.float64), above, below, inside)


def step_mismatch(step: StepView, settings: UpdateConfig) -> tuple[Correction, dict[str, float]]:
    """Return the correction of a step's tokens as the recipe says, from the start of the whole step, and metrics."""
    whole, chosen_T = whole_of(step)
    assert whole.batch.tokens is not None
    assert settings.mismatch_cap is not None
    tokens, trajectories = whole.batch.tokens, whole.batch.trajectories.of(whole.batch.tokens)
    how: dict[str, Any] = {"floor": settings.mismatch_floor, "form": settings.mismatch, "of_span": settings.mismatch_of}
    spans = {"token": None, "response": tokens, "trajectory": trajectories}[settings.mismatch_level]
    start_T, behavior_T = (whole.column(name, "policy") for name in ("logprob_T", "behavior_logprob_T"))
    found = correct_mismatch(start_T, behavior_T, cap=settings.mismatch_cap, spans=spans, **how)
    beyond_N = trajectories.max((found.above_T | found.below_T).astype(np.float64))
    metrics = {"mismatch_trajectories_frac": float(beyond_N.mean())}
    found = found.part(chosen_T)
    metrics |= {
        "mismatch_weight": float(found.factor_T.mean()),
        "mismatch_capped_frac": float(found.above_T.mean()),
        "mismatch_floored_frac": float(found.below_T.mean()),
    }
    return found, metrics
