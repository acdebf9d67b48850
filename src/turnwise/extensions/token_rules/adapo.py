"""Adapt the clip above 1 to keep the entropy at its initial value: ADAPO."""

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.objective.token_rules.base import Positive, StepTokens, TokenCredit


def adapo(tokens: StepTokens, *, rate: Positive, high_min: Positive, high_max: Positive) -> TokenCredit:
    """Widen the clip above 1 while the entropy is below its initial value, and narrow it while above.

        clip_high_1 = update.clip_high
        clip_high_s = clip_high_{s-1} * (1 + rate) after a mean entropy below the first step's, / (1 + rate) above it,
                      within high_min .. high_max

    Rate and bounds of the paper's controller are unknown, and so is its form: a geometric step is our choice.

    Args:
        tokens: Generated tokens of the step, with the usual clip widths.
        rate: Relative change per step.
        high_min: Smallest width above 1.
        high_max: Largest width above 1.

    Reference: Entropy-preserving reinforcement learning (ADAPO), arXiv 2603.11682.
    """
    if high_min > high_max:
        raise ConfigError(f"adapo: high_min={high_min} is above high_max={high_max}")
    entropy = float(tokens.entropy_T.mean())
    if tokens.state is None:
        state = {"high": min(max(tokens.clip_high, high_min), high_max), "target": entropy}
    else:
        before, target = tokens.state["high"], tokens.state["target"]
        change = 1 + rate if entropy < target else 1 / (1 + rate) if entropy > target else 1.0
        state = {"high": min(max(change * before, high_min), high_max), "target": target}
    widths = {"clip_low_T": tokens.clip_low, "clip_high_T": state["high"]}
    return TokenCredit(**{name: np.full(len(tokens), width) for name, width in widths.items()}, state=state)
