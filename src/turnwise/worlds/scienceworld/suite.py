"""ScienceWorld as a suite: thirty tasks, with the package's own splits of their variations."""

import functools
import random
from collections.abc import Sequence
from typing import Any

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.environments.base import Demonstrated, Task
from turnwise.environments.needs import check_choices, needed
from turnwise.environments.settings import EnvironmentConfig
from turnwise.worlds.scienceworld.environment import CHOICES, ScienceworldEnvironment, Variation, name
from turnwise.worlds.scienceworld.java import EXTRA, simulator, stop

SPLITS = {
    "train": "getVariationsTrain",
    "valid": "getVariationsDev",
    "dev": "getVariationsDev",
    "test": "getVariationsTest",
}
SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "openDoors",
    "openContainers",
    "selfWateringFlowerPots",
    "noElectricalAction",
)
ELECTRICAL = ("power-component", "conductivity")
"""Parts of the names of tasks that need electrical actions."""
NOISE_ACTIONS = ("look around", "inventory", "look at the ceiling", "take it")
"""Noise actions: actions that only take time, and one malformed response."""


class Scienceworld:
    """ScienceWorld's tasks, in the order of the package, variations in theirs.

    Options: tasks (names; none: all thirty), simplifications ("easy", or names), variations_per_task (the first so many
    of a split; 0: all), and those of `ScienceworldEnvironment`.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        tasks: Sequence[str] = (),
        simplifications: Sequence[str] = (),
        variations_per_task: int = 0,
        reward: str = "gain",
        admissible: bool = False,
        state_key: str = "observation",
        heap_mb: int = 1024,
    ):
        check_choices(CHOICES, reward=reward, state_key=state_key)
        known = list(needed("scienceworld.constants", extra=EXTRA, by="scienceworld").ID2TASK.values())
        self._tasks = _names("tasks", tasks, known) or known
        simple = _names("simplifications", simplifications, SIMPLIFICATIONS)
        electrical = [task for task in self._tasks if any(part in task for part in ELECTRICAL)]
        if "noElectricalAction" in simple and electrical:
            raise ConfigError(
                f"environment.options.simplifications: {electrical[0]!r} needs electrical actions; remove it or "
                "'noElectricalAction'"
            )
        for option, value, least in (("variations_per_task", variations_per_task, 0), ("heap_mb", heap_mb, 64)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"environment.options.{option}={value!r}: expected a whole number, {least} or more")
        self._config, self._most, self._simple, self._heap_mb = config, variations_per_task, ",".join(simple), heap_mb
        self._options: dict[str, Any] = {"reward": reward, "state_key": state_key, "admissible": admissible}
        self._options |= {"simplifications": self._simple, "heap_mb": heap_mb}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the variations of a split: "train", "valid" (the package's dev; "dev" is an alias), or "test"."""
        if split not in SPLITS:
            raise ConfigError(f"scienceworld has no split {split!r}.{did_you_mean(split, SPLITS)}")
        return self._found[split]

    def environment(self, task: Task) -> ScienceworldEnvironment:
        """Build a fresh environment."""
        limits = {"max_steps": self._config.max_steps, "success_reward": self._config.success_reward}
        return ScienceworldEnvironment(task, **limits, **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return name(task)

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Play the simulator's own solution; None if it does not win, for example because noise actions took time."""
        environment, rng = self.environment(task), random.Random(seed)
        gold, turns = environment.gold(), list[Demonstrated]()
        step = environment.start()
        while gold and not step.ended:
            noisy = rng.random() < noise
            turns.append(Demonstrated(rng.choice(NOISE_ACTIONS) if noisy else gold.pop(0), not noisy))
            step = environment.step(turns[-1].response)
        return turns if step.info["success"] else None

    @functools.cached_property
    def _found(self) -> dict[str, list[Variation]]:
        """Variations by split; listing them loads every task, which takes a while."""
        game = simulator(self._heap_mb)
        found: dict[str, list[Variation]] = {split: [] for split in SPLITS}
        for task in self._tasks:
            game.load(task, 0, self._simple, False)
            for split, method in SPLITS.items():
                numbers = [int(number) for number in getattr(game, method)()]
                found[split] += [Variation(task, number) for number in numbers[: self._most or None]]
        if self._config.level != "in-process":
            stop()  # environments are played elsewhere
        return found


def _names(option: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"environment.options.{option}={given!r}: expected a list of names")
    for each in given:
        if each not in known:
            raise ConfigError(f"environment.options.{option}: unknown name {each!r}.{did_you_mean(each, known)}")
    return list(given)
