"""Compute exactly how a step changes entropy: the prediction of theory, finite steps, and the effect of AEM.

The setting is one state, a policy over a few responses, a set of successful responses (reward 1; all others -1), and
groups of K. To first order along the natural gradient, a response changes entropy by `A (S - H)`. A group changes it by
the mean of that, and in expectation by `Cov(A, S)` if A depends on the response alone. AEM (arXiv 2605.00425)
multiplies A by a coefficient that falls with the response's mean token entropy. It should raise entropy while failures
dominate and lower it once successes dominate. The table shows for which policies and advantages it does, over all
success sets and all groups.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from turnwise.base.shapes import Float
from turnwise.credit.analysis.groups import multisets
from turnwise.credit.batch import Batch
from turnwise.credit.entropy import Probabilities, TreePolicy, logit_drift, mean_token_entropy, response_entropy
from turnwise.credit.methods import aem, grpo, reinforce
from turnwise.credit.segments import Segments
from turnwise.credit.transform import Transform

POLICIES: dict[str, TreePolicy] = {
    # the uncertain branch is the unlikely one
    "shown": TreePolicy({(): [0.0, 0.7, 0.3], (1,): [0.8, 0.15, 0.05], (2,): [0.4, 0.35, 0.25]}),
    # the uncertain branch is the likely one
    "hidden": TreePolicy({(): [0.0, 0.3, 0.7], (1,): [0.8, 0.15, 0.05], (2,): [0.4, 0.35, 0.25]}),
}
"""Two policies of six responses, in which mean token entropy does and does not reflect surprisal."""

ADVANTAGES: dict[str, Transform] = {"grpo": grpo(), "raw": reinforce()}
"""Advantages centred within the group, or the reward itself, +1 or -1."""

REGIMES: dict[str, tuple[float, float, int]] = {
    "failures dominate": (0.0, 1 / 3, 1),
    "balanced": (1 / 3, 2 / 3, 0),
    "successes dominate": (2 / 3, 1.0, -1),
}
"""Range of success rates, and intended sign of AEM's effect on drift; 0 for none."""


class OneState:
    """Policy in one state with every group of K of its responses.

    Args:
        policy: Policy of the state.
        size: Group size K.

    Attributes:
        probability_Y: `[responses]` probability of each response.
        relative_Y: `[responses]` surprisal minus its mean, `S - H` (nats).
        member_GK: `[groups, K]` responses of each group, as a multiset.
        chance_G: `[groups]` probability of each group.
    """

    def __init__(self, policy: TreePolicy, size: int):
        self.probability_Y: Probabilities = policy.probability_Y
        self.entropy = response_entropy(policy)
        self.relative_Y = -np.log(self.probability_Y) - self.entropy
        self.token_entropy_Y = np.array([mean_token_entropy(policy, response) for response in policy.responses])
        self.member_GK, ways_G = multisets(len(policy.responses), size)
        self.chance_G = ways_G * self.probability_Y[self.member_GK].prod(axis=1)

    def credit(self, method: Transform, reward_Y: Float[np.ndarray, " Y"]) -> Float[np.ndarray, "G K"]:
        """Compute the advantage of every member of every group."""
        (num_groups, size), member = self.member_GK.shape, self.member_GK.ravel()
        groups, trajectories = Segments.from_lengths([size] * num_groups), Segments.from_lengths([1] * len(member))
        batch = Batch(groups, trajectories, reward_Y[member], {"entropy": self.token_entropy_Y[member]})
        return method(batch).reshape(num_groups, size)

    def push(self, credit_GK: Float[np.ndarray, "G K"]) -> Float[np.ndarray, "G Y"]:
        """Sum the advantages of each response in each group, divided by K."""
        num_groups, size = credit_GK.shape
        slot_GK = self.member_GK + len(self.probability_Y) * np.arange(num_groups)[:, None]
        push = np.bincount(slot_GK.ravel(), credit_GK.ravel(), num_groups * len(self.probability_Y))
        return push.reshape(num_groups, -1) / size

    def drift(self, credit_GK: Float[np.ndarray, "G K"]) -> float:
        """Predict the drift along the natural gradient: the expectation of `1/K sum_k A_k (S_k - H)`."""
        return float(self.chance_G @ (credit_GK * self.relative_Y[self.member_GK]).mean(axis=1))

    def plain_drift(self, credit_GK: Float[np.ndarray, "G K"]) -> float:
        """Predict the drift along the plain gradient in the logits of responses: the expectation of `logit_drift`."""
        rate_Y = np.array([logit_drift(self.probability_Y, y, 1.0) for y in range(len(self.probability_Y))])
        return float(self.chance_G @ self.push(credit_GK) @ rate_Y)

    def step(self, credit_GK: Float[np.ndarray, "G K"], *, size: float, natural: bool) -> float:
        """Compute the expected change of entropy by a step of `size` in the logits for each group, divided by `size`.

        The natural gradient changes the logits by `push / pi`, the plain one by `push - pi sum(push)`.
        """
        push_GY, probability_Y = self.push(credit_GK), self.probability_Y
        move_GY = push_GY / probability_Y if natural else push_GY - push_GY.sum(axis=1, keepdims=True) * probability_Y
        logits_GY = np.log(probability_Y) + size * move_GY
        logits_GY = logits_GY - logits_GY.max(axis=1, keepdims=True)
        weight_GY = np.exp(logits_GY)
        total_G = weight_GY.sum(axis=1)
        entropy_G = np.log(total_G) - (weight_GY * logits_GY).sum(axis=1) / total_G
        return float(self.chance_G @ (entropy_G - self.entropy)) / size


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """Drift of entropy (nats per unit step) in one setting, averaged over the success sets of a regime."""

    policy: str  # name in `POLICIES`
    advantage: str  # name in `ADVANTAGES`
    regime: str  # name in `REGIMES`
    num_sets: int  # number of success sets of the regime
    predicted: float  # prediction for the natural gradient, `E[A (S - H)]`
    natural: float  # effect of a finite natural-gradient step
    plain_predicted: float  # prediction for the plain gradient, to first order
    plain: float  # effect of a finite plain-gradient step
    aem_failures: float  # effect of AEM on `predicted` through responses with A < 0
    aem_successes: float  # effect of AEM on `predicted` through responses with A > 0
    aem_natural: float  # effect of AEM on `natural`
    aem_plain: float  # effect of AEM on `plain`
    agree: float  # fraction of success sets in which AEM's total effect has the intended sign; nan without one

    @property
    def aem(self) -> float:
        """Return the effect of AEM on `predicted`."""
        return self.aem_failures + self.aem_successes


