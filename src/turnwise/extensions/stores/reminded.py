"""Show experiences of similar states before each observation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.around import Around
from turnwise.extensions.stores.recall import Memory, Recalled
from turnwise.rollout.groups import Batch, Collector, Group
from turnwise.rollout.trajectory import Trajectory

SUCCESS, FAILURE = "Memory of a success: ", "Memory of a failure: "
"""What the lines with an experience begin with."""
RECALLED = "recalled"
"""Key of `info` with the experiences that a trajectory was shown, each with its turn."""


def lines_of(recalled: Sequence[Recalled], characters: int) -> list[str]:
    """Return a line per experience, at most this many characters in all."""
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
    """Put experiences of similar states before each observation.

    Args:
        environments: Where trajectories are played.
        memory: Recalls the experiences.
    """

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
    """Remind of experiences after the warm-up, in evaluations if the settings say so.

    Args:
        collector: Plays.
        memory: Recalls the experiences.
    """

    def __init__(self, collector: Collector, memory: Memory):
        super().__init__(collector)
        self._memory = memory

    async def plan(self, batch: Batch) -> list[Group]:
        """Divide a batch into its groups, whose environments remind; see `Collector.plan`."""
        groups, settings = await super().plan(batch), self._memory.store.settings
        warm = batch.models.policy.version >= settings.warm_up
        if not warm or not (batch.training or settings.evaluate):
            return groups
        return [
            dataclasses.replace(group, environments=RemindedEnvironments(group.environments, self._memory))
            for group in groups
        ]


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
