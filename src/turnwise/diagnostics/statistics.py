"""Intervals for differences between arms of a few runs each.

The unit is the run (a training seed): episodes of one run share its luck, so that they are never counted as if they were independent.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

LEVEL = 0.95
POWER = 0.8
DRAWS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval; infinite ends where the data say nothing about the spread.

    Attributes:
        value: The estimate.
        low: Lower end.
        high: Upper end.
        p: Of Student's two-sided test that the truth is zero; not a number where none was made.
    """

    value: float
    low: float
    high: float
    p: float = math.nan

    @property
    def shown(self) -> bool:
        """Whether it leaves out zero."""
        return self.low > 0.0 or self.high < 0.0

    def within(self, lowest: float, highest: float) -> "Interval":
        """Cut to what the quantity can be, which loses nothing; one without ends keeps none."""
        if not math.isfinite(self.high - self.low):
            return self
        return dataclasses.replace(self, low=max(self.low, lowest), high=min(self.high, highest))

    def text(self, digits: int = 3, *, sign: bool = False) -> str:
        """The estimate with its interval in brackets."""
        spec = f"{'+' * sign},.{digits}f"
        if not math.isfinite(self.high - self.low):
            return f"{self.value:{spec}} [no interval]"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def contrast(samples: Sequence[np.ndarray], weights: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """`sum_j weights[j] * mean(samples[j])` with an interval: the outer of a bootstrap's and Student's at each end.

    Each sample is resampled by itself (the stratified bootstrap). Two corrections for few runs (Hesterberg, What Teachers Should Know about
    the Bootstrap, 2015): deviations of a sample of n count `sqrt(n / (n - 1))`-fold, and the percentiles are those of Student's t instead of
    the normal. A bootstrap of five runs still knows no more than five values, hence Student's interval beside it (Welch's degrees of
    freedom); the bootstrap is wider where the data are skewed.

    Args:
        samples: Of independent runs, or of differences of paired runs.
        weights: One a sample: (1,) for a mean, (1, -1) for a difference of means.
        draws: Bootstrap resamples.
        seed: Of the resampling.
    """
    means = [float(np.mean(sample)) for sample in samples]
    value = float(np.dot(weights, means))
    parts = [weight**2 * sample.var(ddof=1) / len(sample) if len(sample) > 1 else math.nan
             for sample, weight in zip(samples, weights, strict=True)]  # fmt: skip
    variance = sum(parts)
    if (
        not variance > (1e-9 * max(1.0, abs(value))) ** 2
    ):  # a single run, or runs that agree to the last episode: no spread to go by
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


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several comparisons so that 0.05 is the chance of one false alarm or more among all (Holm, 1979).

        adjusted p of the k-th smallest of m = max over j <= k of min(1, (m - j + 1) p_j)

    Where there is no p-value, none is returned, and it counts as one of the m.
    """
    order = sorted(range(len(p_values)), key=lambda place: (math.isnan(p_values[place]), p_values[place]))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(order):
        if not math.isnan(p_values[place]):
            adjusted[place] = largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
    return adjusted


def win_probability(differences: np.ndarray) -> Interval:
    """Probability that a run of A beats the run of B of the same seed, ties half, with Wilson's interval."""
    from turnwise.train.evaluate import wilson_interval  # with torch, which nothing else here needs

    wins = float(np.sum(differences > 0) + 0.5 * np.sum(differences == 0))
    return Interval(wins / len(differences), *wilson_interval(wins, len(differences)))  # pyright: ignore[reportArgumentType]


def win_probability_unpaired(a: np.ndarray, b: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Probability that a run of A beats any run of B, ties half (Mann and Whitney's U / nm), percentile bootstrap over the runs of each."""
    better = (a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :])
    generator = np.random.default_rng(seed)
    rows, columns = generator.integers(len(a), size=(draws, len(a))), generator.integers(len(b), size=(draws, len(b)))
    resampled = [better[np.ix_(row, column)].mean() for row, column in zip(rows, columns, strict=True)]
    low, high = np.quantile(resampled, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Interval(float(better.mean()), float(low), float(high))


def pairs_needed(difference: float, spread: float, *, arms: int = 1) -> float:
    """Pairs, or runs of each of two arms, with which Student's test shows a true difference in four of five studies; see `power`.

    An observed difference is itself uncertain, so this is an order of magnitude; infinite for a difference of zero.
    """
    if not abs(difference) > 1e-9 * spread:
        return math.inf
    rough = ((stats.norm.ppf(0.5 + LEVEL / 2) + stats.norm.ppf(POWER)) * spread / difference) ** 2
    if rough > 1e5:  # Student's distribution is the normal one
        return float(rough)
    counts = range(2, 200_000)
    return counts[bisect.bisect_left(counts, POWER, key=lambda runs: power(difference, spread, runs, arms=arms))]


def detectable(spread: float, runs: int, *, arms: int = 1) -> float:
    """The true difference that so many pairs, or runs of each of two arms, show in four of five studies; infinite for one."""
    if runs < 2:
        return math.inf
    # in units of the spread: 12 for two pairs, less for more
    found = optimize.root_scalar(lambda reach: power(reach, 1.0, runs, arms=arms) - POWER, bracket=(0.0, 20.0))
    return spread * found.root


def power(difference: float, spread: float, runs: int, *, arms: int = 1) -> float:
    """How often Student's two-sided test at 0.05 shows a true difference, with its sign: by the noncentral t distribution, exact for normal data.

        P(T > t_0.975),  T of `arms * (runs - 1)` degrees of freedom, noncentral by difference / spread * sqrt(runs)

    Args:
        difference: The truth.
        spread: Standard deviation of the paired differences, or of two arms `sqrt(var_A + var_B)`.
        runs: Pairs, or runs of each arm.
        arms: 1 for pairs, 2 for arms that are not paired.
    """
    if runs < 2:
        return 0.0
    freedom, away = arms * (runs - 1), abs(difference) / spread * math.sqrt(runs)
    bound = float(stats.t.ppf(0.5 + LEVEL / 2, freedom))
    if away > 35.0 + bound:  # where the distribution function is no longer computed, and nothing is left to doubt
        return 1.0
    return float(stats.nct.sf(bound, freedom, away))
