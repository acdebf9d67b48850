"""Adapt advantages to keep the entropy at its initial value: REPO-R and REPO."""

from typing import Literal

import numpy as np

from turnwise.errors import ConfigError
from turnwise.objective.token_rules.base import NotNegative, Positive, StepTokens, TokenCredit


def repo(
    tokens: StepTokens,
    *,
    zeta: Positive,
    zeta_min: NotNegative,
    zeta_max: Positive,
    form: Literal["repo-r", "repo"] = "repo-r",
) -> TokenCredit:
    """Raise the advantages of improbable tokens, to keep the entropy at its initial value.

        repo-r: A = A - zeta * |A| * logprob
        repo:   A = A - zeta * (logprob + entropy)          entropy = -E[logprob] at the token
        zeta doubles after a step with a mean entropy below the first step's, and halves after one above,
        within zeta_min .. zeta_max

    The paper's constants are unknown. zeta_min = zeta = zeta_max keeps zeta fixed.

    Args:
        tokens: Generated tokens of the step.
        zeta: Value in the first step (1 / nats).
        zeta_min: Smallest value (1 / nats).
        zeta_max: Largest value (1 / nats).
        form: "repo-r", whose results the paper reports, or "repo", whose coefficient beta is `zeta` here. That the same
            controller moves it is our choice; equal bounds keep it fixed.

    Reference: Entropy-preserving reinforcement learning (REPO, REPO-R), arXiv 2603.11682.
    """
    if not zeta_min <= zeta <= zeta_max:
        raise ConfigError(f"repo: zeta={zeta} must lie between zeta_min={zeta_min} and zeta_max={zeta_max}")
    entropy = float(tokens.entropy_T.mean())
    if tokens.state is None:
        state = {"zeta": zeta, "target": entropy}
    else:
        target = tokens.state["target"]
        adapted = controlled(tokens.state["zeta"], entropy, target, factor=2.0, low=zeta_min, high=zeta_max)
        state = {"zeta": adapted, "target": target}
    by_size_T = np.abs(tokens.advantage_T) * tokens.logprob_T
    change_T = by_size_T if form == "repo-r" else tokens.logprob_T + tokens.entropy_T
    return TokenCredit(advantage_T=tokens.advantage_T - state["zeta"] * change_T, state=state)


def controlled(value: float, entropy: float, target: float, *, factor: float, low: float, high: float) -> float:
    """Multiply a value by a factor if the entropy is below its target, divide it if above, within bounds."""
    change = factor if entropy < target else 1 / factor if entropy > target else 1.0
    return min(max(change * value, low), high)
