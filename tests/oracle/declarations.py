"""Holds a method to what it declares about the expected gradient: every group of small problems, exactly."""

from collections.abc import Iterable, Iterator

import turnwise as tw
from turnwise.credit.analysis.bias import HISTORY, Measurement, measure, problems_of
from turnwise.credit.analysis.decisions import Problem
from turnwise.credit.analysis.groups import sees_one_group, sees_order

TOLERANCE = 1e-10  # sums of thousands of groups of float64 terms of order 1
NOT_PARALLEL = 1e-6  # least 1 - cosine that counts as biased; rounding gives 1e-15
MOST_GROUPS = 4000  # in one batch
MOST_BATCHES = 400  # of one group each


def num_ordered(problem: Problem, size: int) -> int:
    return max(map(len, problem.trajectories)) ** size


def measured(method: tw.Transform) -> Iterator[Measurement]:
    """Measure a method, the cheap cases first: all groups of two and three in every order, then those of the tables.

    A method with state is measured at its first step and later.
    """
    apart = sees_one_group(method)
    for history in (0, HISTORY) if method.init else (0,):
        for size in (2, 3):
            for problem in problems_of(method):
                if num_ordered(problem, size) <= (MOST_BATCHES if apart else MOST_GROUPS):
                    yield measure(method, problem, size, ordered=True, history=history)
    if not apart and not sees_order(method):
        for problem in problems_of(method):
            yield measure(method, problem, problem.size)


def check_declaration(gradient: tw.Gradient | None, measurements: Iterable[Measurement]) -> None:
    """Raise AssertionError unless the measurements are what the declaration says; stops where a declared bias shows."""
    assert gradient is not None, "a published method declares its gradient"
    if gradient.kind == "biased":
        assert gradient.reason, "say why it is biased"
        seen: list[Measurement] = []
        for m in measurements:
            seen.append(m)
            if m.cosine < 1 - NOT_PARALLEL:
                return
        raise AssertionError("declared biased, but is parallel:\n" + "\n".join(map(str, seen)))
    every = list(measurements)
    report = "\n".join(map(str, every))
    assert max(m.error for m in every) < TOLERANCE, f"declared {gradient}, but is not parallel:\n{report}"
    if gradient.kind == "scaled":
        assert gradient.factor is not None, "a scaled gradient needs its factor"
        assert gradient.formula, "a scaled gradient needs its formula"
    for m in every:
        expected = gradient.factor(m.size) if gradient.factor is not None else 1.0
        assert abs(m.factor - expected) < TOLERANCE, f"declared {gradient}, expected x {expected}:\n{report}"
