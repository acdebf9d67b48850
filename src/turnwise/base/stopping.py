"""Stop a command on Ctrl-C (SIGINT), SIGTERM, which schedulers send, or SIGHUP, which a closed terminal sends.

All raise `Stopped`, a KeyboardInterrupt, so that files are closed and processes ended. Training chooses where:
`Stop.deferred` delays the exception, and `Stop.open` lets it through again. A second signal of any of these kinds ends
the process at once.
"""

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
USUAL = (signal.SIG_DFL, signal.default_int_handler)
"""Handlers that Python sets."""


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int):
        self.signal = signal.Signals(number)
        super().__init__(name_of(number))

    @property
    def ended(self) -> str:
        """Say how the process ends, for a message."""
        return str(self) if self.signal == signal.SIGINT else f"{self}: ended"

    @property
    def exit_code(self) -> int:
        """Exit code by the shells' convention: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
        return 128 + self.signal


def name_of(number: int) -> str:
    """Name a signal, for a message."""
    return "interrupted" if number == signal.SIGINT else signal.Signals(number).name


class Stop:
    """Decide when a signal takes effect. By default it does at once."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that asked for the end, if any
        self.why_late = ""  # what has to finish first while the effect is delayed; printed when a signal arrives
        self._open = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        for each in SIGNALS:  # the next one ends the process
            signal.signal(each, signal.SIG_DFL)
        self.asked = number
        if self._open:  # perhaps between the creation of a coroutine and its start, which is not a mistake
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            raise Stopped(number)
        with contextlib.suppress(OSError):  # the terminal may be gone; print would not be safe in a handler
            os.write(2, f"turnwise: {name_of(number)}: {self.why_late or 'ends soon'}\n".encode())

    def check(self) -> None:
        """Raise `Stopped` if a signal arrived while its effect was delayed."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def close(self) -> None:
        """Delay the effect of signals until the surrounding `open` or `deferred` ends."""
        self.check()
        self._open = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay the effect of signals until the block ends, or a block inside is `open`."""
        yield from self._set(False)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let signals take effect at once inside the block."""
        yield from self._set(True)

    def _set(self, value: bool) -> Iterator[None]:
        before = self._open
        self._open = value
        try:
            if value:
                self.check()
            yield
        finally:
            self._open = before
        if before:
            self.check()


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Handle signals inside the block; only a main thread can.

    A signal that is ignored, as with `nohup`, or that has the caller's handler, keeps it.
    """
    stop, before = Stop(), {}
    if threading.current_thread() is threading.main_thread():
        wanted = [number for number in SIGNALS if signal.getsignal(number) in USUAL]
        before = {number: signal.signal(number, stop.handle) for number in wanted}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
