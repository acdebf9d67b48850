"""Show experiences of similar states before each observation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from turnwise.environments.base import Step, Task
from turnwise.rollout.collectors import Collector
from turnwise.rollout.environments import Environments
from turnwise.rollout.models import Models
from turnwise.rollout.stores.recall import Memory, Recalled
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

    Attributes:
        memory: Recalls the experiences.
        reminds: Whether it does.
    """

    def __init__(self, environments: Environments, memory: Memory):
        self._environments, self.memory = environments, memory
        self._played: dict[int, _Played] = {}
        self.reminds = False
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
        if not self.reminds:
            return step
        played = self._played[key]
        if not step.ended and (found := self.memory.recall(step.observation, played.first)):
            lines = lines_of(found, self.memory.store.settings.characters)
            step = with_lines(step, lines)
            played.recalled += [{"turn": played.turns, **each.origin} for each in found[: len(lines)]]
        return dataclasses.replace(step, info={**step.info, RECALLED: list(played.recalled)})

    def close(self, key: int) -> None:
        """Release an environment; see `Environments.close`."""
        self._played.pop(key, None)
        self._environments.close(key)


class Reminded:
    """Play with a collector whose environments remind after the warm-up, in evaluations if the settings say so.

    Args:
        collector: Plays in `environments`.
        environments: Where it plays.
        evaluate: Whether evaluations are reminded.
    """

    def __init__(self, collector: Collector, environments: RemindedEnvironments, evaluate: bool):
        self._collector: Any = collector
        self._environments, self._evaluate = environments, evaluate
        if hasattr(collector, "state_dict"):
            self.state_dict, self.load_state_dict = self._collector.state_dict, self._collector.load_state_dict

    def play(
        self, models: Models, tasks: Sequence[Task], *, group_size: int | None = None, **more: Any
    ) -> list[Trajectory]:
        """Play each task with a group of trajectories; see `Collector.play`. A given group size means evaluation."""
        warm = models.policy.version >= self._environments.memory.store.settings.warm_up
        self._environments.reminds = warm and (group_size is None or self._evaluate)
        return self._collector.play(models, tasks, group_size=group_size, **more)


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
