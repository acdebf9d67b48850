"""Define the errors that turnwise raises, and who should fix them.

    TurnwiseError
    |-- ConfigError(ValueError)         a recipe, an override or an option is wrong: the user should fix it
    |-- BatchError(ValueError)          a batch breaks an invariant, or lacks a column that a transform needs
    |-- DataError(ValueError)           a file of games, rollouts or a model is missing or unreadable
    |   `-- DamagedError                its content differs from what was written
    |-- RunError(RuntimeError)          a run folder or checkpoint cannot be used as requested
    |-- EnvironmentFault(RuntimeError)  an environment failed: recorded in its trajectory; the run continues
    |-- EngineFault(RuntimeError)       generation failed: recorded in its trajectory; the run continues
    |-- EngineLost(RuntimeError)        the engine is unavailable: the run ends; resume it from its last checkpoint
    `-- IntegrationError(RuntimeError)  the adapter does not support a version or a batch of another trainer

Each message says what happened, where, expected and got, and what to do. The command line prints the message and exits
with 2.
"""

import difflib
import os
import re
from collections.abc import Iterable
from typing import Any

DISTRIBUTION = "turnwise-rl"
"""Name on the package index, where `turnwise` is another project."""
LISTED = 30
"""Maximum number of options in a message."""
LONGEST = 1500
"""Maximum message length (characters); the middle of a longer one is left out."""

DIVERGED = "the weights diverged"
"""Part of the failure of a trajectory whose policy gives non-finite probabilities."""


def guide(page: str) -> str:
    """Return where to read a page of `docs`, for messages to users who have only the package."""
    return f"https://github.com/turnwise-rl/turnwise/blob/main/docs/{page}"


def install(extra: str) -> str:
    """Say how to install an extra; the same command works for an installed clone and for a release."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def one_line(text: str) -> str:
    """Return a message on one line of bounded length, whatever user values it contains."""
    text = text.replace("\r", "\\r").replace("\n", "\\n")
    text = re.sub(r"[^\s/]{256,}", lambda word: f"{word[0][:60]}...{word[0][-40:]}", text)  # longer than a file's name
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 3 :]}"


class TurnwiseError(Exception):
    """Base of every error that turnwise raises on purpose. Its text is one line."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class ConfigError(TurnwiseError, ValueError):
    """A recipe, an override or an option is wrong."""


class BatchError(TurnwiseError, ValueError):
    """A batch breaks an invariant, or lacks a column that a transform needs."""


class DataError(TurnwiseError, ValueError):
    """A file of games, rollouts or a model is missing or unreadable."""


class DamagedError(DataError):
    """The content of a file differs from what was written."""


class RunError(TurnwiseError, RuntimeError):
    """A run folder or checkpoint cannot be used as requested."""


class EnvironmentFault(TurnwiseError, RuntimeError):
    """The environment of a trajectory raised, hung, died, or returned an unusable answer."""


class EngineFault(TurnwiseError, RuntimeError):
    """Generation failed."""


class EngineLost(TurnwiseError, RuntimeError):
    """The engine is unavailable: nothing can be generated until it is restarted."""


class FormerWarning(FutureWarning):
    """A recipe or a call has an old spelling; the text says in one line how to write it now."""


def text_of(error: BaseException) -> str:
    """Return the text of an error of any class."""
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"


def place_in_own_code(error: BaseException) -> str:
    """Return where code of the user's raised an error; empty if it was neither raised there nor by what that called."""
    frame = own_frame(error)
    return "" if frame is None else f"{frame.filename}:{frame.lineno}, in {frame.name}"


def own_frame(error: BaseException) -> Any:
    """Return the innermost frame of the user's code in which an error was raised; None as in `place_in_own_code`."""
    import sysconfig  # only to tell of an error
    import traceback
    from pathlib import Path

    package = f"{Path(__file__).parents[1]}{os.sep}"
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = tuple(sysconfig.get_paths()[name] + os.sep for name in names)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(package):
            return None
        if not frame.filename.startswith(installed) and Path(frame.filename).is_file():
            return frame
    return None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, which torch reports in several ways."""
    text = str(error)
    typed = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return typed or "out of memory" in text or "can't allocate memory" in text


class IntegrationError(TurnwiseError, RuntimeError):
    """The adapter does not support a version or a batch of another trainer."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the option closest to `name`; when none is close, the options or the nearest.

    No name is near none: if there are many options, the text is empty.
    """
    options = sorted(options)
    folded = dict.fromkeys(option.casefold() for option in options)
    if close := difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6):
        alike = [option for option in options if option.casefold() == close[0]]
        return f" Did you mean {max(alike, key=lambda option: difflib.SequenceMatcher(None, name, option).ratio())!r}?"
    if len(options) > LISTED:
        if not name:
            return ""
        nearest = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.0)
        near = [option for option in options if option.casefold() in nearest]
        return f" The nearest of {len(options)}: {', '.join(near)}."
    return f" Known: {', '.join(options)}." if options else ""
