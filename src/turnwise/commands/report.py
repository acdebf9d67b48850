"""Define `turnwise report`."""

import argparse
import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.base.run_paths import nearest_run, read_settings
from turnwise.base.terminal import make_console, say, say_next
from turnwise.commands.common import QUIET_S, at_work, natural, note
from turnwise.credit.compared import COMPARED


def add(commands: Any) -> None:
    """Add the command."""
    report = commands.add_parser("report", help="write a page about runs, or serve it while they train")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    report.add_argument(
        "--output", type=Path, metavar="FOLDER", help="default: report/ in the run, or next to several runs"
    )
    report.add_argument("--live", action="store_true", help="serve the page and keep it up to date; write nothing")
    report.add_argument("--port", type=natural, help="with --live: port to listen on; default: 8010; 0: a free one")
    report.add_argument("--host", help="with --live: address to listen on; default: 127.0.0.1 (this machine only)")
    report.add_argument("--methods", metavar="A,B,...", help="methods to compute credit with for comparison")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    given = COMPARED if options.methods is None else [name.strip() for name in options.methods.split(",")]
    methods = [name for name in given if name]
    if not options.live:
        if options.port is not None or options.host is not None:
            raise ConfigError("--port and --host need --live: turnwise report --live RUN")
        for path in options.runs:
            read_settings(path)
        from turnwise.lab.report.write import write_report

        with _bar() as progress:
            output = options.output or _default_output(options.runs)
            page = write_report(options.runs, output, methods, progress, note)
        say(page, flush=True)
        say_next(f"python -m webbrowser {shlex.quote(str(page))}", "opens the page, as does any browser")
        return 0
    if options.output is not None:
        raise ConfigError("--live writes no folder; remove --output")
    from turnwise.lab.report.live import serve_report

    def ready(address: str) -> None:
        options.signs_of_life.close()
        say(_ready(address, options.runs), flush=True)

    with contextlib.suppress(KeyboardInterrupt), _bar() as progress:
        serve_report(
            options.runs,
            methods,
            host=options.host or "127.0.0.1",
            port=8010 if options.port is None else options.port,
            on_ready=ready,
            progress=progress,
            on_problem=note,
        )
    return 0


def _ready(address: str, runs: list[Path]) -> str:
    """Print where the page is, and which runs it waits for."""
    lines = [f"{address}   (Ctrl-C ends it)"]
    for path in runs:
        if not path.exists():
            lines.append(f"{path} does not exist yet; it appears once its training begins.{nearest_run(path)}")
    return "\n".join(lines)


def _default_output(runs: list[Path]) -> Path:
    """Return the default folder: inside a single run, or next to the first of several."""
    return runs[0] / "report" if len(runs) == 1 else runs[0].parent / "report"


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    """Show how many steps are read, on a terminal after two seconds; yields `progress(done, total)`."""
    from rich.progress import Progress

    start, console = time.monotonic(), make_console()
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bars.add_task("steps read", total=None)
    read = [0, 0]

    def progress(done: int, total: int) -> None:
        read[:] = done, total
        bars.update(task, completed=done, total=total)
        if done == total:
            shown.close()
        elif time.monotonic() - start > QUIET_S:
            bars.start()

    with contextlib.ExitStack() as shown:
        shown.callback(bars.stop)
        shown.enter_context(at_work(lambda: "{}/{} steps read".format(*read)))
        yield progress
