"""Provide the columns that cost tokens: from probes, the first policy, and continuations.

Critics are separate (`turnwise.lab.diagnostics.critics`): they read what is computed anyway.
"""

import time
from collections.abc import Mapping, Sequence

from turnwise.credit.batch import Batch
from turnwise.credit.transform import Transform
from turnwise.environments.base import Task
from turnwise.extensions.continuations.play import Continuations
from turnwise.extensions.continuations.settings import ContinuationsConfig
from turnwise.lab.diagnostics.stage import Stage
from turnwise.measures.base import Measure
from turnwise.measures.plan import plan_measures
from turnwise.objective.values import CRITIC_COLUMNS
from turnwise.rollout.trajectory import Trajectory

ROUNDS = 5
"""How often each method's credit is timed."""


def time_credit(
    methods: Mapping[str, Transform], batches: Mapping[str, Batch], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Time each method's credit, in milliseconds per 1,000 responses.

    Every round times all methods, so that other load on the machine affects all of them.

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


OWN = ["continuations"]
"""What an analysis can provide in addition to probes and the first policy."""


def paid_measures(method: Transform, name: str = "") -> list[Measure]:
    """Return the measures that compute tokens for a method which GRPO does not need.

    Values alone come from a critic; a method that pays for other columns gets them from continuations.

    Raises:
        ConfigError: A column cannot be measured without training.
    """

    def of(needs: Sequence[str]) -> list[Measure]:
        plan = plan_measures({f"method {name or method.name!r}": needs}, models=OWN)
        return [each for each in plan.measures if each.model not in ("", "policy")]

    return of(method.needs) if of([column for column in method.needs if column not in CRITIC_COLUMNS]) else []


def plays_on(method: Transform) -> bool:
    """Whether a method needs its own continuations, which cost about as much as the truth."""
    return any(each.model == "continuations" for each in paid_measures(method))


def take_paid(
    stage: Stage,
    methods: Mapping[str, Transform],
    columns: Sequence[str],
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    seed: int,
) -> tuple[Batch, dict[str, float]]:
    """Take the measures that some methods pay for, once for all of them.

    Continuations follow the run's `[continuations]`, by default 9 per history, apart from those of the truth.

    Args:
        stage: Plays and scores.
        methods: Methods by name.
        columns: Columns that the batch has in addition to theirs.
        trajectories: Trajectories.
        tasks: Task of each group.
        seed: Seed of the continuations.

    Returns:
        The batch, and the tokens computed for each method per response: read and generated, but for continuations only
        the generated ones.
    """
    needs = {"this analysis": columns, **{f"method {name!r}": method.needs for name, method in methods.items()}}
    plan = stage.plan(needs, models=OWN)
    settings = stage.config.section(ContinuationsConfig) or ContinuationsConfig()
    played_on = Continuations(
        settings, stage.config.rollout, stage.environments, stage.models, seed=seed, on_turn=stage.on_turn
    )
    batch, _, metrics = stage.measure(plan, trajectories, tasks, played_on)
    return batch, {
        name: sum(metrics[f"{each.name}_tokens"] for each in paid_measures(method)) / batch.num_responses
        for name, method in methods.items()
    }
