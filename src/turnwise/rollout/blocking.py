"""Run coroutines from synchronous code."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 10.0
"""Longest time for tasks to end after a signal (seconds)."""


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also in a notebook, where an event loop already runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    with ThreadPoolExecutor(1) as other:
        return other.submit(_run, work).result()


class LastingLoop:
    """Run coroutines from synchronous code in one event loop, in which tasks wait from one call to the next."""

    def __init__(self) -> None:
        self._runner, self._reports = asyncio.Runner(), _Reports()
        self._other: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, also in a notebook, where an event loop already runs."""
        if self._other is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return self._run(work)
            self._other = ThreadPoolExecutor(1)
        return self._other.submit(self._run, work).result()

    def close(self) -> None:
        """Cancel the tasks that wait, and close the loop."""
        with self._reports.muted_by_a_signal():
            if self._other is None:
                _end_tasks(self._runner)
                self._runner.close()
            else:
                self._other.submit(self._runner.close).result()
                self._other.shutdown()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._reports.muted_by_a_signal():
            return self._runner.run(self._reports.watch(work))


def _run(work: Coroutine[Any, Any, T]) -> T:
    reports = _Reports()
    with reports.muted_by_a_signal(), asyncio.Runner() as runner:
        try:
            return runner.run(reports.watch(work))
        except KeyboardInterrupt:
            _end_tasks(runner)
            raise


def _end_tasks(runner: asyncio.Runner) -> None:
    """Cancel all tasks, and leave those alone that do not end.

    What a signal raises may cut a callback of the event loop itself, such as the one that tells a task that what it
    awaits is done. That task waits for ever, and so would closing the loop.
    """
    loop = runner.get_loop()
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        for task in loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE_S))[1]:
            asyncio.tasks._unregister_task(task)  # pyright: ignore[reportAttributeAccessIssue]


class _Reports:
    """What an event loop reports: what a signal raises reaches the caller, so neither it nor what it cut is printed."""

    def __init__(self) -> None:
        self._muted = False

    @contextlib.contextmanager
    def muted_by_a_signal(self) -> Iterator[None]:
        """Report nothing more once a signal has ended the block: its tasks are destroyed, maybe much later."""
        try:
            yield
        except KeyboardInterrupt:
            self._muted = True
            raise

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine in a loop that reports here."""
        asyncio.get_running_loop().set_exception_handler(self._report)
        return await work

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not (self._muted or isinstance(context.get("exception"), KeyboardInterrupt)):
            loop.default_exception_handler(context)
