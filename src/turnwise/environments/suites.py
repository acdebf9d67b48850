"""Suites: an environment with its tasks, by name or as `module:factory`.

A suite says which tasks there are and builds the world of a task. What only some suites can do (words for a tiny policy, expert
demonstrations for its warm start) is optional.
"""

import functools
import importlib
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from turnwise.config import EnvironmentConfig
from turnwise.environments.alfworld.environment import AlfworldEnvironment
from turnwise.environments.alfworld.engine import Engine
from turnwise.environments.alfworld.expert import Expert
from turnwise.environments.alfworld.files import find_games, load_game
from turnwise.environments.alfworld.game import Game
from turnwise.environments.alfworld.generate import generate_games
from turnwise.environments.alfworld.vocabulary import words
from turnwise.environments.base import Environment, Task
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean


class Demonstrated(NamedTuple):
    """One turn of a demonstration.

    Attributes:
        response: What was played.
        imitate: Whether it is the expert's choice (noise is played, not imitated).
    """

    response: str
    imitate: bool


class Suite(Protocol):
    """Tasks and their worlds."""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, always the same in the same order."""
        ...

    def environment(self, task: Task) -> Environment:
        """Build a fresh world."""
        ...

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        ...


class TeachingSuite(Suite, Protocol):
    """A suite that can warm a policy up."""

    def words(self) -> list[str]:
        """Every word that observations and responses hold, for a word-level tokenizer."""
        ...

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let an expert play a task; None when it does not win."""
        ...


class _Alfworld:
    """What generated and real games share."""

    def __init__(self, config: EnvironmentConfig, state_key: Any, demonstrator: str):
        self._config, self._state_key = config, state_key
        if demonstrator not in ("expert", "walkthrough"):
            raise ConfigError(f"environment.options.demonstrator={demonstrator!r}: expected 'expert' or 'walkthrough'")
        self._demonstrator = demonstrator

    def environment(self, task: Task) -> Environment:
        return AlfworldEnvironment(
            task,
            max_steps=self._config.max_steps,
            success_reward=self._config.success_reward,
            state_key=self._state_key,
        )

    def words(self) -> list[str]:
        return words()

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        game = task if isinstance(task, Game) else load_game(task)
        if self._demonstrator == "walkthrough":
            return [Demonstrated(command, True) for command in game.walkthrough]
        rng = random.Random(seed)
        engine, expert = Engine(game), Expert(game, rng)
        turns: list[Demonstrated] = []
        while not engine.won and len(turns) < self._config.max_steps:
            advice = expert.act(engine.observation, engine.admissible, turns[-1].response if turns else None)
            played = advice
            if rng.random() < noise:
                played = rng.choice(engine.admissible) if rng.random() < 0.5 else _misspeak(advice, game, rng)
            turns.append(Demonstrated(played, played == advice))
            engine.step(played)
        return turns if engine.won else None


def _misspeak(command: str, game: Game, rng: random.Random) -> str:
    """Name a wrong thing or number, as a learner does; demonstrations show how play goes on after "Nothing happens."."""
    words = command.split()
    place = rng.randrange(1, len(words)) if len(words) > 1 else 0
    if words[place].isdigit():
        words[place] = str(rng.randint(1, 3))
    else:
        words[place] = rng.choice([*game.receptacles, *game.things]).type.lower()
    return " ".join(words)


class Household(_Alfworld):
    """Generated games; options: size, task_types, num_train, num_valid, state_key, demonstrator."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        num_train: int = 1000,
        num_valid: int = 256,
        state_key: str = "observation",
        demonstrator: str = "expert",
        **options: Any,
    ):
        super().__init__(config, state_key, demonstrator)
        self._counts = {"train": num_train, "valid": num_valid, "test": num_valid}
        self._options = options

    @functools.cache  # noqa: B019 (one suite a process)
    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._counts:
            raise ConfigError(f"household has no split {split!r}.{did_you_mean(split, self._counts)}")
        return generate_games(split, self._counts[split], **self._options)

    def task_name(self, task: Task) -> str:
        return task.name


class RealAlfworld(_Alfworld):
    """ALFWorld's games, found through ALFWORLD_DATA; options: data, task_types, state_key, demonstrator."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        data: str | None = None,
        state_key: str = "observation",
        demonstrator: str = "walkthrough",
        **options: Any,
    ):
        super().__init__(config, state_key, demonstrator)
        self._find = functools.cache(functools.partial(find_games, data=data, **options))

    def tasks(self, split: str) -> Sequence[Task]:
        return self._find(split)

    def task_name(self, task: Task) -> str:
        return "/".join(task.parts[-3:-1])


class Seeded:
    """A user's environment: `factory(seed)` builds the world of task number `seed`."""

    FIRST = {"train": 0, "valid": 1_000_000, "test": 2_000_000}  # noqa: RUF012

    def __init__(self, factory: Callable[..., Environment], options: dict[str, Any]):
        self._factory = functools.partial(factory, **options)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.FIRST:
            raise ConfigError(f"a seeded environment has no split {split!r}.{did_you_mean(split, self.FIRST)}")
        return range(self.FIRST[split], self.FIRST[split] + 100_000)

    def environment(self, task: Task) -> Environment:
        return self._factory(task)

    def task_name(self, task: Task) -> str:
        return str(task)


SUITES: dict[str, Callable[..., Suite]] = {"household": Household, "alfworld": RealAlfworld}


def make_suite(config: EnvironmentConfig) -> Suite:
    """Build the suite that a configuration names.

    `module:factory` names either a suite (what it returns has `tasks`; called with the configuration and the options) or a
    factory of environments that takes a seed.

    Raises:
        ConfigError: The name is unknown, cannot be imported, or does not take the options.
    """
    if ":" in config.name:
        factory = import_factory(config.name)
        if hasattr(factory, "tasks"):
            return factory(config, **config.options)
        return Seeded(factory, config.options)
    if config.name not in SUITES:
        raise ConfigError(
            f"unknown environment {config.name!r}.{did_you_mean(config.name, SUITES)} Your own is 'module:factory'"
        )
    try:
        inspect.signature(SUITES[config.name]).bind(config, **config.options)
        return SUITES[config.name](config, **config.options)
    except TypeError as error:
        raise ConfigError(f"environment.options of {config.name!r}: {error}") from None


def import_factory(name: str) -> Any:
    """Import what `module:attribute` names."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except TurnwiseError:
        raise
    except Exception as error:  # whatever the user's module raises is the user's to see
        raise ConfigError(f"cannot import {module_name!r}: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{module_name!r} has no {attribute!r}.{did_you_mean(attribute, public)}")
    return getattr(module, attribute)
