"""Limit the turns of trajectories: a fixed number, or a quantile of past turn counts, extended while they progress.

A limit truncates a trajectory as an environment's own limit does. Draws do not depend on it, so a trajectory with a
limit is the beginning of the one without, up to the extensions.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.turn_budget.settings import TurnBudgetConfig
from turnwise.rollout.around import Around
from turnwise.rollout.groups import Collector, Group, TaskBatch
from turnwise.rollout.metrics import CUT
from turnwise.rollout.starts import Start, Within, wrappers
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.extension import Context, Extension

BEGIN = "step-000000"
"""Name of the checkpoint before the first step."""
LEAST_COUNTS = 16
"""Turn counts that a quantile needs; with fewer, there is no limit."""


def stops_after(progress: Sequence[bool], limit: int, extend: int) -> bool:
    """Return whether a trajectory stops after its last turn so far.

    It stops at the limit. With `extend`, it continues there, and after every further `extend` turns, if any of its last
    `extend` turns made progress.

    Args:
        progress: Whether each turn so far made progress.
        limit: Number of turns, from 1.
        extend: Turns by which to extend; 0: never.
    """
    over = len(progress) - limit
    if over < 0 or (extend and over % extend):
        return False
    return not extend or not any(progress[-extend:])


class TurnProgress:
    """Judge whether each turn made progress: a reward above 0, or a state that is new to the trajectory.

    A response that the environment does not accept makes no progress.
    """

    def __init__(self, state: Hashable):
        self._seen: set[Hashable] = {state}
        self.turns: list[bool] = []

    def add(self, state: Hashable, reward: float, valid: bool) -> None:
        """Add a turn: the state that it led to, its reward, and whether the environment accepted it."""
        self.turns.append(valid and (reward > 0 or state not in self._seen))
        self._seen.add(state)


def turns_within(trajectory: Trajectory, limit: int, extend: int) -> int:
    """Return how many turns a limit would have left of a trajectory played without one."""
    turns = trajectory.turns
    after = [turn.state_key for turn in turns[1:]] + [None]  # nothing depends on the state after the last turn
    progress = TurnProgress(turns[0].state_key)
    for turn, state in zip(turns, after, strict=True):
        progress.add(state, turn.reward, turn.valid)
        if stops_after(progress.turns, limit, extend):
            break
    return len(progress.turns)


def quantile_of(counts: Sequence[int], quantile: float) -> int:
    """Return the number of turns that this share of the trajectories did not exceed."""
    return int(np.quantile(counts, quantile, method="higher"))


class TurnBudget:
    """Know the current limit.

    Attributes:
        counts: Turns of past trajectories without a limit, oldest first, at most `settings.history`.
    """

    def __init__(self, settings: TurnBudgetConfig):
        self.settings = settings
        self.counts: list[int] = []

    @property
    def limit(self) -> int | None:
        """Turns of a trajectory before extensions; None: no limit."""
        if self.settings.name == "fixed":
            return self.settings.turns
        if len(self.counts) < LEAST_COUNTS:
            return None
        return quantile_of(self.counts, self.settings.quantile)

    def is_free(self, number: int) -> bool:
        """Whether the trajectory of this number has no limit, so that long ones stay in the quantile."""
        return self.settings.name == "quantile" and number % self.settings.free_every == 0

    def learn(self, counts: Sequence[int]) -> None:
        """Add turn counts of trajectories without a limit."""
        self.counts = [*self.counts, *counts][-self.settings.history :]

    def state_dict(self) -> dict[str, Any]:
        """Return the turn counts."""
        return {"counts": list(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the turn counts."""
        self.counts = [int(count) for count in state["counts"]]


class BudgetedEnvironments:
    """Truncate trajectories at a limit.

    Args:
        environments: Where they are played.
        limit: Turns from the start of a task; None: no limit.
        extend: Turns by which a progressing trajectory is extended.
        given: Given turns; at least one more is played.
    """

    def __init__(self, environments: Environments, limit: int | None, extend: int, given: int = 0):
        self._environments, self._extend = environments, extend
        self._limit = None if limit is None else max(limit, given + 1)
        self._live: dict[int, TurnProgress] = {}
        self.close, self.aclose = environments.close, environments.aclose

    async def start(self, key: int, task: Task) -> Step:
        """Start a trajectory; see `Environments.start`."""
        step = await self._environments.start(key, task)
        self._live[key] = TurnProgress(step.key)
        return step

    async def step(self, key: int, response: str) -> Step:
        """Play one response, and truncate the trajectory at its limit; see `Environments.step`."""
        step = await self._environments.step(key, response)
        progress = self._live[key]
        progress.add(step.key, step.reward, step.valid)
        if step.ended or self._limit is None:
            return step
        if stops_after(progress.turns, self._limit, self._extend):
            return dataclasses.replace(step, truncated=True, info={**step.info, CUT: self._limit})
        return step


