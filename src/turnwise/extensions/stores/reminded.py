"""Show experiences of similar states before each observation."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.stores.recall import Memory, Recalled
from turnwise.extensions.stores.rows import Row, from_record, to_record
from turnwise.rollout.around import Around
from turnwise.rollout.groups import Collector, TaskBatch
from turnwise.rollout.starts import Start, Within
from turnwise.rollout.trajectory import Trajectory

SUCCESS, FAILURE = "Memory of a success: ", "Memory of a failure: "
"""Prefixes of lines with an experience."""
MEMORY = "memory"
"""Key of the state of a plan with the experiences that it shows."""
RECALLED = "recalled"
"""Key of `info` with the experiences that a trajectory was shown, each with its turn."""


def lines_of(recalled: Sequence[Recalled], characters: int) -> list[str]:
    """Return a line per experience, at most this many characters in total."""
    lines, left = list[str](), characters
    for each in recalled:
        line = f"{SUCCESS if each.row.trajectory.success else FAILURE}{each.advice}"[:left]
        lines += [line] if line else []
        left -= len(line)
    return lines


def with_lines(step: Step, lines: Sequence[str]) -> Step:
    """Return a step with lines before its observation. Its state key stays that of the environment."""
    return dataclasses.replace(step, observation="\n".join([*lines, step.observation]), state_key=step.key)


@dataclasses.dataclass
class _Played:
    first: str
    turns: int = 0
    recalled: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class RemindedEnvironments:
    """Put experiences of similar states before each observation."""

    def __init__(self, environments: Environments, memory: Memory):
        self._environments, self._memory = environments, memory
        self._played: dict[int, _Played] = {}
        self.aclose = environments.aclose

    async def start(self, key: int, task: Task) -> Step:
        """Start a trajectory; see `Environments.start`."""
        step = await self._environments.start(key, task)
        self._played[key] = _Played(step.observation)
        return self._reminded(key, step)

    async def step(self, key: int, response: str) -> Step:
        """Play one response; see `Environments.step`."""
        step = await self._environments.step(key, response)
        self._played[key].turns += 1
        return self._reminded(key, step)

    def _reminded(self, key: int, step: Step) -> Step:
        played = self._played[key]
        if not step.ended and (found := self._memory.recall(step.observation, played.first)):
            lines = lines_of(found, self._memory.store.settings.characters)
            step = with_lines(step, lines)
            played.recalled += [{"turn": played.turns, **each.origin} for each in found[: len(lines)]]
        return dataclasses.replace(step, info={**step.info, RECALLED: list(played.recalled)})

    def close(self, key: int) -> None:
        """Release an environment; see `Environments.close`."""
        self._played.pop(key, None)
        self._environments.close(key)


class Reminded(Around):
    """Show experiences after the warm-up, and in evaluations if the settings say so."""

    def __init__(self, collector: Collector, memory: Memory):
        super().__init__(collector)
        self._memory = memory
        self._at: Memory = Memory(memory.store, memory.store.rows)
        self._rows: Sequence[Row] | None = None  # those with which an earlier process planned

    def put(self, batch: TaskBatch) -> Callable[[Start], Start] | None:
        """Show what is known now, however long the trajectories take; see `Around.put`."""
        settings = self._memory.store.settings
        warm = batch.planned_version >= settings.warm_up
        if not warm or not (batch.training or settings.evaluate):
            return None
        rows = self._memory.store.rows if self._rows is None else self._rows
        memory = self._at = self._at if rows is self._at.kept else Memory(self._memory.store, rows)
        reminded = functools.partial(RemindedEnvironments, memory=memory)
        return lambda start: dataclasses.replace(start, task=Within(start.task, reminded))

    def plan_state(self) -> dict[str, Any]:
        """Return what a plan depends on: the memory too."""
        return {**super().plan_state(), MEMORY: [to_record(row) for row in self._memory.store.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` or `plan_state` returned."""
        rows = state.get(MEMORY)
        self._rows = None if rows is None else tuple(map(from_record, rows))
        super().load_state_dict({name: value for name, value in state.items() if name != MEMORY})


def without_lines(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with the observations of the environment alone, and without what it was shown."""
    shown: list[dict[str, Any]] = trajectory.info.get(RECALLED, [])
    lines = [sum(each["turn"] == number for each in shown) for number in range(len(trajectory.turns))]
    turns = [
        dataclasses.replace(turn, observation=turn.observation.split("\n", number)[number])
        for turn, number in zip(trajectory.turns, lines, strict=True)
    ]
    return dataclasses.replace(
        trajectory, turns=turns, info={k: v for k, v in trajectory.info.items() if k != RECALLED}
    )
