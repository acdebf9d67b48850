"""Suite of crossroads: roads by seed, and a teacher whose success is an option."""

from collections.abc import Sequence

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Demonstrated
from turnwise.environments.needs import check_counts
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import split_seeds
from turnwise.environments.words import split_words
from turnwise.worlds.crossroads.environment import ENDS, KINDS, RULES, VIEWS, CrossroadsEnvironment
from turnwise.worlds.crossroads.knobs import ROADS, read_knobs
from turnwise.worlds.crossroads.road import draw_road


class Crossroads:
    """Walks of known difficulty. Options: setting, num_train, num_valid, and those of `Knobs`."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        setting: str = "short",
        num_train: int = 3000,
        num_valid: int = 512,
        **options: int | float | str,
    ):
        check_counts("roads", num_train=num_train, num_valid=num_valid)
        self.knobs = read_knobs(setting, **options)
        if config.max_steps < self.knobs.turns:
            raise ConfigError(
                f"environment.max_steps={config.max_steps} is less than the {self.knobs.turns} turns of a walk; set "
                f"environment.max_steps={self.knobs.turns} or more, or fewer environment.options.turns"
            )
        self._reward = config.success_reward
        self._counts = {"train": num_train, "valid": num_valid, "test": num_valid}

    def tasks(self, split: str) -> Sequence[int]:
        """Return the seeds of a split."""
        return split_seeds(split, self._counts.get(split, 0), of="crossroads")

    def task_name(self, task: int) -> str:
        """Name a task in records."""
        return f"{self.knobs.setting}-{task}"

    def environment(self, task: int) -> CrossroadsEnvironment:
        """Build a fresh environment."""
        return CrossroadsEnvironment(draw_road(task, self.knobs), success_reward=self._reward)

    def words(self) -> list[str]:
        """Return every word of observations and responses."""
        kinds, reading = " ".join(KINDS[self.knobs.reading]), self.knobs.reading == "text"
        text = " ".join([kinds, *ENDS.values(), *ROADS[: self.knobs.roads]])
        text += {"turn": " mile Mile :", "never": f" {' '.join(VIEWS)}", "often": ""}[self.knobs.recurrence]
        text += f" {RULES} You are at . The sign says In sight : ," * reading
        return sorted({*split_words(text), *map(str, range(1, self.knobs.turns + 1))})

    def demonstrate(self, task: int, *, noise: float, seed: int) -> list[Demonstrated]:
        """Let the teacher walk, with noise: responses that name two roads, which are not to be imitated.

        Lost walks count too: without them, the policy would learn to be sure at critical turns.
        """
        road, generator = draw_road(task, self.knobs), np.random.default_rng([seed, 4241])
        environment, names = self.environment(task), ROADS[: self.knobs.roads]
        step, turns = environment.start(), list[Demonstrated]()
        for chance_A in road.teacher():
            if step.ended:
                break
            noisy = generator.random() < noise
            response = (
                " ".join(generator.choice(names, 2)) if noisy else names[generator.choice(len(names), p=chance_A)]
            )
            turns.append(Demonstrated(response, not noisy))
            step = environment.step(response)
        return turns
