"""Measure bias and variance of a method's policy gradient in small problems, exactly by enumeration.

A group of K gives the estimate `g = 1/K sum_i sum_t A_it grad log pi(a_it)`. The averages below are sums over all
groups, weighted by their probability, and means over the problem's prompts:

    cosine     between E[g] and grad J
    factor     E[g] . grad J / |grad J|^2, the progress of E[g] along grad J
    bias       |c E[g] - grad J| / |grad J| with the best c: what no learning rate can correct
    raw_bias   |E[g] - grad J| / |grad J|
    variance   K * trace Cov(g) / |grad J|^2, the variance per trajectory
    noise      variance / factor^2, the variance at equal progress along grad J

The covariance is over the groups of a given prompt, because no method affects which prompts are drawn. Twice the noise
needs twice as many trajectories for an equally good estimate.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from turnwise.credit.analysis.decisions import PROBLEMS, Problem
from turnwise.credit.analysis.groups import enumerate_groups, sees_one_group, sees_order
from turnwise.credit.methods import METHODS, rloo
from turnwise.credit.transform import Transform, trial


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """Bias and variance of one method in one problem; the module docstring defines the numbers."""

    problem: str  # name of the problem
    size: int  # group size K
    cosine: float  # cosine in [-1, 1]; 0 if the expected update is 0
    factor: float  # progress along the gradient; 1 for an unbiased method
    # Largest component of `E[g] - factor * grad J`, relative to the largest of grad J; 0 for an unbiased or scaled
    # method
    error: float
    raw_bias: float  # relative difference from the gradient; 0 for an unbiased method
    variance: float  # variance per trajectory
    rloo_noise: float  # RLOO's noise in the same problem, at the same size

    @property
    def bias(self) -> float:
        """Return the bias: 0 for an unbiased or scaled method, 1 for one without progress along grad J."""
        return float(np.sqrt(max(0.0, 1.0 - self.cosine**2))) if self.cosine > 0 else 1.0

    @property
    def noise(self) -> float:
        """Return the variance at equal progress; infinite without progress."""
        return self.variance / self.factor**2 if self.factor > 0 else float("inf")

    @property
    def noise_vs_rloo(self) -> float:
        """Return the noise as a multiple of RLOO's: the trajectories needed where RLOO needs one."""
        return self.noise / self.rloo_noise

    def __str__(self) -> str:
        return f"{self.problem}, K = {self.size}: cosine {self.cosine:.6f}, length x {self.factor:.6f}"


def measure(method: Transform, problem: Problem, size: int, *, ordered: bool = False, history: int = 0) -> Measurement:
    """Measure a method on all groups of one size.

    Args:
        method: Any method or chain.
        problem: Problem to measure in.
        size: Group size K.
        ordered: Enumerate the orders of a group separately, which is slower. Needed only for methods that depend on the
            order or draw at random; always on for methods that read `rank`.
        history: Number of groups that a method with state has seen before.
    """
    mean, variance = _moments(method, problem, size, ordered or sees_order(method), history)
    true = problem.gradient
    factor = float(mean @ true / (true @ true))
    length = float(np.sqrt(mean @ mean) * np.sqrt(true @ true))
    return Measurement(
        problem.name,
        size,
        cosine=float(mean @ true / length) if length > 0 else 0.0,
        factor=factor,
        error=float(np.abs(mean - factor * true).max() / np.abs(true).max()),
        raw_bias=float(np.sqrt((mean - true) @ (mean - true) / (true @ true))),
        variance=size * variance / float(true @ true),
        rloo_noise=_rloo_noise(problem, size),
    )


def _moments(
    method: Transform, problem: Problem, size: int, ordered: bool = False, history: int = 0
) -> tuple[np.ndarray, float]:
    """Compute the expectation of g, and the trace of its covariance given the prompt."""
    means, traces = [], []
    for groups in enumerate_groups(problem, size, ordered):
        update = groups.updates(method, history=history)
        means.append(groups.chance_G @ update)
        traces.append(groups.chance_G @ ((update - means[-1]) ** 2).sum(axis=1))
    return np.mean(means, axis=0), float(np.mean(traces))


@functools.cache
def _rloo_noise(problem: Problem, size: int) -> float:
    return size * _moments(rloo(), problem, size)[1] / float(problem.gradient @ problem.gradient)


HISTORY = 16
"""Number of groups that a method with state has seen before it is measured for the tables."""


def problems_of(method: Transform) -> list[Problem]:
    """List the problems for a method. Methods that read `success` are measured only where success is the return."""
    return [problem for problem in PROBLEMS.values() if problem.outcome_only or "success" not in method.needs]


def size_of(method: Transform, problem: Problem) -> int:
    """Return K of the tables: the problem's, or 2 for methods that need one batch per group, or every order."""
    return 2 if sees_one_group(method) or sees_order(method) else problem.size


@dataclasses.dataclass(frozen=True, slots=True)
class BiasRow:
    """Measurements of a method, one per problem."""

    name: str
    method: Transform
    measured: Sequence[Measurement]

    @property
    def worst(self) -> Measurement:
        """Return the measurement with the worst direction."""
        return min(self.measured, key=lambda m: m.cosine)


def rows(methods: Mapping[str, Transform] | None = None, *, only: str | None = None) -> Iterator[BiasRow]:
    """Measure methods in all their problems, one at a time.

    Args:
        methods: Name to method; default the published ones.
        only: Name of the single problem to measure in; default all.
    """
    methods = methods if methods is not None else {name: trial(make) for name, make in METHODS.items()}
    for name, method in methods.items():
        problems = [problem for problem in problems_of(method) if only in (None, problem.name)]
        yield BiasRow(name, method, [measure(method, w, size_of(method, w), history=HISTORY) for w in problems])
