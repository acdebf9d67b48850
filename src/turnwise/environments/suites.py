"""Make suites: an environment with its tasks, by name or as `module:factory`.

A suite lists tasks and builds the environment of a task. Words for a tiny policy, and expert demonstrations for its
warm start, are optional.
"""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.imports import import_named
from turnwise.base.register import DIRECTIONS, ENVIRONMENTS, find
from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.settings import IMPORTED, EnvironmentConfig
from turnwise.environments.splits import split_seeds
from turnwise.environments.words import split_words


class Suite(Protocol):
    """A set of tasks with their environments."""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, always the same in the same order."""
        ...

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        ...

    def task_name(self, task: Task) -> str:
        """Name a task in records. Your own suite may return another type, or have none: `str` is applied."""
        ...


class PreloadingSuite(Suite, Protocol):
    """A suite that loads its environments' shared data when first needed."""

    def preload(self) -> None:
        """Load the data now, before workers are forked, so that they share it. It must not start threads."""
        ...


class TeachingSuite(Suite, Protocol):
    """A suite that can warm-start a policy."""

    def words(self) -> list[str]:
        """Return every word of observations and responses, for a word-level tokenizer."""
        ...

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let an expert play a task; None if it does not win."""
        ...


class CorrectingSuite(TeachingSuite, Protocol):
    """A suite whose expert can continue after a policy's turns."""

    def correct(self, task: Task, played: Sequence[str], *, seed: int) -> list[Demonstrated] | None:
        """Play a policy's responses, then let the expert play to the end.

        Args:
            task: The task.
            played: Responses from the start of the task on, which did not end it.
            seed: Seed of the expert's choices.

        Returns:
            All turns, including the policy's, which are imitated where the expert would have chosen them. None if the
            expert cannot continue.
        """
        ...


