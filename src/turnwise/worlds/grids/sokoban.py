"""Play Sokoban: one trajectory in a room, and a suite of random rooms."""

import copy
import dataclasses
import functools

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.worlds.grids.base import OFFSETS, GridSuite, Map
from turnwise.worlds.grids.rooms import State, random_room, read_map


class SokobanEnvironment:
    """One trajectory in a Sokoban room.

    A response is a move; surrounding white space is ignored. Any other response changes nothing, counts as a step and
    is marked invalid. A move against a wall changes nothing either. Stuck boxes do not end the trajectory.

    Args:
        lines: The map.
        max_steps: The trajectory is truncated after this many steps.
        success_reward: Reward of the step that brings the last box onto a goal; all others are 0.
    """

    def __init__(self, lines: tuple[str, ...], *, max_steps: int = 50, success_reward: float = 10.0):
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1.")
        self.room, self._first = read_map(lines)
        self.max_steps, self.success_reward = max_steps, success_reward
        self.state: State | None = None
        """None before start()."""
        self._steps = 0

    def start(self) -> Step:
        """Start the trajectory; the first observation also lists the moves."""
        self.state, self._steps = self._first, 0
        step = self._answer(self.state, valid=True)
        return dataclasses.replace(step, observation=f"{step.observation}\nActions: {', '.join(OFFSETS)}")

    def step(self, response: str) -> Step:
        """Play a move.

        Raises:
            EnvironmentFault: The trajectory has not begun, or is over.
        """
        if self.state is None or self.room.solved(self.state) or self._steps >= self.max_steps:
            raise EnvironmentFault(f"step() {'before start()' if self.state is None else 'after the end'} of a room.")
        move, self._steps = response.strip(), self._steps + 1
        if move in OFFSETS:
            self.state = self.room.move(self.state, move)
        return self._answer(self.state, valid=move in OFFSETS)

    def copy(self) -> "SokobanEnvironment":
        """Return a copy that plays on by itself."""
        return copy.copy(self)

    def _answer(self, state: State, *, valid: bool) -> Step:
        shown, won = "\n".join(" ".join(line) for line in self.room.draw(state)), self.room.solved(state)
        return Step(
            observation=shown,
            reward=self.success_reward * won,
            terminated=won,
            truncated=not won and self._steps >= self.max_steps,
            valid=valid,
            state_key=shown,
            admissible=tuple(OFFSETS),
            info={"success": won},
        )


class Sokoban(GridSuite):
    """Sokoban in random rooms; splits share no map. Options: num_train, num_valid, and those of `random_room`."""

    def __init__(self, config: EnvironmentConfig, *, num_train: int = 1000, num_valid: int = 256, **options: int):
        super().__init__(functools.partial(random_room, **options), num_train=num_train, num_valid=num_valid)
        self._limits = {"max_steps": config.max_steps, "success_reward": config.success_reward}

    def environment(self, task: Map) -> SokobanEnvironment:
        """Build a fresh environment."""
        return SokobanEnvironment(task.lines, **self._limits)

    def words(self) -> list[str]:
        """Return every word of observations and responses."""
        return [*"#-.$*@+", "Actions", ":", ",", *OFFSETS]

    def state(self, environment: SokobanEnvironment) -> State | None:
        """Return the places of the player and the boxes."""
        return environment.state

    def successors(self, task: Map, state: State) -> dict[str, State]:
        """Return the moves that change the state, with their resulting states."""
        return read_map(task.lines)[0].successors(state)

    def solved(self, task: Map, state: State) -> bool:
        """Return whether every box is on a goal."""
        return read_map(task.lines)[0].solved(state)
