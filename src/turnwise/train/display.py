"""Show the progress of a run: a live table at a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from turnwise.base.errors import guide
from turnwise.base.heartbeat import EVERY_S, Heartbeat, note_output
from turnwise.base.terminal import is_tenth, make_console, print_table
from turnwise.train.folder import RunFolder

LIVE_ROWS = 8
"""Steps shown in the live table."""
COLUMNS = ("success", "invalid", "turns", "entropy", "tokens/s", "seconds")
"""Columns of the live table. `tokens/s` counts generated tokens; `seconds` is the step's time without evaluation."""
LOGGED = ("success", "turns", "invalid", "entropy")
"""Numbers in a log line."""
SLOW_S = 1.0
"""Minimum duration of the first step (seconds) for an estimate of the whole run's time."""
ALWAYS_ZERO = "how-to/reward-is-always-0.md"
"""Where to read about rewards that do not differ."""
STAGES = tuple(f"time/{stage}_s" for stage in ("rollout", "score", "measure", "credit", "update", "weights"))


class Display:
    """Define the display interface; this base class shows nothing."""

    def note(self, text: str) -> None:
        """Show a note at the start."""

    def watch(self, tally: Callable[[], str]) -> None:
        """Set what describes the outcomes of ended trajectories."""

    def demonstration(self, done: int, total: int) -> None:
        """Report a played demonstration."""

    def warm_start(self, step: int, steps: int, loss: float) -> None:
        """Report a step of the warm start."""

    def turn(self, live: int, total: int) -> None:
        """Report a turn of all live episodes."""

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Report a training step."""

    def evaluation(self, step: int, metrics: Mapping[str, float], failure: str = "") -> None:
        """Report an evaluation, and the most common cause of failed episodes."""

    def finish(self, folder: RunFolder, label: str) -> None:
        """Report the end of the run."""


class ConsoleDisplay(Display):
    """Show a table and progress bars at a terminal, otherwise a line per step; then a summary and a figure.

    Args:
        console: Where to print; default: stderr.
        notes: Notes to print as the run begins, once nothing can refuse it any more.
        silent_s: Maximum time between lines without a terminal (seconds).
    """

    def __init__(self, console: Console | None = None, notes: Sequence[str] = (), *, silent_s: float = EVERY_S):
        self.console = console or make_console()
        self._pending = list(notes)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._bars: dict[str, int] = {}
        self._rows: deque[tuple[int, dict[str, str], str]] = deque(maxlen=LIVE_ROWS)
        self._heartbeat = Heartbeat(self._go_on, silent_s)
        self._doing = ("", 0, 0, time.monotonic())  # what, how many are done, of how many, since when
        self._tally: Callable[[], str] = str
        self._explained, self._timed = False, False
        self._live = Live(get_renderable=self._picture, console=self.console, refresh_per_second=4)

    def __enter__(self) -> "ConsoleDisplay":
        if self.console.is_terminal:
            self._live.start()
        else:
            self._heartbeat.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self._heartbeat.stop()

    def watch(self, tally: Callable[[], str]) -> None:
        """Add the outcomes of ended episodes to each line about running ones."""
        self._tally = tally

    def count(self, what: str, done: int, total: int) -> None:
        """Show how many of something are done."""
        self._advance(what, done, total, "")

    def note(self, text: str) -> None:
        """Print the note once."""
        self._print(f"note: {text}")

    def demonstration(self, done: int, total: int) -> None:
        """Show the count."""
        self.count("demonstrations", done, total)

    def warm_start(self, step: int, steps: int, loss: float) -> None:
        """Show the loss."""
        self._advance("warm start", step, steps, f"loss {loss:.3f}")

    def turn(self, live: int, total: int) -> None:
        """Show how many episodes have ended; in a log only now and then, since it changes many times per second."""
        self._begin()  # what it costs comes before what it costs
        self._now("episodes", total - live, total)
        if self.console.is_terminal:
            self._advance("episodes", total - live, total, self._tally())

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Show the main numbers: a row of the table, or a line of the log."""
        numbers, note = glance(metrics), warnings(metrics)
        if self.console.is_terminal:
            self._rows.append((step, numbers, note))
            self._advance("training", step, steps, "")
        else:
            shown = [f"{name} {numbers[name]}" for name in LOGGED if name in numbers]
            self._line("training", step, steps, "  ".join([*shown, note] if note else shown))
        self._explain(step, steps, metrics)

    def evaluation(self, step: int, metrics: Mapping[str, float], failure: str = "") -> None:
        """Print one permanent line."""
        self._begin()
        self._print(f"held-out after step {step}: {describe(metrics, failure)}")

    def finish(self, folder: RunFolder, label: str) -> None:
        """Print the table of evaluations and save the figure."""
        from turnwise.train.figure import plot_run  # Matplotlib takes a second to import

        self._live.stop()
        table = [("step", "success", "95 % interval", "turns", "invalid", "episodes")]
        records = folder.metrics()
        for record in (record for record in records if "eval/success" in record):
            low, high = record["eval/success_low"], record["eval/success_high"]
            table.append(
                (
                    str(record["step"]),
                    f"{record['eval/success']:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    f"{record['eval/turns']:.1f}",
                    f"{record['eval/invalid_frac']:.3f}",
                    f"{record['eval/episodes']:.0f}",
                )
            )
        if len(table) > 1:  # evaluations can be off
            print_table(table, title=f"{folder.path}: {label}", file=self.console.file)
        signals = [record["credit/signal_frac"] for record in records if "credit/signal_frac" in record]
        idle = signals.count(0)
        if 0 < idle < len(signals):
            self._print(f"no signal in {idle} of {len(signals)} steps: returns were equal within each of their groups")
        elif idle:
            self._print(
                f"returns within groups did not differ in any of {len(signals)} steps: methods that compare within "
                "groups learned only from penalties. Try larger groups, easier tasks, or a longer warm start; see "
                f"{guide('how-to/choose-credit.md')}"
            )
        plot_run(folder, label)
        self._print(f"figure: {folder.figure}")

    def _picture(self) -> RenderableType:
        fitting = COLUMNS[: (self.console.width - 6) // 9]
        table = Table("step", *fitting, "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in table.columns[:-1]:
            column.justify = "right"
        for number, numbers, note in self._rows:
            table.add_row(str(number), *(numbers.get(name, "") for name in fitting), note)
        return Group(table, self._progress) if self._rows else self._progress

    def _begin(self) -> None:
        while self._pending:
            self.note(self._pending.pop(0))

    def _advance(self, name: str, done: int, total: int, note: str) -> None:
        self._begin()
        self._now(name, done, total)
        if self.console.is_terminal:
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=total, note=note)
            self._progress.update(self._bars[name], completed=done, total=total, note=note)  # pyright: ignore
        elif is_tenth(done, total):
            self._line(name, done, total, note)

    def _line(self, name: str, done: int, total: int, note: str) -> None:
        self._print(f"{name} {done}/{total}  {note}".rstrip())

    def _print(self, text: str) -> None:
        note_output()
        self.console.print(text, highlight=False, soft_wrap=True)

    def _now(self, what: str, done: int, total: int) -> None:
        """Remember what is done, and since when; a count smaller than before means a new stage."""
        before, counted, _, since = self._doing
        self._doing = (what, done, total, since if what == before and done >= counted else time.monotonic())

    def _go_on(self) -> None:
        """Print how far the current stage is."""
        what, done, total, since = self._doing
        seconds = time.monotonic() - since
        if not what or done >= total:
            self._print(f"{f'all {total} {what} are done; ' * bool(what)}still working")
            return
        left = f", about {duration(seconds / done * (total - done))} to go" if done else ""
        self._line(what, done, total, "  ".join(filter(None, (f"{duration(seconds)}{left}", self._tally()))))

    def _explain(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Report once how long steps take, and once what it means if no group's rewards differ."""
        seconds = sum(value for name, value in metrics.items() if name in STAGES)
        if not self._timed and step < steps and seconds >= SLOW_S:
            rest = duration(seconds * (steps - step))
            self.note(f"this step took {duration(seconds)}; the other {steps - step} will take about {rest}")
        self._timed = True
        if metrics.get("credit/signal_frac") == 0 and not self._explained:
            self._explained = True
            self.note(
                "all trajectories of a group earned the same in this step, in every group, so comparing them teaches "
                "nothing. If this continues (it is reported once), try easier tasks, demonstrations "
                f"(warmstart.demonstrations), a stronger model or larger groups; see {guide(ALWAYS_ZERO)}"
            )


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def glance(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return the main numbers of a step by the names in `COLUMNS`, without those that were not measured."""
    numbers = {
        "success": f"{metrics['rollout/success']:.2f}",
        "turns": f"{metrics['rollout/turns']:.1f}",
        "invalid": f"{metrics['rollout/invalid_frac']:.2f}",
    }
    if "credit/entropy" in metrics:
        numbers["entropy"] = f"{metrics['credit/entropy']:.3f}"
    if metrics.get("time/rollout_s"):
        numbers["tokens/s"] = f"{metrics['rollout/tokens'] / metrics['time/rollout_s']:,.0f}"
        numbers["seconds"] = f"{sum(value for name, value in metrics.items() if name in STAGES):.1f}"
    return numbers


def warnings(metrics: Mapping[str, float]) -> str:
    """Describe problems of a step, if any."""
    parts = []
    if metrics["rollout/batches"] > 1:
        parts.append(f"kept {metrics['rollout/kept_frac']:.2f} of {metrics['rollout/batches']:.0f} batches")
    if metrics["rollout/failed_frac"]:
        parts.append(f"FAILED {metrics['rollout/failed_frac']:.0%} of the trajectories")
    if not metrics["rollout/filled_frac"] and "update/grad_norm" not in metrics:
        parts.append("SKIPPED: no group to learn from")
    elif metrics["rollout/filled_frac"] < 1:
        parts.append(f"ONLY {metrics['rollout/filled_frac']:.0%} of rollout.groups to learn from")
    return "  ".join(parts)


RESULTS = ("win", "draw", "loss")
"""Results of games, in the order in which they are shown."""


def describe(metrics: Mapping[str, float], failure: str = "") -> str:
    """Describe an evaluation in one line, with the most common cause of failed episodes."""
    text = f"success {metrics['success']:.3f} [{metrics['success_low']:.3f}, {metrics['success_high']:.3f}]"
    if "reward" in metrics:
        text += f", reward {metrics['reward']:.2f} [{metrics['reward_low']:.2f}, {metrics['reward_high']:.2f}]"
    text += "".join(f", {name} {metrics[f'result/{name}']:.3f}" for name in RESULTS if f"result/{name}" in metrics)
    text += f", exploitability {metrics['exploitability']:.4f}" if "exploitability" in metrics else ""
    text += f", {metrics['turns']:.1f} turns, {metrics['invalid_frac']:.1%} invalid, {metrics['episodes']:.0f} episodes"
    return text + (f", {metrics['failed']:.0f} FAILED{f' ({failure})' * bool(failure)}" if metrics["failed"] else "")
