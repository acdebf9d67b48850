"""Estimate the effect of every response by executed replay: what follows it, against what the policy would do instead.

    effect_t = r_t + mean return of replays after response t - mean return of fresh draws before it that act otherwise

Both kinds are the continuations that fidelity plays, so one pass serves both. `A* = (1 - p) effect`, where p is the
probability of the response's action. Where the policy drew too few other actions there is no effect: the response is
left out and counted, never imputed.

The design is that of Credit Without Ground Truth, arXiv 2608.19760, which draws four distinct alternatives, weights
them equally and calls every nonzero contrast an effect. Here alternatives count as often as the policy draws them, and
a permutation test separates effects from chance.
"""

import dataclasses
import functools
import hashlib

import numpy as np

from turnwise.base.shapes import Bool, Float, Int

LEVEL = 0.05
"""Level of the permutation test of one response."""
PERMUTATIONS = 999
"""Draws of a permutation test."""
EQUAL = 1e-9
"""Largest difference of returns that are the same number summed in another order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Effects:
    """Effects of responses."""

    effect_R: Float[np.ndarray, " R"]  # `[responses]` effect; nan where it is not defined
    variance_R: Float[np.ndarray, " R"]  # variance of the estimate, unbiased
    p_R: Float[np.ndarray, " R"]  # p-value of the permutation test; 1 where all returns are equal
    # Probability that the test rejects without an effect, `LEVEL` at most: returns are few and have ties
    size_R: Float[np.ndarray, " R"]
    alternatives_R: Int[np.ndarray, " R"]  # number of distinct actions that the policy drew instead

    @property
    def defined_R(self) -> Bool[np.ndarray, " R"]:
        """Responses whose effect is defined."""
        return np.isfinite(self.effect_R)

    @property
    def shown_R(self) -> Bool[np.ndarray, " R"]:
        """Responses whose effect is significant."""
        return self.defined_R & (self.p_R <= LEVEL)


def action_number(action: str) -> int:
    """Number an action, equal for equal texts, so that a file can hold it."""
    return int.from_bytes(hashlib.sha256(action.encode()).digest()[:7])


def measure_effects(
    reward_R: Float[np.ndarray, " R"],
    action_R: Int[np.ndarray, " R"],
    before_R: Int[np.ndarray, " R"],
    after_R: Int[np.ndarray, " R"],
    return_HK: Float[np.ndarray, "H K"],
    action_HK: Int[np.ndarray, "H K"],
    *,
    alternatives: int = 1,
) -> Effects:
    """Estimate the effect of each response.

    Args:
        reward_R: Rewards of the responses.
        action_R: Number of each response's action.
        before_R: History of each response, an index of `return_HK`.
        after_R: History after it; -1: the trajectory ended, and every replay would return its reward.
        return_HK: `[histories, continuations]` returns; nan where a continuation failed.
        action_HK: Number of the action with which each continuation begins.
        alternatives: Distinct other actions that a response needs; below, its effect is not defined.
    """
    result = np.full((4, len(reward_R)), np.nan)
    distinct_R = np.zeros(len(reward_R), dtype=np.int64)
    for row, (reward, action, before, after) in enumerate(zip(reward_R, action_R, before_R, after_R, strict=True)):
        drawn_K = np.isfinite(return_HK[before])
        other_K = drawn_K & (action_HK[before] != action)
        distinct_R[row] = len(np.unique(action_HK[before][other_K]))
        others = return_HK[before][other_K]
        own = np.zeros(drawn_K.sum()) if after < 0 else return_HK[after][np.isfinite(return_HK[after])]
        if distinct_R[row] >= alternatives and min(len(own), len(others)) > 1:
            own = reward + own
            spread = own.var(ddof=1) / len(own) + others.var(ddof=1) / len(others)
            result[:, row] = own.mean() - others.mean(), spread, *permutation_test(own, others)
    effect_R, variance_R, p_R, size_R = result
    return Effects(effect_R, variance_R, p_R, size_R, distinct_R)


def permutation_test(own: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"]) -> tuple[float, float]:
    """Test whether two samples have the same mean, two-sided; returns the p-value and the test's size at `LEVEL`.

    The test assumes that equal means are equal distributions, as with two-valued returns. With others it also rejects
    where only the spreads differ, the more the smaller the smaller sample.
    """
    values = np.concatenate([own, others])
    if np.ptp(values) <= EQUAL:
        return 1.0, 0.0
    far_D = np.abs(values[_draws(len(own), len(values))].mean(1) - values.mean())
    p = (1 + (far_D >= abs(own.mean() - values.mean()) - EQUAL).sum()) / (1 + PERMUTATIONS)
    at_least_D = PERMUTATIONS - np.searchsorted(np.sort(far_D), far_D - EQUAL)
    return float(p), float(((1 + at_least_D) / (1 + PERMUTATIONS) <= LEVEL).mean())


@functools.cache
def _draws(size: int, total: int) -> Int[np.ndarray, "D n"]:
    """Draw samples without replacement, the same for all tests of this size."""
    everyone = np.tile(np.arange(total), (PERMUTATIONS, 1))
    return np.random.default_rng([size, total]).permuted(everyone, axis=1)[:, :size]