@dataclasses.dataclass(frozen=True, slots=True)
class Limited:
    """Put a limit around a trajectory; see `BudgetedEnvironments` for the attributes."""

    limit: int | None
    extend: int
    given: int = 0
    free: bool = False  # whether the trajectory has no limit, so that its turns count

    def ends(self, turns: Sequence[Turn], state: Hashable) -> dict[str, Any] | None:
        """Return the `info` of a harness's trajectory that ends here; None: it continues.

        Args:
            turns: Its turns so far.
            state: State after them.
        """
        if self.free or self.limit is None or not turns:
            return None
        limit, progress = max(self.limit, self.given + 1), TurnProgress(turns[0].state_key)
        for turn, after in zip(turns, [*(turn.state_key for turn in turns[1:]), state], strict=True):
            progress.add(after, turn.reward, turn.valid)
        return {CUT: limit} if stops_after(progress.turns, limit, self.extend) else None

    def __call__(self, environments: Environments) -> Environments:
        """Return environments with the limit."""
        return BudgetedEnvironments(environments, None if self.free else self.limit, self.extend, self.given)


class Budgeted(Around):
    """Play with a collector under a turn budget, which learns from the trajectories that training plays without one."""

    def __init__(self, collector: Collector, budget: TurnBudget):
        super().__init__(collector)
        self.budget = budget

    def put(self, batch: TaskBatch) -> Callable[[Start], Start]:
        """Put the current limit around trajectories, in training with exceptions; see `Around.put`."""
        limit = self.budget.limit

        def put(start: Start) -> Start:
            return self._limited(start, limit, free=batch.training and self.budget.is_free(start.conversation or 0))

        return put

    def put_given(self, start: Start) -> Start:
        """Put the current limit around a trajectory with given turns; see `Around.put_given`."""
        return self._limited(super().put_given(start), self.budget.limit)

    def _limited(self, start: Start, limit: int | None, *, free: bool = False) -> Start:
        limited = Limited(limit, self.budget.settings.extend, len(start.turns), free)
        return dataclasses.replace(start, task=Within(start.task, limited))

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Record the turns of trajectories without a limit; see `Collector.learn`."""
        super().learn(played)
        free = [each for _, own in played for each in own if _is_free(each.played)]
        ended = [each for each in free if each.usable and each.ended in ("terminated", "truncated")]
        self.budget.learn([len(trajectory.turns) for trajectory in ended])

    def state_dict(self) -> dict[str, Any]:
        """Return the turn counts, and the state of the collector."""
        return {**super().state_dict(), **self.budget.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self.budget.load_state_dict(state)


def limit_of(task: Task) -> Limited | None:
    """Return the limit that is put around a task, if any."""
    return next((each for each in wrappers(task) if isinstance(each, Limited)), None)


def _is_free(task: Task) -> bool:
    limited = limit_of(task)
    return limited is not None and limited.free


def restore_budget(budget: Any, states: Mapping[str, Any], run: object) -> None:
    """Give a budget, or its collector, the turn counts of a checkpoint, so that it has training's limit.

    Raises:
        ConfigError: There are none.
    """
    state = states.get("collector") or {}
    if not state.get("counts"):
        raise ConfigError(
            "rollout.turn_budget.name='quantile' needs the turns of past trajectories, and this checkpoint of "
            f"{run} has none; set rollout.turn_budget.name=fixed with rollout.turn_budget.turns"
        )
    budget.load_state_dict(state)


class TurnBudgetExtension(Extension):
    """Play under the limit of `rollout.turn_budget`."""

    def __init__(self, key: str, settings: Any, context: Context):
        super().__init__(key, settings, context)
        self._budget = TurnBudget(settings)
        self.evaluates_with_state = settings.name == "quantile"

    def collector(self, collector: Collector) -> Collector:
        """Return a collector whose trajectories end at the limit."""
        return Budgeted(collector, self._budget)

    def restore(self, checkpoint: Path, states: Mapping[str, Any], run: Path) -> None:
        """Take the turns of training's trajectories from a checkpoint."""
        if self.evaluates_with_state and checkpoint.name != BEGIN:  # there training has no limit either
            restore_budget(self._budget, states, run)
