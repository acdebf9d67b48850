"""Measure how long a method's credit takes."""

import time
from collections.abc import Mapping

from turnwise.credit.batch import Batch
from turnwise.credit.transform import Transform

ROUNDS = 5
"""How often each method's credit is timed."""


def time_credit(
    methods: Mapping[str, Transform], batches: Mapping[str, Batch], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Time each method's credit, in milliseconds per 1,000 responses.

    Every round times all methods, so that what else the machine does at that time concerns all of them.

    Args:
        methods: Methods by name.
        batches: Responses by method, with all columns that it needs.
        rounds: Number of times per method.
    """
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, method in methods.items():
            begun = time.perf_counter()
            method.trace(batches[name])
            taken[name].append(1e6 * (time.perf_counter() - begun) / batches[name].num_responses)
    return taken
