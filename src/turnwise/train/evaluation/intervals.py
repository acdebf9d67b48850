"""Compute confidence intervals of what episodes show, where a panel may play a task several times."""

import math
from collections.abc import Hashable, Sequence

import numpy as np

NORMAL = 1.959964
"""Quantile of the normal distribution for 95 %."""


def share_interval(wins: Sequence[bool], tasks: Sequence[Hashable]) -> tuple[float, float]:
    """Compute a 95 % interval for the share of wins: Wilson's, for as many trials as the episodes are worth.

    Args:
        wins: Of each episode, whether it won.
        tasks: Its task.
    """
    if not len(wins):
        return 0.0, 1.0
    trials, z = _worth(wins, tasks)
    return wilson_interval(float(np.mean(wins)) * trials, trials, z=z)


def mean_interval(values: Sequence[float], tasks: Sequence[Hashable]) -> tuple[float, float]:
    """Compute a 95 % interval for the mean of at least two values, of which those of a task may be alike."""
    trials, z = _worth(values, tasks)
    mean, half = float(np.mean(values)), z * float(np.std(values, ddof=1)) / math.sqrt(trials)
    return mean - half, mean + half


def _worth(values: Sequence[float], tasks: Sequence[Hashable]) -> tuple[float, float]:
    """Return how many independent episodes the given ones are worth, and the quantile of their mean.

    Episodes of one task tend to end alike, so they tell less of other tasks: `N / (1 + (m - 1) rho)` (Kish 1965), with
    the intraclass correlation rho by analysis of variance, and m the mean size of the task of an episode. If all values
    are equal, rho is unknown, and 1 is assumed. Student's t has as many degrees of freedom as there are tasks. A single
    task stands for itself: its episodes count as they are.
    """
    value_N = np.asarray(values, dtype=np.float64)
    numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
    task_N, episodes, num = np.array([numbers[task] for task in tasks]), len(value_N), len(numbers)
    if num in (1, episodes):
        return episodes, NORMAL
    size_K = np.bincount(task_N)
    mean_K = np.bincount(task_N, value_N) / size_K
    between = float(size_K @ (mean_K - value_N.mean()) ** 2) / (num - 1)
    within = float(np.sum((value_N - mean_K[task_N]) ** 2)) / (episodes - num)
    of_episode = float(size_K @ size_K) / episodes
    total = between + ((episodes - of_episode) / (num - 1) - 1) * within
    rho = 1.0 if total <= 0 else min(1.0, max(0.0, (between - within) / total))
    return episodes / (1 + (of_episode - 1) * rho), _student(num - 1)


def _student(degrees: int) -> float:
    """Return the quantile of Student's t for 95 %, within 0.005 (Abramowitz and Stegun 26.7.5), without scipy."""
    if degrees < 3:
        return (12.7062, 4.3027)[degrees - 1]
    z, v = NORMAL, degrees
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, start=1))


def wilson_interval(successes: float, trials: float, *, z: float = NORMAL) -> tuple[float, float]:
    """Compute Wilson's score interval: `(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)`.

    Unlike p +- 2 standard errors it stays within [0, 1] and has positive width at 0 % and 100 %.
    """
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, z * z / trials
    center = share + square / 2
    half = math.sqrt(square * (share * (1 - share) + square / 4))
    low, high = (center - half) / (1 + square), (center + half) / (1 + square)
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # rounding must not exclude a share of 0 or 1
