"""Measure what a method's credit costs: milliseconds of the processor, and services that compute tokens for it."""

import time
from collections.abc import Mapping

from turnwise.batch import Batch
from turnwise.measures.lacking import OPTIONAL
from turnwise.measures.plan import SERVICES, plan_measures
from turnwise.objective.values import CRITIC_COLUMNS
from turnwise.transform import Transform

ROUNDS = 5
"""How often each method's credit is timed."""


def time_credit(methods: Mapping[str, Transform], batch: Batch, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Time each method's credit, in milliseconds per 1,000 responses.

    Every round times all methods, so that what else the machine does at that time concerns all of them.

    Args:
        methods: Methods by name.
        batch: Responses with all columns that the methods need.
        rounds: Number of times per method.
    """
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, method in methods.items():
            begun = time.perf_counter()
            method.trace(batch)
            taken[name].append(1e6 * (time.perf_counter() - begun) / batch.num_responses)
    return taken


def token_services(method: Transform) -> list[str]:
    """Name the services that compute tokens for a method which GRPO does not need: "probe", "judge", "continuations".

    Values come from a critic, where it can estimate them: it computes none.

    Raises:
        ConfigError: No measure provides a column that the method needs.
    """
    needs = [column for column in method.needs if column not in CRITIC_COLUMNS]
    plan = plan_measures({method.name: needs}, models=OPTIONAL)
    return sorted(plan.models.intersection(SERVICES))
