"""Compare credit with the truth: the cosine between a method's advantages and the true ones.

    fidelity = <A, A*> / (|A| |A*|)        over the responses of some groups

A* comes from continuations drawn independently of the trajectories whose outcomes A contains, so its noise is
independent of A: the numerator needs no correction. In the denominator, the variance of the estimates is subtracted
from |A*|^2, which equals splitting the continuations into halves in all ways and multiplying the halves. With
independent states, a method needs 1 / fidelity^2 times as many responses as perfect credit.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from scipy import stats

from turnwise.base.errors import RunError
from turnwise.base.shapes import Float
from turnwise.credit.segments import Segments
from turnwise.lab.diagnostics.statistics import LEVEL, Interval
from turnwise.lab.diagnostics.values import Truth

Sums = Float[np.ndarray, "G 3"]
"""Sums over the responses of each group: <A, A*>, <A, A>, |A*|^2."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fidelities:
    """Fidelity of several methods on the same responses."""

    by_method: dict[str, Interval]  # fidelity of each method
    # Fidelity minus that of the first method, paired by group; without the first one itself
    above_first: dict[str, Interval]


@dataclasses.dataclass(frozen=True, slots=True)
class Importance:
    """How much is decided by one kind of response."""

    kind: str
    share: float  # share of all responses
    square: Interval  # mean squared true advantage
    alpha: float  # mean coefficient that modulation by entropy gives these responses
    fidelities: Fidelities | None  # of each method on these responses alone; None if nothing is known to be decided


def measure_fidelity(credit: Mapping[str, Float[np.ndarray, " R"]], truth: Truth, groups: Segments) -> Fidelities:
    """Measure how close each method's advantages are to the true ones.

    Args:
        credit: `[responses]` advantages by method; the first method is what others are compared with.
        truth: True advantages of the same responses; unknown ones are left out.
        groups: Segments of the responses, one per group.

    Raises:
        RunError: There are fewer than three groups, or the true advantages do not differ significantly from zero.
    """
    return compare({name: group_sums(advantage_R, truth, groups) for name, advantage_R in credit.items()})


def compare(sums: Mapping[str, Sums]) -> Fidelities:
    """Compute the cosine of each method over all groups, with intervals by the jackknife over groups.

    Args:
        sums: Sums over each group, by method; the first method is what others are compared with.

    Raises:
        RunError: There are fewer than three groups, or the true advantages are no larger than their noise.
    """
    num_groups = len(next(iter(sums.values())))
    if num_groups < 3:
        raise RunError(f"{num_groups} groups, expected 3 or more for an interval; raise --groups")
    square = next(iter(sums.values()))[:, 2].sum()
    if square <= 0:
        raise RunError(
            "the true advantages are no larger than their noise: all histories are worth the same, or the estimates "
            "are too noisy; raise --continuations or --groups"
        )
    totals = {name: table.sum(0) for name, table in sums.items()}
    return with_intervals({name: (float(cosine(totals[name])), cosine(totals[name] - sums[name])) for name in sums})


def with_intervals(found: Mapping[str, tuple[float, Float[np.ndarray, " G"]]]) -> Fidelities:
    """Return statistics with intervals by the jackknife over groups, and their differences to the first method.

    Args:
        found: By method, the statistic over all groups, and without each group in turn.
    """
    first, (value, values_G) = next(iter(found.items()))
    num_groups = len(values_G)
    return Fidelities(
        {name: jackknife_interval(*one, num_groups) for name, one in found.items()},
        {
            name: jackknife_interval(other - value, others_G - values_G, num_groups)
            for name, (other, others_G) in found.items()
            if name != first
        },
    )


def group_sums(advantage_R: Float[np.ndarray, " R"], truth: Truth, groups: Segments) -> Sums:
    """Sum the products that make the cosine, by group."""
    known_R = truth.known_R
    products = (advantage_R * truth.advantage_R, advantage_R**2, truth.square_R)
    return np.stack([groups.sum(np.where(known_R, product, 0.0)) for product in products], axis=1)


def cosine(totals: Float[np.ndarray, "... 3"]) -> np.ndarray:
    """Compute fidelity from totals over groups; 0 for a method without any credit, or without any truth."""
    size = np.sqrt(totals[..., 1] * np.maximum(totals[..., 2], 0.0))
    return np.divide(totals[..., 0], size, out=np.zeros_like(size), where=size > 0)


def importance(
    kind: str,
    of_R: np.ndarray,
    truth: Truth,
    alpha_R: Float[np.ndarray, " R"],
    groups: Segments,
    credit: Mapping[str, Float[np.ndarray, " R"]],
) -> Importance:
    """Average the squared true advantage over one kind of response, and measure fidelity there.

    Args:
        kind: Name of the kind.
        of_R: `[responses]` bool, those of the kind.
        truth: True advantages.
        alpha_R: `[responses]` coefficients of modulation by entropy.
        groups: Segments of the responses, one per group; the unit of the interval.
        credit: `[responses]` advantages by method, as in `measure_fidelity`.
    """
    there = Truth(np.where(of_R, truth.advantage_R, np.nan), truth.variance_R)
    square_G = groups.sum(np.where(there.known_R, there.square_R, 0.0))
    count_G = groups.sum(there.known_R.astype(float))
    without_G = (square_G.sum() - square_G) / np.maximum(count_G.sum() - count_G, 1.0)
    value = float(square_G.sum() / max(count_G.sum(), 1.0))
    return Importance(
        kind,
        float(of_R.mean()),
        jackknife_interval(value, without_G, len(groups)).within(0.0, np.inf),  # the mean of squares
        float(alpha_R[of_R].mean()),
        measure_fidelity(credit, there, groups) if credit and value > 0.0 else None,
    )


def jackknife_interval(value: float, without_G: np.ndarray, num_groups: int) -> Interval:
    """Return the interval of a statistic by the jackknife over groups and Student's t.

    Args:
        value: The statistic.
        without_G: `[groups]` the same without each group in turn.
        num_groups: Number of groups.
    """
    error = float(np.sqrt((num_groups - 1) * without_G.var()))
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, num_groups - 1)) * error
    p = float(2 * stats.t.sf(abs(value) / error, num_groups - 1)) if error > 0 else float(value == 0.0)
    return Interval(value, value - reach, value + reach, p)
