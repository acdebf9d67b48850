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
        state = {"zeta": adapted(tokens.state["zeta"], entropy, target, zeta_min, zeta_max), "target": target}
    surprise_T = np.abs(tokens.advantage_T) * tokens.logprob_T
    if form == "repo":
        surprise_T = tokens.logprob_T + tokens.entropy_T
    advantage_T = tokens.advantage_T - state["zeta"] * surprise_T
    return TokenCredit(advantage_T=advantage_T, state=state)


def adapted(zeta: float, entropy: float, target: float, zeta_min: float, zeta_max: float) -> float:
    """Double zeta if the entropy is below its target, halve it if above, within bounds."""
    factor = 2.0 if entropy < target else 0.5 if entropy > target else 1.0
    return min(max(factor * zeta, zeta_min), zeta_max)