class Seeded:
    """Wrap a user's factory: `factory(seed)` builds the environment of task number `seed`.

    To warm-start a tiny policy, the factory needs two more functions (static methods of a class): `words()` and
    `demonstrate(seed, noise=..., seed=...)`; for DAgger also `correct(seed, played, seed=...)`. All functions also get
    the environment's options.
    """

    def __init__(self, factory: Callable[..., Environment], options: dict[str, Any]):
        self._factory, self._options = factory, options
        self.gives: Sequence[str] = getattr(factory, "gives", ())
        self.objectives: Sequence[str] = getattr(factory, "objectives", ())

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        return split_seeds(split, of="a seeded environment")

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return self._factory(task, **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return str(task)

    def words(self) -> list[str]:
        """Return every word of observations and responses."""
        texts = self._own(
            "words",
            "words() -> list[str], which returns every word of its observations and responses: "
            "a tiny policy knows no others",
        )(**self._options)
        return sorted({word for text in texts for word in split_words(text)})

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let an expert play a task."""
        play = self._own(
            "demonstrate",
            "demonstrate(task, *, noise, seed) -> list[str], which returns an expert's "
            "responses, or leave the warm start out with warmstart.steps=0",
        )
        turns = play(task, noise=noise, seed=seed, **self._options)
        return [Demonstrated(turn, True) if isinstance(turn, str) else Demonstrated(*turn) for turn in turns or ()]

    @property
    def correct(self) -> Callable[..., list[Demonstrated]]:
        """Let an expert continue after a policy's turns; checked as soon as it is read, long before it is needed."""
        go_on = self._own(
            "correct",
            "correct(task, played, *, seed) -> list[Demonstrated], which returns a policy's responses and the expert's "
            "after them, or set warmstart.dagger_rounds=0",
        )

        def correct(task: Task, played: Sequence[str], *, seed: int) -> list[Demonstrated]:
            turns = go_on(task, played, seed=seed, **self._options) or ()
            for turn in turns:
                if isinstance(turn, str):
                    raise ConfigError(
                        f"correct() of the environment returned {turn!r}, expected (response, imitate) for every turn: "
                        "where the policy played, only correct() knows whether its response is to be imitated"
                    )
            return [Demonstrated(*turn) for turn in turns]

        return correct

    def _own(self, name: str, what: str) -> Callable[..., Any]:
        """Return an optional function of the user's factory."""
        if not hasattr(self._factory, name):
            where = f"{self._factory.__module__}:{getattr(self._factory, '__qualname__', self._factory)}"
            raise ConfigError(f"{where} has no {name}(): add {what}")
        return getattr(self._factory, name)


Kinds = dict[Any, str]
"""What an option must be if its default is of these types, and the words for it; the first match counts."""
KINDS_OF_USER_OPTIONS: Kinds = {str: "something like {!r}", (int, float): "something like {!r}"}
KINDS_OF_BUILTIN_OPTIONS: Kinds = {
    str: "text, such as {!r}",
    bool: "true or false",
    int: "a whole number, such as {}",
    (int, float): "a number, such as {}",
    (list, tuple): "a list",
}


def make_suite(config: EnvironmentConfig) -> Suite:
    """Build the suite that a configuration names, with the direction of its rewards; see `named_suite`.

    Raises:
        ConfigError: The name is unknown, cannot be imported, does not take the options, or pays one reward only.
    """
    suite = named_suite(config)
    return find(DIRECTIONS)(suite, config.direction, config.name) if config.direction else suite


def named_suite(config: EnvironmentConfig) -> Suite:
    """Build the suite that a configuration names.

    `module:factory` names either a suite (it has `tasks`, and is called with the configuration and the options) or a
    factory of environments that takes a seed.

    Raises:
        ConfigError: The name is unknown, cannot be imported, or does not take the options.
    """
    if ":" in config.name:
        factory = import_named(config.name)
        _check_options(config, factory, kinds=KINDS_OF_USER_OPTIONS)
        is_suite = hasattr(factory, "tasks")
        _check_call(config, factory, is_suite=is_suite)
        suite = factory(config, **config.options) if is_suite else Seeded(factory, config.options)
        named = getattr(suite, "task_name", str)
        with contextlib.suppress(AttributeError):  # of a class with slots, which names its tasks as it does
            object.__setattr__(suite, "task_name", lambda task: str(named(task)))  # also of a frozen dataclass
        return suite
    if config.name == IMPORTED:
        raise ConfigError(
            "the run was imported from a log, whose environment turnwise does not have; read it with `turnwise report` "
            "and `turnwise recredit`"
        )
    if config.name not in ENVIRONMENTS:
        meant = did_you_mean(config.name, ENVIRONMENTS)
        raise ConfigError(f"unknown environment {config.name!r}.{meant} Your own is 'module:factory'")
    suite, *further = (find(place) for place in ENVIRONMENTS[config.name] if place)
    _check_options(config, suite, *further, kinds=KINDS_OF_BUILTIN_OPTIONS)
    return suite(config, **config.options)


class SuiteEnvironments:
    """Build the environments of a configured suite.

    Only the configuration is pickled; the starter of workers rebuilds the suite once for all of them.
    """

    def __init__(self, config: EnvironmentConfig, suite: Suite | None = None):
        self.config, self.suite = config, suite or make_suite(config)

    def __call__(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return self.suite.environment(task)

    def __reduce__(self) -> tuple[Any, ...]:
        return SuiteEnvironments, (self.config,)

    def preload_suite(self) -> None:
        """Load what the environments share, if the suite can; the starter calls it before it forks workers."""
        getattr(self.suite, "preload", lambda: None)()


def _check_call(config: EnvironmentConfig, factory: Callable[..., Any], *, is_suite: bool) -> None:
    """Raise if a user's factory cannot be called: a suite with the configuration, others with a seed."""
    _refuse_foreign(config.name, factory)
    try:
        inspect.signature(factory).bind(config if is_suite else 0, **config.options)
    except TypeError as error:
        what = (
            "has tasks(), so it is a suite, and is called with the configuration"
            if is_suite
            else "is called with a seed"
        )
        form = "config: EnvironmentConfig" if is_suite else "seed: int"
        given = ", ".join(
            ["config" if is_suite else "seed", *(f"{name}={value!r}" for name, value in config.options.items())]
        )
        raise ConfigError(
            f"{config.name!r} {what} and the options, as ({given}), but {error}; write "
            f"def __init__(self, {form}, *, <options>)"
        ) from None


def _refuse_foreign(name: str, factory: Callable[..., Any]) -> None:
    """Raise if a class is an environment of another library, and say how to use it here."""
    ours = hasattr(factory, "start") or hasattr(factory, "tasks")
    if ours or not inspect.isclass(factory) or not hasattr(factory, "reset"):
        return
    if any(base.__module__.partition(".")[0] in ("gymnasium", "gym") for base in factory.__mro__):
        module, _, attribute = name.partition(":")
        raise ConfigError(
            f"{name!r} is an environment of gymnasium; register it in {module} by "
            f"gymnasium.register(id='{attribute}-v0', entry_point={name!r}), and set environment.name=gymnasium "
            f"environment.options.id={module}:{attribute}-v0"
        )
    if not hasattr(factory, "step"):
        raise ConfigError(
            f"{name!r} has reset() and tools, as TRL's environment_factory wants them; here start() returns the first "
            "observation and step(response) -> Step gets the whole response: call the tool that it names, and return "
            "what the tool returns as the observation"
        )


def _check_options(config: EnvironmentConfig, *functions: Callable[..., Any], kinds: Kinds) -> None:
    """Raise if an option is unknown, or not of its default's type.

    Each function passes unknown options on to the next.
    """
    try:
        parameters = [list(inspect.signature(function).parameters.values())[1:] for function in functions]
    except (TypeError, ValueError):
        raise ConfigError(
            f"{config.name!r} is not a factory of environments: it cannot be called with a seed"
        ) from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters[-1]):
        return
    known = {p.name: p.default for p in itertools.chain(*parameters) if p.kind is not p.VAR_KEYWORD}
    for name, value in config.options.items():
        if name not in known:
            raise ConfigError(f"environment {config.name!r} has no option {name!r}.{did_you_mean(name, known)}")
        kind = next((kind for kind in kinds if isinstance(known[name], kind)), object)
        if not isinstance(value, kind):
            raise ConfigError(f"environment.options.{name}={value!r}: expected {kinds[kind].format(known[name])}")


def tasks_of(suite: Suite, environment: str, split: str) -> Sequence[Task]:
    """Return the tasks of a split.

    Raises:
        ConfigError: There are none, or no list of them.
    """
    tasks = suite.tasks(split)
    try:
        ends = [tasks[place] for place in (0, len(tasks) - 1) if len(tasks)]
    except (LookupError, TypeError):  # of a generator, or of a table, whose columns have names
        ends = None
    if ends is None or isinstance(tasks, Mapping):
        raise ConfigError(
            f"environment {environment!r}: tasks({split!r}) returned {type(tasks).__name__}, expected a list of tasks"
        )
    if not ends:
        raise ConfigError(f"split {split!r} of environment {environment!r} has no tasks; choose another split")
    return tasks


def refuse_agents_suite(suite: Suite, environment: str) -> None:
    """Raise if a suite only lists tasks, which an agent plays.

    Raises:
        ConfigError: It makes no environments.
    """
    if not hasattr(suite, "environment"):
        raise ConfigError(
            f"{environment!r} has no environment(task), so only an agent ([harness]) plays its tasks; try the agent "
            "with `turnwise check-harness`, `eval` or `report`, or add environment(task)"
        )


def refuse_unrepeatable(suite: Suite, tasks: Sequence[Task], environment: str, wanted: str) -> None:
    """Raise if an environment declares that the same responses can give other observations.

    Args:
        suite: The environment.
        tasks: Some of its tasks.
        environment: Name of the environment.
        wanted: What needs the replays, for the error.

    Raises:
        ConfigError: Its attribute `repeats` is false.
    """
    if not getattr(suite.environment(tasks[0]), "repeats", True):
        raise ConfigError(
            f"environment {environment!r} cannot be forked, which {wanted} needs: it does not guarantee the same "
            "observations when responses are played again (repeats = False); choose another environment"
        )
