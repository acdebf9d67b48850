"""What can go wrong, and whose job it is to mend it.

    TurnwiseError
    |-- ConfigError(ValueError)              a recipe, an override or an option is wrong: the user's to mend
    |-- BatchError(ValueError)               a batch breaks an invariant, or lacks a column that a transform needs
    |-- DataError(ValueError)                a file of games, rollouts or a model is missing or unreadable
    |-- RunError(RuntimeError)               a run folder or checkpoint cannot be used as asked
    |-- EnvironmentFault(RuntimeError)       a world broke: recorded in its trajectory, never the end of a run
    |-- WorldFault(RuntimeError)             the answer of a world is lost, with the cause: recorded in its trajectory
    |-- EngineFault(RuntimeError)            generation broke: recorded in its trajectory
    |-- EngineLost(RuntimeError)             the engine stays away: ends the run, which can go on from its last checkpoint
    `-- IntegrationError(RuntimeError)       another trainer has a version or a batch that the adapter cannot serve

Each text says what, where, got and expected, and what to do. The command line prints the text alone and exits with 2.
"""

import difflib
from collections.abc import Iterable


class TurnwiseError(Exception):
    """Base of every error that turnwise raises on purpose."""


class ConfigError(TurnwiseError, ValueError):
    """A recipe, an override or an option is wrong."""


class BatchError(TurnwiseError, ValueError):
    """A batch breaks an invariant, or lacks a column that a transform needs."""


class DataError(TurnwiseError, ValueError):
    """A file of games, rollouts or a model is missing or unreadable."""


class RunError(TurnwiseError, RuntimeError):
    """A run folder or checkpoint cannot be used as asked."""


class EnvironmentFault(TurnwiseError, RuntimeError):
    """A world broke while an episode was played in it."""


class WorldFault(TurnwiseError, RuntimeError):
    """A trajectory's world raised, hung, died, or answered what cannot be used; says why."""


class EngineFault(TurnwiseError, RuntimeError):
    """Generation broke."""


class EngineLost(TurnwiseError, RuntimeError):
    """The engine stays away: nothing can be generated until somebody brings it back."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, which torch says in several ways."""
    text = str(error)
    typed = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return typed or "out of memory" in text or "can't allocate memory" in text


class IntegrationError(TurnwiseError, RuntimeError):
    """Another trainer has a version or a batch that the adapter cannot serve."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the option closest to `name`, or the list of options when none is close."""
    options = sorted(options)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(options)}." if options else ""
