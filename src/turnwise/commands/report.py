"""`turnwise report`: check what was asked for, write or serve, and show how far it is."""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bars

from turnwise.errors import ConfigError
from turnwise.report.build import Progress
from turnwise.report.credit import METHODS
from turnwise.report.live import serve_report
from turnwise.report.write import write_report

QUIET_S = 2.0
"""Seconds before a progress bar appears."""


def report(options: argparse.Namespace) -> int:
    """Run the command; options are those of `turnwise report`."""
    methods = [name.strip() for name in options.methods.split(",")] if options.methods is not None else METHODS
    methods = [name for name in methods if name]
    if not options.live:
        if options.port is not None or options.host is not None:
            raise ConfigError("--port and --host belong to --live: turnwise report --live RUN")
        output = options.output or default_output(options.runs)
        with progress_bar() as progress:
            print(write_report(options.runs, output, methods, progress))
        return 0
    if options.output is not None:
        raise ConfigError("--live writes no folder: leave --output out")
    with contextlib.suppress(KeyboardInterrupt), progress_bar() as progress:
        serve_report(
            options.runs,
            methods,
            host=options.host or "127.0.0.1",
            port=8010 if options.port is None else options.port,
            on_ready=lambda address: print(f"{address}   (Ctrl-C ends it)", flush=True),
            progress=progress,
        )
    return 0


def default_output(runs: list[Path]) -> Path:
    """Where a report goes by itself: into its run, or beside the first of several."""
    return runs[0] / "report" if len(runs) == 1 else runs[0].parent / "report"


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on a terminal's stderr, if the work takes longer than a moment."""
    start, console = time.monotonic(), Console(file=sys.stderr)
    bars = Bars(console=console, transient=True, disable=not console.is_terminal)
    task = bars.add_task("steps read", total=None)

    def progress(done: int, total: int) -> None:
        bars.update(task, completed=done, total=total)
        if done == total:
            bars.stop()
        elif time.monotonic() - start > QUIET_S:
            bars.start()

    try:
        yield progress
    finally:
        bars.stop()
