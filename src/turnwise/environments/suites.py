"""Suites: an environment with its tasks, by name or as `module:factory`.

A suite says which tasks there are and builds the world of a task. What only some suites can do (words for a tiny policy, expert
demonstrations for its warm start) is optional.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from turnwise.config import EnvironmentConfig
from turnwise.environments.adapters.gymnasium import Gymnasium
from turnwise.environments.adapters.openenv import OpenEnv
from turnwise.environments.adapters.textworld import Textworld
from turnwise.environments.adapters.verifiers import Verifiers
from turnwise.environments.alfworld.files import find_games
from turnwise.environments.alfworld.generate import generate_game
from turnwise.environments.alfworld.suite import Alfworld, Household
from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.grids.frozen_lake import FrozenLake
from turnwise.environments.grids.rooms import random_room
from turnwise.environments.grids.sokoban import Sokoban
from turnwise.environments.scienceworld.suite import Scienceworld
from turnwise.environments.search_qa.suite import SearchQa
from turnwise.environments.splits import split_seeds
from turnwise.environments.swe.suite import Swe
from turnwise.environments.webshop.shop import load_shop
from turnwise.environments.webshop.suite import Webshop
from turnwise.environments.words import split_words
from turnwise.errors import ConfigError, did_you_mean
from turnwise.imports import import_named


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


class Seeded:
    """A user's environment: `factory(seed)` builds the world of task number `seed`.

    To warm a tiny policy up, the factory has two functions more (static methods, where it is a class): `words()` and
    `demonstrate(seed, noise=..., seed=...)`. All are called with the environment's options, too.
    """

    def __init__(self, factory: Callable[..., Environment], options: dict[str, Any]):
        self._factory, self._options = factory, options

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        return split_seeds(split, of="a seeded environment")

    def environment(self, task: Task) -> Environment:
        """Build a fresh world."""
        return self._factory(task, **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return str(task)

    def words(self) -> list[str]:
        """Every word that the world and its player may say."""
        texts = self._own("words", "words() -> list[str], which returns every word of its observations and responses: "
                          "a tiny policy knows no others")(**self._options)  # fmt: skip
        return sorted({word for text in texts for word in split_words(text)})

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let an expert play a task."""
        play = self._own("demonstrate", "demonstrate(task, *, noise, seed) -> list[str], which returns an expert's "
                         "responses, or leave the warm start out with warmstart.steps=0")  # fmt: skip
        turns = play(task, noise=noise, seed=seed, **self._options)
        return [Demonstrated(turn, True) if isinstance(turn, str) else Demonstrated(*turn) for turn in turns or ()]

    def _own(self, name: str, what: str) -> Callable[..., Any]:
        """A function that the user gave the factory."""
        if not hasattr(self._factory, name):
            where = f"{self._factory.__module__}:{getattr(self._factory, '__qualname__', self._factory)}"
            raise ConfigError(f"{where} has no {name}(): give it {what}")
        return getattr(self._factory, name)


SUITES: dict[str, tuple[Callable[..., Suite], Callable[..., Any]]] = {
    "household": (Household, generate_game),
    "alfworld": (Alfworld, find_games),
    "webshop": (Webshop, load_shop),
    "search_qa": (SearchQa, SearchQa),
    "swe": (Swe, Swe),
    "gymnasium": (Gymnasium, Gymnasium),
    "openenv": (OpenEnv, OpenEnv),
    "verifiers": (Verifiers, Verifiers),
    "frozen_lake": (FrozenLake, FrozenLake),
    "sokoban": (Sokoban, random_room),
    "scienceworld": (Scienceworld, Scienceworld),
    "textworld": (Textworld, Textworld),
}
"""Name to suite, and to the function that takes its further options."""


def make_suite(config: EnvironmentConfig) -> Suite:
    """Build the suite that a configuration names.

    `module:factory` names either a suite (what it returns has `tasks`; called with the configuration and the options) or a
    factory of environments that takes a seed.

    Raises:
        ConfigError: The name is unknown, cannot be imported, or does not take the options.
    """
    if ":" in config.name:
        factory = import_named(config.name)
        _check_options(config, factory)
        return factory(config, **config.options) if hasattr(factory, "tasks") else Seeded(factory, config.options)
    if config.name not in SUITES:
        raise ConfigError(
            f"unknown environment {config.name!r}.{did_you_mean(config.name, SUITES)} Your own is 'module:factory'"
        )
    suite, further = SUITES[config.name]
    _check_options(config, suite, further)
    return suite(config, **config.options)


def _check_options(config: EnvironmentConfig, *functions: Callable[..., Any]) -> None:
    """Raise when no function has an option, or when it is no number or text where its default is one.

    Each function but the last hands the options that it does not know on to the next.
    """
    try:
        parameters = [list(inspect.signature(function).parameters.values())[1:] for function in functions]
    except (TypeError, ValueError):
        raise ConfigError(f"{config.name!r} is no factory of environments: it cannot be called with a seed") from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters[-1]):
        return
    known = {p.name: p.default for p in itertools.chain(*parameters) if p.kind is not p.VAR_KEYWORD}
    for name, value in config.options.items():
        if name not in known:
            raise ConfigError(f"environment {config.name!r} has no option {name!r}.{did_you_mean(name, known)}")
        for kind in (str, (int, float)):
            if isinstance(known[name], kind) and not isinstance(value, kind):
                raise ConfigError(f"environment.options.{name}={value!r}: expected something like {known[name]!r}")
