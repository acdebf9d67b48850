"""Estimate the true advantage of every response by Monte Carlo: fresh continuations from the state before each.

    V(s) = mean return of K continuations from s,    A*_t = r_t + V(s_{t+1}) - V(s_t),    V = 0 after the end

The policy and the environment do not change. A state is the whole history, so histories shared by trajectories of a
group are valued once.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from turnwise.base.errors import RunError
from turnwise.base.shapes import Float, Int
from turnwise.rollout.failures import placed_failure
from turnwise.rollout.replays import Replays
from turnwise.rollout.starts import Start, return_of
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """Estimated true advantages."""

    advantage_R: Float[np.ndarray, " R"]  # `[responses]` A*, unbiased; nan where fewer than two continuations finished
    variance_R: Float[np.ndarray, " R"]  # `[responses]` variance of the estimate, unbiased

    @property
    def known_R(self) -> np.ndarray:
        """Responses whose advantage is known, `[responses]` bool."""
        return np.isfinite(self.advantage_R)

    @property
    def square_R(self) -> Float[np.ndarray, " R"]:
        """Unbiased estimate of the squared true advantage: the square minus the variance of the estimate."""
        return self.advantage_R**2 - self.variance_R


def estimated_values(return_HK: Float[np.ndarray, "H K"]) -> tuple[Float[np.ndarray, " H"], Float[np.ndarray, " H"]]:
    """Estimate the value of every history from the returns of its continuations, without those that failed (nan).

    Returns:
        `[histories]` mean returns, and the variance of these estimates, unbiased; nan with fewer than two returns.
    """
    known_HK = np.isfinite(return_HK)
    count_H = np.where(known_HK.sum(1) > 1, known_HK.sum(1), np.nan)
    mean_H = np.where(known_HK, return_HK, 0.0).sum(1) / count_H
    square_H = np.where(known_HK, (return_HK - mean_H[:, None]) ** 2, 0.0).sum(1)
    return mean_H, square_H / (count_H - 1) / count_H


def true_advantages(
    reward_R: Float[np.ndarray, " R"],
    before_R: Int[np.ndarray, " R"],
    after_R: Int[np.ndarray, " R"],
    return_HK: Float[np.ndarray, "H K"],
) -> Truth:
    """Compute A* of each response from the returns of continuations.

    Args:
        reward_R: Rewards of the responses.
        before_R: History of each response, an index of `return_HK`.
        after_R: History after it; -1: the trajectory ended.
        return_HK: `[histories, continuations]` returns, two or more continuations.
    """
    mean_H, variance_H = estimated_values(return_HK)
    goes_on_R = after_R >= 0
    following_R = np.where(goes_on_R, mean_H[after_R], 0.0)
    return Truth(
        reward_R + following_R - mean_H[before_R],
        variance_H[before_R] + np.where(goes_on_R, variance_H[after_R], 0.0),
    )


class PlayStarts(Protocol):
    """Plays one trajectory per start."""

    def __call__(self, starts: Sequence[Start], *, seed: int) -> list[Trajectory]:
        """Play trajectories whose draws depend on the seed and the place in `starts`."""
        ...


def continue_histories(
    starts: Sequence[Start],
    continuations: int,
    play: PlayStarts,
    *,
    at_once: int,
    seed: int,
    known: Float[np.ndarray, "H K"] | None = None,
    on_part: Callable[[Float[np.ndarray, "H K"], int], None] = lambda return_HK, done: None,
    replays: Replays | None = None,
) -> Float[np.ndarray, "H K"]:
    """Play every history to its end several times; returns `[histories, continuations]` sums, nan where one failed.

    Args:
        starts: One per history.
        continuations: Continuations per history.
        play: Plays them.
        at_once: Trajectories played concurrently.
        seed: Seed of the draws; different from that of the trajectories.
        known: Returns of an earlier call that was interrupted, nan where missing.
        on_part: Called after every part, with all returns so far and the number of histories done.
        replays: Counts those that diverge.

    Raises:
        RunError: All continuations of the first three parts failed, or most replays diverge.
    """
    return_HK = np.full((len(starts), continuations), np.nan) if known is None else known.copy()
    size, replays = max(1, at_once // continuations), replays or Replays()
    for first in range(0, len(starts), size):
        part = range(first, min(first + size, len(starts)))
        if not np.isnan(return_HK[part]).all():
            continue
        played = play([starts[number] for number in part for _ in range(continuations)], seed=seed + first)
        replays.add(played)
        returns = [return_of(one) for one in played]
        return_HK[part] = np.reshape(returns, (len(part), continuations))
        done = part[-1] + 1
        if np.isnan(return_HK[:done]).all() and (first >= 2 * size or done == len(starts)):
            raise RunError(
                f"all {done * continuations} continuations failed; the last one: {placed_failure(played[-1])}"
            )
        on_part(return_HK, done)
    return return_HK
