"""Adapt clip widths and advantages to the token's entropy: HAPO."""

from typing import Annotated, Literal

import numpy as np
import pydantic

from turnwise.objective.token_rules.base import StepTokens, TokenCredit, Values

Sign = Literal["paper", "release"]
Quantile = Annotated[float, pydantic.Field(ge=0, le=1)]

MIN_ENTROPY = 1e-8
"""Lower bound of the entropy before the logarithm (nats)."""


def hapo(
    tokens: StepTokens,
    *,
    quantile: Quantile = 0.8,
    sign: Sign = "paper",
    widths: bool = True,
    redistribute: bool = True,
) -> TokenCredit:
    """Widen the upper clip of uncertain and the lower clip of certain tokens, and redistribute advantages.

        clip_high = clip_high * (1 + h) where h > 0,  clip_low = clip_low * (1 - h) where h <= 0          (widths)
        A = A * (1 + h) where h > 0 and rho is outside (1 - clip_low / 2, 1 + clip_high / 2),
                     or where h <= 0 and rho is inside                                               (redistribute)

    with `h` from `entropy_level`. The paper's group mean over tokens is the method `hapo`, its temperature per token
    `rollout.token_temperature`.

    Args:
        tokens: Generated tokens of the step, with the clip widths to adapt.
        quantile: Quantile of the log-entropies at which h is 0.
        sign: "paper": h < 0 for certain tokens. "release": |h|, as in the released code. Then clip_low never widens,
            and the most certain tokens are treated like the most uncertain ones.
        widths: Adapt the clip widths.
        redistribute: Adapt the advantages.

    Reference: Heterogeneous Adaptive Policy Optimization, arXiv 2509.16591.
    """
    level_T = entropy_level(tokens.entropy_T, quantile=quantile)
    if sign == "release":
        level_T = np.abs(level_T)
    return TokenCredit(
        clip_low_T=tokens.clip_low * (1 - np.minimum(level_T, 0.0)) if widths else None,
        clip_high_T=tokens.clip_high * (1 + np.maximum(level_T, 0.0)) if widths else None,
        tilt_T=level_T if redistribute else None,
    )


def entropy_level(entropy_T: Values, *, quantile: float) -> Values:
    """Scale each token's log-entropy to -1 (lowest of the step), 0 (quantile) .. 1 (highest).

        d = log(H) - quantile(log(H));  h = d / max(d) where d > 0, d / |min(d)| elsewhere

    The paper first divides d by its root mean square, which cancels. The quantile is the nearest token's value.
    """
    log_T = np.log(np.maximum(entropy_T, MIN_ENTROPY))
    distance_T = log_T - np.sort(log_T)[round(quantile * (len(log_T) - 1))]
    reach_T = np.where(distance_T > 0, distance_T.max(), -distance_T.min())
    return np.divide(distance_T, reach_T, out=np.zeros_like(distance_T), where=distance_T != 0)
