"""Share helpers between commands."""

import argparse
import contextlib
import gc
import importlib
import logging
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from turnwise.base.errors import ConfigError, FormerWarning
from turnwise.base.garbage import no_collection
from turnwise.base.heartbeat import Heartbeat
from turnwise.base.recipes import FOLDER, find_recipe, read_recipe
from turnwise.base.run_paths import read_settings
from turnwise.base.stopping import Stop, Stopped
from turnwise.base.terminal import is_tenth, say, say_over

if TYPE_CHECKING:
    from turnwise.config import Config
    from turnwise.train.folder import RunFolder

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
RUNS_OWN = "analyses/ in the run, which has the last analysis of each kind"
"""Default of `--out` where an analysis reads one run."""
QUIET_S = 2.0
"""Seconds before progress is shown."""


def count(text: str) -> int:
    """Parse a whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """Parse a number in (0, 1]."""
    number = _number(text)
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number in (0, 1], got {text!r}")
    return number


def positive(text: str) -> float:
    """Parse a number above 0."""
    number = _number(text)
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def seconds(text: str) -> float:
    """Parse a time in seconds, 0 or more."""
    number = _number(text)
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, got {text!r}")
    return number


def _number(text: str) -> float:
    """Parse a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def recipe(options: argparse.Namespace) -> "Config":
    """Load the configuration of `recipe overrides...`. The recipe may be left out."""
    from turnwise.config import load_config

    return load_config(*_recipe_and_overrides(options))


def _recipe_and_overrides(options: argparse.Namespace) -> tuple[Path | None, list[str]]:
    """Split `recipe overrides...`. The recipe may be left out."""
    recipe, overrides = options.recipe, list(options.overrides)
    if recipe == "":
        raise ConfigError("the name of the recipe is empty; `turnwise recipes` lists them")
    if recipe is not None and "=" in recipe and not Path(recipe).exists():
        recipe, overrides = None, [recipe, *overrides]
    return Path(recipe) if recipe else None, overrides


def first_notes(config: "Config", options: argparse.Namespace) -> list[str]:
    """Print what a step costs, and whether earlier versions trained `recipe overrides...` with another method."""
    from turnwise.credit.methods.former import note_on_absence
    from turnwise.train.cost import cost_note

    cost = cost_note(config.rollout, config.evaluate, config.model.max_context, config.most_turns)
    path, overrides = _recipe_and_overrides(options)
    file = find_recipe(path) if path else None
    recipe = read_recipe(file)[file] if file else {}
    ours = file is not None and file.parent == FOLDER  # these name every modifier that they train with
    text = note_on_absence(config.method.name, recipe, overrides, ours)
    return [cost, text] if text else [cost]


def open_run(path: Path) -> tuple["RunFolder", "Config"]:
    """Open a run, before imports that take seconds.

    Raises:
        RunError: There is no such run.
    """
    read_settings(path)
    from turnwise.train.folder import RunFolder

    return RunFolder.open(path)


def add_out(parser: argparse.ArgumentParser, default: str = "none, nothing is written") -> None:
    """Add `--out`, the folder for a table and its figure."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"folder for table and figure; default: {default}")


def refuse_written(folder: Path | None, *names: str) -> None:
    """Raise if the folder of `--out` already has one of these files, before anything is computed.

    Raises:
        ConfigError: One of them exists.
    """
    for name in names:
        if folder is not None and (folder / name).exists():
            raise ConfigError(f"--out: {folder / name} exists, and nothing is overwritten; name another, or remove it")


def add_markdown(parser: argparse.ArgumentParser) -> None:
    """Add `--markdown` and `--wide`."""
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--wide", action="store_true", help="print tables in full; default: shortened to 100 columns")


def say_written(path: Path | None) -> None:
    """Print on stderr where a table and its figure were written, or how to write them. The table goes to stdout."""
    if path is None:
        say("nothing was written; --out FOLDER writes this page with its figure", file=sys.stderr)
    else:
        say(f"written: {path}, with its figure", file=sys.stderr)


def note(text: str) -> None:
    """Print a note on stderr."""
    say(f"note: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def notes_on_former_words() -> Iterator[None]:
    """Print a note for each old spelling, once, with how to write it now."""
    noted: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **further: Any) -> None:
        if not issubclass(category, FormerWarning):
            shown(message, category, *place, **further)
        elif str(message) not in noted:
            noted.add(str(message))
            note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", FormerWarning)
        shown, warnings.showwarning = warnings.showwarning, show
        yield


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Show progress on stderr after two seconds: one line at a terminal, elsewhere every tenth."""
    start, shown, done = time.monotonic(), False, 0
    with at_work(lambda: f"{done}/{total} {what}"):
        for done, item in enumerate(items, start=1):
            yield item
            if time.monotonic() - start <= QUIET_S:
                continue
            if sys.stderr.isatty():
                say_over(f"{done}/{total} {what}")
                shown = True
            elif is_tenth(done, total):
                say(f"{done}/{total} {what}", file=sys.stderr, flush=True)
    if shown:
        say_over()


def at_work(describe: Callable[[], str]) -> contextlib.AbstractContextManager[Any]:
    """Print a status line whenever nothing else was printed for a while, if stderr is not a terminal."""
    return (
        contextlib.nullcontext()
        if sys.stderr.isatty()
        else Heartbeat(lambda: say(describe(), file=sys.stderr, flush=True))
    )


def run_server(work: Coroutine[Any, Any, None], stop: Stop) -> None:
    """Run a server until a signal asks it to end; it finishes what it is writing first.

    Raises:
        Stopped: The signal was not Ctrl-C, which is the usual end of a server.
    """
    import asyncio

    try:
        with stop.deferred():
            asyncio.run(work)
    except Stopped as stopped:
        if stopped.signal != signal.SIGINT:
            raise


def load_libraries() -> None:
    """Import what models need, and silence transformers' progress bars and hints; in a log, those of every library.

    Call it before other imports of models. The million objects that this makes live as long as the process. So none of
    them is searched for garbage, neither while they are made, a sixth of that time, nor later.
    """
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # read as tqdm is imported
    if "turnwise.models.policy" not in sys.modules:
        with no_collection():
            importlib.import_module("turnwise.models.policy")
            gc.freeze()
    import transformers

    transformers.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every try
    transformers.logging.disable_progress_bar()
