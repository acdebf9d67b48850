"""Play gymnasium's FrozenLake on random maps: walk over the ice to the goal, around the holes.

    @ F F H      the agent (here on the start, S), frozen places, a hole
    F H F F
    F F F H
    H F F G      the goal

Each map is new to the policy, which must read the way from it.
"""

import dataclasses
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Step
from turnwise.environments.needs import needed
from turnwise.environments.settings import EnvironmentConfig
from turnwise.worlds.adapters.gymnasium import EXTRA, GymnasiumEnvironment
from turnwise.worlds.grids.base import OFFSETS, GridSuite, Map, Place

GAME = "gymnasium.envs.toy_text.frozen_lake"
DRAWS = 1000
"""Maximum number of draws until a map has a way to the goal."""


def random_lake(seed: int, *, size: int = 4, frozen_frac: float = 0.8) -> tuple[str, ...]:
    """Draw a map with a way to the goal, equal to gymnasium's map for the same seed.

    Args:
        seed: Seed of the draw.
        size: Rows and columns.
        frozen_frac: Probability that a place is not a hole.
    """
    if size < 2 or not 0 < frozen_frac <= 1:
        raise ConfigError(
            f"frozen_lake has size={size} and frozen_frac={frozen_frac}; expected 2 or more, and above 0 up to 1"
        )
    game = needed(GAME, extra=EXTRA, by="frozen_lake")
    generator, _ = needed("gymnasium.utils.seeding", extra=EXTRA, by="frozen_lake").np_random(seed)
    for _ in range(DRAWS):  # gymnasium's own loop has no end
        board = generator.choice(["F", "H"], (size, size), p=[frozen_frac, 1 - frozen_frac])
        board[0][0], board[-1][-1] = "S", "G"
        if game.is_valid(board, size):
            return tuple(map("".join, board))
    raise ConfigError(
        f"frozen_lake: none of {DRAWS} maps with size={size} and frozen_frac={frozen_frac} has a way to the goal; "
        "set a larger frozen_frac or a smaller size"
    )


def lake_text(env: Any, observation: Any) -> str:
    """Render the map with the agent."""
    places = [[letter.decode() for letter in line] for line in env.desc.tolist()]
    row, column = divmod(int(observation), env.ncol)
    places[row][column] = "@"
    return "\n".join(" ".join(line) for line in places)


class Lake(GymnasiumEnvironment):
    """One trajectory on the ice, with two rewards: 1 at the goal, and for each step its share of the longest way."""

    def step(self, response: str) -> Step:
        """Play an action."""
        step = super().step(response)
        return dataclasses.replace(step, rewards={"goal": step.reward, "steps": 1 / self.max_steps})


class FrozenLake(GridSuite):
    """FrozenLake on random maps; splits share no map.

    Options: size, frozen_frac, slippery, num_train, num_valid. On slippery ice, two thirds of the moves go sideways;
    the same task and moves slip the same way.
    """

    objectives = ("goal", "steps")

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        size: int = 4,
        frozen_frac: float = 0.8,
        slippery: bool = False,
        num_train: int = 1000,
        num_valid: int = 256,
    ):
        super().__init__(
            lambda seed: random_lake(seed, size=size, frozen_frac=frozen_frac), num_train=num_train, num_valid=num_valid
        )
        self._config, self._slippery = config, slippery

    def environment(self, task: Map) -> Lake:
        """Build a fresh environment."""
        return Lake(
            needed(GAME, extra=EXTRA, by="frozen_lake").FrozenLakeEnv(
                desc=list(task.lines), is_slippery=self._slippery
            ),
            task.seed,
            actions=tuple(OFFSETS),
            render=lake_text,
            max_steps=self._config.max_steps,
        )

    def words(self) -> list[str]:
        """Return every word of observations and responses."""
        return ["@", "S", "F", "H", "G", "Actions", ":", ",", *OFFSETS]

    def state(self, environment: GymnasiumEnvironment) -> Place:
        """Return row and column of the agent."""
        env = environment.env.unwrapped
        return divmod(int(env.s), env.ncol)

    def successors(self, task: Map, state: Place) -> dict[str, Place]:
        """Return the moves onto ice or the goal, if the ice is not slippery."""
        reached = {move: (state[0] + down, state[1] + right) for move, (down, right) in OFFSETS.items()}
        size = range(len(task.lines))
        return {move: (r, c) for move, (r, c) in reached.items() if r in size and c in size and task.lines[r][c] != "H"}

    def solved(self, task: Map, state: Place) -> bool:
        """Return whether the agent is at the goal."""
        return task.lines[state[0]][state[1]] == "G"