def measure_drift(*, size: int = 8, step: float = 0.1) -> Iterator[Drift]:
    """Measure the drift for every policy, advantage and regime.

    Args:
        size: Group size K.
        step: Size of the finite steps.
    """
    for policy_name, policy in POLICIES.items():
        state = OneState(policy, size)
        num_responses = len(policy.responses)
        reward_MY = 2.0 * (np.arange(1, 2**num_responses - 1)[:, None] >> np.arange(num_responses) & 1) - 1
        success_M = (reward_MY > 0) @ state.probability_Y
        for advantage, base in ADVANTAGES.items():
            every = [_drifts(state, base, reward_Y, step) for reward_Y in reward_MY]
            for regime, (low, high, sign) in REGIMES.items():
                inside = [numbers for numbers, rate in zip(every, success_M, strict=True) if low <= rate < high]
                means = {name: float(np.mean([numbers[name] for numbers in inside])) for name in inside[0]}
                aem_M = np.array([numbers["aem_failures"] + numbers["aem_successes"] for numbers in inside])
                agree = float((sign * aem_M > 1e-12).mean()) if sign else float("nan")
                yield Drift(policy_name, advantage, regime, len(inside), **means, agree=agree)


def _drifts(state: OneState, base: Transform, reward_Y: np.ndarray, step: float) -> dict[str, float]:
    """Compute the numbers of `Drift` for one success set."""
    credit_GK, with_aem_GK = state.credit(base, reward_Y), state.credit(aem(base), reward_Y)
    added_GK = with_aem_GK - credit_GK
    natural, plain = (state.step(credit_GK, size=step, natural=natural) for natural in (True, False))
    aem_natural, aem_plain = (state.step(with_aem_GK, size=step, natural=natural) for natural in (True, False))
    return {
        "predicted": state.drift(credit_GK),
        "natural": natural,
        "plain_predicted": state.plain_drift(credit_GK),
        "plain": plain,
        "aem_failures": state.drift(np.where(credit_GK < 0, added_GK, 0.0)),
        "aem_successes": state.drift(np.where(credit_GK > 0, added_GK, 0.0)),
        "aem_natural": aem_natural - natural,
        "aem_plain": aem_plain - plain,
    }
