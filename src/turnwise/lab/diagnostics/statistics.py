"""Compute intervals for differences between arms of a few runs each.

The unit is the run (a training seed). Episodes of one run are not independent, so they never count as such.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

from turnwise.base.shapes import Float
from turnwise.train.evaluation.intervals import wilson_interval

LEVEL = 0.95
POWER = 0.8
DRAWS = 10_000
EQUAL = 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Hold an estimate and its 95 % interval, with infinite ends if the spread is unknown."""

    value: float  # the estimate
    low: float  # lower end
    high: float  # upper end
    p: float = math.nan  # p-value of Student's two-sided test against zero; nan without a test

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0.0 or self.high < 0.0

    def within(self, lowest: float, highest: float) -> "Interval":
        """Clip the interval to the possible range; infinite ends stay infinite."""
        if not math.isfinite(self.high - self.low):
            return self
        return dataclasses.replace(self, low=max(self.low, lowest), high=min(self.high, highest))

    def text(self, digits: int = 3, *, sign: bool = False) -> str:
        """Format the estimate with its interval in brackets."""
        spec = f"{'+' * sign},.{digits}f"
        if not math.isfinite(self.high - self.low):
            return f"{self.value:{spec}} [no interval]"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def contrast(samples: Sequence[np.ndarray], weights: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Estimate `sum_j weights[j] * mean(samples[j])` with the wider of bootstrap and Student's interval at each end.

    The bootstrap is stratified: each sample is resampled separately. Two corrections for few runs follow Hesterberg,
    What Teachers Should Know about the Bootstrap, 2015: deviations of a sample of n are scaled by `sqrt(n / (n - 1))`,
    and percentiles come from Student's t instead of the normal. Student's interval has Welch's degrees of freedom.

    Args:
        samples: Values of independent runs, or differences of paired runs.
        weights: One weight per sample: (1,) for a mean, (1, -1) for a difference of means.
        draws: Number of bootstrap resamples.
        seed: Seed of the resampling.
    """
    means = [float(np.mean(sample)) for sample in samples]
    value = float(np.dot(weights, means))
    parts = [
        weight**2 * sample.var(ddof=1) / len(sample) if len(sample) > 1 else math.nan
        for sample, weight in zip(samples, weights, strict=True)
    ]
    variance = sum(parts)
    if not variance > (1e-9 * max(1.0, abs(value))) ** 2:  # one run, or identical runs: the spread is unknown
        return Interval(value, -math.inf, math.inf)
    freedom = variance**2 / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True))
    quantile = float(stats.t.ppf(0.5 + LEVEL / 2, freedom))
    generator = np.random.default_rng(seed)
    deviation = np.zeros(draws)
    for sample, weight, mean in zip(samples, weights, means, strict=True):
        n = len(sample)
        resampled = sample[generator.integers(n, size=(draws, n))].mean(axis=1)
        deviation += weight * math.sqrt(n / (n - 1)) * (resampled - mean)
    tail = float(stats.norm.cdf(-quantile))
    low, high = np.quantile(deviation, [tail, 1 - tail])
    student = quantile * math.sqrt(variance)
    p = float(2 * stats.t.sf(abs(value) / math.sqrt(variance), freedom))
    return Interval(value, value + min(float(low), -student), value + max(float(high), student), p)


def interval_of_draws(values_D: Float[np.ndarray, " draws"], num: int) -> Interval:
    """Return an estimate, the first value, with its 95 % interval by the bootstrap of the others.

    Deviations are scaled by `sqrt(num / (num - 1))`, and percentiles are those of Student's t, as in `contrast`. Draws
    that are all equal tell nothing of the spread: there is no interval.

    Args:
        values_D: `[draws]` the estimate, and what it is when units are drawn with replacement.
        num: Units; of several kinds, the fewest.
    """
    moved_D = values_D[1:][np.isfinite(values_D[1:])] - values_D[0]
    if num < 2 or not np.isfinite(values_D[0]) or not len(moved_D) or np.ptp(moved_D) < EQUAL:
        return Interval(float(values_D[0]), -math.inf, math.inf)
    tail = float(stats.norm.cdf(stats.t.ppf(0.5 - LEVEL / 2, num - 1)))
    low, high = np.quantile(moved_D * math.sqrt(num / (num - 1)), [tail, 1 - tail])
    return Interval(float(values_D[0]), float(values_D[0] + low), float(values_D[0] + high))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several comparisons by Holm's method (1979), which controls the family-wise error rate.

        adjusted p of the k-th smallest of m = max over j <= k of min(1, (m - j + 1) p_j)

    A missing p-value stays missing, and counts as one of the m.
    """
    order = sorted(range(len(p_values)), key=lambda place: (math.isnan(p_values[place]), p_values[place]))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(order):
        if not math.isnan(p_values[place]):
            adjusted[place] = largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
    return adjusted


def win_probability(differences: np.ndarray) -> Interval:
    """Estimate the probability that A beats B of the same seed, ties half, with Wilson's interval."""
    wins = float(np.sum(differences > 0) + 0.5 * np.sum(differences == 0))
    low, high = wilson_interval(wins, len(differences))
    return Interval(wins / len(differences), low, high)


def win_probability_unpaired(a: np.ndarray, b: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Estimate the probability that a run of A beats one of B, ties half (Mann and Whitney's U / nm).

    Each end of the interval is the outer of a percentile bootstrap over the runs of each side and of Wilson's interval
    for as many pairs as the smaller side has runs.
    """
    better = (a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :])
    generator = np.random.default_rng(seed)
    rows, columns = generator.integers(len(a), size=(draws, len(a))), generator.integers(len(b), size=(draws, len(b)))
    resampled = [better[np.ix_(row, column)].mean() for row, column in zip(rows, columns, strict=True)]
    low, high = np.quantile(resampled, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    num, value = min(len(a), len(b)), float(better.mean())
    outer = wilson_interval(value * num, num)
    return Interval(value, min(float(low), outer[0]), max(float(high), outer[1]))


def pairs_needed(difference: float, spread: float, *, arms: int = 1) -> float:
    """Compute the pairs, or runs per arm, for 80 % power of Student's test; see `power`.

    The observed difference is uncertain, so the result is an order of magnitude. It is infinite for a difference of 0.
    """
    if not abs(difference) > 1e-9 * spread:
        return math.inf
    rough = ((stats.norm.ppf(0.5 + LEVEL / 2) + stats.norm.ppf(POWER)) * spread / difference) ** 2
    if rough > 1e5:  # Student's distribution is the normal one
        return float(rough)
    counts = range(2, 200_000)
    return counts[bisect.bisect_left(counts, POWER, key=lambda runs: power(difference, spread, runs, arms=arms))]


def detectable(spread: float, runs: int, *, arms: int = 1) -> float:
    """Compute the difference that this many pairs, or runs per arm, detect with 80 % power; infinite for one."""
    if runs < 2:
        return math.inf
    # bounds in units of the spread: 12 for two pairs, less for more
    found = optimize.root_scalar(lambda reach: power(reach, 1.0, runs, arms=arms) - POWER, bracket=(0.0, 20.0))
    return spread * found.root


def power(difference: float, spread: float, runs: int, *, arms: int = 1) -> float:
    """Compute the power of Student's two-sided test at 0.05 for a true difference, with the right sign.

    The noncentral t distribution gives it, exactly for normal data:

        P(T > t_0.975),  T of `arms * (runs - 1)` degrees of freedom, noncentral by difference / spread * sqrt(runs)

    Args:
        difference: True difference.
        spread: Standard deviation of the paired differences, or `sqrt(var_A + var_B)` for two arms.
        runs: Number of pairs, or of runs per arm.
        arms: 1 for pairs, 2 for unpaired arms.
    """
    if runs < 2:
        return 0.0
    freedom, away = arms * (runs - 1), abs(difference) / spread * math.sqrt(runs)
    bound = float(stats.t.ppf(0.5 + LEVEL / 2, freedom))
    if away > 35.0 + bound:  # the power is 1 here, and scipy's distribution function fails
        return 1.0
    return float(stats.nct.sf(bound, freedom, away))
