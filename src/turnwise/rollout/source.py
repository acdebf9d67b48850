"""Collect the experience of a step: choose tasks, play them, filter the groups, and refill."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.environments.base import Task
from turnwise.rollout.collectors import Collector, OnTurn
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.models import Models
from turnwise.rollout.selection import TaskSelector, build_selector, kept
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Experience:
    """Trajectories that a step has played.

    Attributes:
        trajectories: All trajectories, those of a group adjacent, groups numbered from 0.
        used_N: `[trajectories]` bool, those that the step learns from: usable ones of groups that pass the filter.
        metrics: Rollout metrics over all trajectories.
    """

    trajectories: list[Trajectory]
    used_N: np.ndarray
    metrics: dict[str, float]

    @property
    def usable(self) -> bool:
        """Whether any trajectory is usable, even if the filter dropped it."""
        return any(trajectory.usable for trajectory in self.trajectories)

    @property
    def used(self) -> list[Trajectory]:
        """Trajectories that the step learns from."""
        return list(itertools.compress(self.trajectories, self.used_N))

    def recorded(self, columns: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
        """Expand columns of used responses to columns of all recorded responses, with None for unused ones."""
        used = np.repeat(self.used_N, [max(1, len(trajectory.turns)) for trajectory in self.trajectories])
        result = {}
        for name, values in columns.items():
            filled: list[float | None] = [None] * len(used)
            for row, value in zip(np.flatnonzero(used), values, strict=True):
                filled[row] = float(value)
            result[name] = filled
        return result


class Source:
    """Collect the experience of each step, and remember which tasks were played.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        selector: Chooses the tasks; default: the one that `rollout.select` names.
    """

    def __init__(self, tasks: Sequence[Task], settings: RolloutConfig, seed: int, selector: TaskSelector | None = None):
        name, options = settings.select.name, settings.select.model_extra or {}
        self._tasks, self._settings, self._seed = tasks, settings, seed
        self._selector = selector or build_selector(name, options, num_tasks=len(tasks), seed=seed)

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Play batches of tasks until `rollout.groups` groups pass `rollout.filter`, at most `rollout.max_batches`.

        Without a filter, one batch is enough. Groups beyond `rollout.groups` are dropped, as in DAPO's release, so that
        all steps have equal size. A batch without usable trajectories ends the step, because further ones would fail
        too.
        """
        settings = self._settings
        max_batches = 1 if settings.filter == "none" else settings.max_batches
        order = self._selector.choose(step)
        chosen: list[int] = []
        trajectories: list[Trajectory] = []
        num_batches = 0
        while True:
            numbers = list(itertools.islice(order, settings.groups))
            seed = (self._seed * 100_003 + step) * max_batches + num_batches  # no two batches of a run share one
            played = collector.play(models, [self._tasks[number] for number in numbers], seed=seed, on_turn=on_turn)
            for trajectory in played:
                trajectory.group += len(chosen)
            num_batches += 1
            chosen += numbers
            trajectories += played
            successes_G, failures_G = _outcomes(trajectories, len(chosen))
            kept_G = kept(settings.filter, successes_G, failures_G)
            broken = not any(trajectory.usable for trajectory in played)
            if broken or num_batches == max_batches or kept_G.sum() >= settings.groups:
                break
        self._selector.observe(np.array(chosen), successes_G, failures_G)
        used_G = kept_G & (np.cumsum(kept_G) <= settings.groups)
        metrics = rollout_metrics(trajectories) | {
            "batches": float(num_batches),
            "kept_frac": float(kept_G.mean()),
            "filled_frac": float(used_G.sum() / settings.groups),
        }
        used_N = np.array([trajectory.usable and used_G[trajectory.group] for trajectory in trajectories], dtype=bool)
        return Experience(trajectories, used_N, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of task selection, for checkpoints."""
        return self._selector.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._selector.state = state


def _outcomes(trajectories: Sequence[Trajectory], num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Count successes and failures of each group, `[groups]` int each; unusable trajectories count as neither."""
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    group_N = np.array([trajectory.group for trajectory in usable], dtype=np.int64)
    success_N = np.array([trajectory.success for trajectory in usable], dtype=bool)
    successes_G = np.bincount(group_N[success_N], minlength=num_groups)
    return successes_G, np.bincount(group_N, minlength=num_groups) - successes_G
