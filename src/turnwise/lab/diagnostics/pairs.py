"""Pair the episodes of two runs: those of the same task and seed, or all attempts of two logs at the same tasks."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from turnwise.base.errors import RunError
from turnwise.credit.segments import Labels
from turnwise.environments.settings import IMPORTED
from turnwise.lab.diagnostics.runs import MEAN, RunLog
from turnwise.train.evaluation.outcomes import Episode

Episodes = Mapping[Episode, Mapping[str, Any]]
"""What is recorded of each episode of a run."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Hold two runs with the same environment and seed.

    Attributes:
        seed: Seed shared by both.
        a: Success of A on the episodes that both completed.
        b: Success of B on the same episodes.
        by_task: `[tasks]` success of A minus B, averaged over the episodes of a task; one number if only means exist.
    """

    seed: int
    a: float
    b: float
    by_task: np.ndarray


def make_pair(seed: int, a: Episodes, b: Episodes, runs: tuple[RunLog, RunLog], notes: list[str]) -> Pair:
    """Pair the episodes of two runs of a seed; `notes` gets what was left out.

    Raises:
        RunError: They have no episode in common.
    """
    if MEAN in a or MEAN in b:
        means = mean_of(a), mean_of(b)  # only the mean of one is recorded
        return Pair(seed, *means, np.array([means[0] - means[1]]))
    whose = f"{runs[0].folder.path} and {runs[1].folder.path}"
    if logs := [run for run in runs if run.config.environment.name == IMPORTED]:
        if not {task for task, _, _ in a} & {task for task, _, _ in b}:
            raise RunError(f"{whose} have no task in common; compare logs of the same tasks")
        if (batches := max(run.config.run.steps for run in logs)) > 1:
            notes.append(f"one batch of a log of {batches} is compared; --step chooses it")
        return _pair_of_logs(seed, a, b, notes)
    common = sorted(a.keys() & b.keys())
    if not common:
        raise RunError(f"{whose} have no episode in common; evaluate both with one --panel")
    success = np.array([[side[episode]["success"] for episode in common] for side in (a, b)], dtype=np.float64)
    tasks = Labels.of(np.unique([task for task, _, _ in common], return_inverse=True)[1])
    return Pair(seed, float(success[0].mean()), float(success[1].mean()), tasks.mean(success[0] - success[1]))


def _pair_of_logs(seed: int, a: Episodes, b: Episodes, notes: list[str]) -> Pair:
    """Compare all attempts at each task: the first one of A has nothing to do with the first one of B."""
    means, counts = [], []
    for side in (a, b):
        by_task: dict[str, list[float]] = defaultdict(list)
        for (task, _, _), row in side.items():
            by_task[task].append(row["success"])
        means.append({task: float(np.mean(each)) for task, each in by_task.items()})
        counts.append({task: len(each) for task, each in by_task.items()})
    common = sorted(means[0].keys() & means[1].keys())
    if alone := len(means[0].keys() ^ means[1].keys()):
        notes.append(f"{alone} task{'s' * (alone > 1)} that only one log has left out")
    numbers = [sum(count[task] for task in common) for count in counts]
    if any(counts[0][task] != counts[1][task] for task in common):
        notes.append(f"A has {numbers[0]} attempts at the common tasks and B {numbers[1]}; every task counts once")
    one, other = (np.array([mean[task] for task in common]) for mean in means)
    return Pair(seed, float(one.mean()), float(other.mean()), one - other)


def mean_of(played: Episodes) -> float:
    """Return the mean success of episodes; nan without any."""
    return float(np.mean([row["success"] for row in played.values()])) if played else math.nan
