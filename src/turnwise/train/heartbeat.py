"""Tell that a run goes on while nothing else is told."""

import threading
import time
from collections.abc import Callable

EVERY_S = 30.0
"""Longest silence of a log (seconds)."""


class Heartbeat:
    """Call a function from a thread of its own whenever nothing was told for a while.

    Args:
        tell: The function.
        every_s: Longest silence (seconds).
    """

    def __init__(self, tell: Callable[[], None], every_s: float = EVERY_S):
        self._tell, self._every_s = tell, every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.told()

    def told(self) -> None:
        """Note that something was told just now."""
        self._last = time.monotonic()

    def start(self) -> None:
        """Begin to watch."""
        self.told()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for a line that is being told."""
        self._ended.set()
        if self._thread:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(max(0.01, self._last + self._every_s - time.monotonic())):
            if time.monotonic() - self._last >= self._every_s:
                self.told()
                self._tell()
