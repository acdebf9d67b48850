"""Schedule clip widths that depend on the token's probability: flexible entropy control."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pydantic

from turnwise.base.errors import ConfigError
from turnwise.objective.token_rules.base import NotNegative, Positive, StepTokens, TokenCredit

Ends = Annotated[Sequence[Positive], pydantic.Field(min_length=2, max_length=2)]
Schedule = Literal["id", "did", "od"]

OD_START = 0.2
"""Fraction of the first step's entropy at which "od" starts to raise it."""


def flexible_clip(
    tokens: StepTokens,
    *,
    upper: Ends,
    lower: Ends,
    schedule: Schedule = "id",
    entropy_min: NotNegative | None = None,
) -> TokenCredit:
    """Raise or lower the entropy on a schedule, by wider clips above or below 1 for improbable tokens.

        U(p) = upper[0] + (upper[1] - upper[0]) * p,  M(p) = lower[0] + (lower[1] - lower[0]) * p,  p = exp(logprob)
        clip_high = s_high * U(p) + (1 - s_high) * clip_high,  clip_low = s_low * M(p) + (1 - s_low) * clip_low

        id:  with u = progress of the run: s_high = 1 - 2u, s_low = 0 up to the half, then s_high = 0, s_low = 2 - 2u
        did: s_high = 2u, s_low = 0 up to the half, then s_high = 1, s_low = 2 - 2u
        od:  (s_high, s_low) = (0, 1) at the start,
             (1, 0) once the mean entropy is at most 0.2 * H_first,
             (0, 1) again once it is above entropy_min + (H_first - entropy_min) * (1 - u)

    The paper's constants are unknown: set the widths at probability 0 and 1. The start of "od" is our choice.

    Args:
        tokens: Generated tokens of the step, with the usual clip widths.
        upper: Widths above 1 for tokens of probability 0 and 1; decreasing in the paper.
        lower: Widths below 1 for tokens of probability 0 and 1.
        schedule: "id": increase, then decrease. "did": decrease, increase, decrease. "od": damped oscillation.
        entropy_min: Final value of the upper threshold of "od" (nats).

    Reference: Flexible Entropy Control, arXiv 2602.09782.
    """
    for name, (rare, certain) in {"upper": upper, "lower": lower}.items():
        if certain > rare:
            raise ConfigError(
                f"flexible_clip: {name}={[rare, certain]} grows with the probability; give the larger width first"
            )
    state = None
    if schedule != "od" and entropy_min is not None:
        raise ConfigError(f"flexible_clip: entropy_min={entropy_min} is only for schedule='od'; remove it")
    if schedule == "od":
        if entropy_min is None:
            raise ConfigError(
                "flexible_clip: schedule='od' needs the option 'entropy_min'; the paper's value is unknown, choose one"
            )
        state = _oscillate(tokens, entropy_min)
        share_high, share_low = (1.0, 0.0) if state["raising"] else (0.0, 1.0)
    else:
        u = tokens.progress
        share_high = max(0.0, 1 - 2 * u) if schedule == "id" else min(1.0, 2 * u)
        share_low = 0.0 if u <= 0.5 else 2 - 2 * u
    p_T = np.exp(tokens.logprob_T)
    return TokenCredit(
        clip_low_T=_blend(share_low, lower, p_T, tokens.clip_low),
        clip_high_T=_blend(share_high, upper, p_T, tokens.clip_high),
        state=state,
    )


def _blend(share: float, ends: Ends, p_T: np.ndarray, usual: float) -> np.ndarray:
    return share * (ends[0] + (ends[1] - ends[0]) * p_T) + (1 - share) * usual


def _oscillate(tokens: StepTokens, entropy_min: float) -> dict[str, float | bool]:
    entropy = float(tokens.entropy_T.mean())
    first, raising = (entropy, False) if tokens.state is None else (tokens.state["first"], tokens.state["raising"])
    if entropy <= OD_START * first:
        raising = True
    elif entropy > entropy_min + (first - entropy_min) * (1 - tokens.progress):
        raising = False
    return {"first": first, "raising": raising}
