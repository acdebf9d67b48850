"""Run coroutines from synchronous code, and keep an event loop for rollouts from step to step."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from turnwise.base.errors import EngineLost

T = TypeVar("T")
PATIENCE_S = 10.0
"""Time limit for tasks to end after a signal (seconds)."""


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, even in a notebook, where an event loop already runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    with ThreadPoolExecutor(1) as other:
        return other.submit(_run, work).result()


class Loop:
    """An event loop for rollouts; this one is new for each call, so nothing lives on between steps."""

    apart = False  # whether it has its own thread, and keeps running while the trainer learns

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for it."""
        return blocking(work)

    async def visit(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that belongs to the loop, in another event loop.

        Raises:
            EngineLost: The loop was closed.
        """
        return await work

    def soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the loop, after earlier requests."""
        call(*arguments)

    def close(self) -> None:
        """Cancel the loop's tasks, and end it."""


class PersistentLoop(Loop):
    """A loop in the trainer's thread: its tasks pause between two calls of `run`."""

    def __init__(self) -> None:
        self._runner, self._reports = asyncio.Runner(), _Reports()
        self._other: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, even in a notebook, where an event loop already runs."""
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
            return self._reports.run(self._runner, work)


class ThreadLoop(Loop):
    """A loop on its own thread, which keeps running while the trainer learns."""

    apart = True

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ended = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwise-rollouts", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for it; an interruption cancels it."""
        future = asyncio.run_coroutine_threadsafe(self._unless_ended(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def visit(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine of the loop in another event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._unless_ended(work), self._loop))

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        if self._ended:
            work.close()
            raise EngineLost("the rollouts of this run have ended")
        return await work

    def soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the loop."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def close(self) -> None:
        """Cancel the loop's tasks, and end its thread."""
        self.soon(self._cancel)
        self.soon(self._loop.stop)
        self._thread.join()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(self._settle(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())  # such as those that close connections
        self._loop.close()

    @staticmethod
    async def _settle(tasks: set[asyncio.Task[Any]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE_S)
        await asyncio.sleep(0)  # those who wait for what ended just before the loop are told, too

    def _cancel(self) -> None:
        self._ended = True
        for task in asyncio.all_tasks(self._loop):
            task.cancel()


def make_loop(*, apart: bool, persistent: bool = False) -> Loop:
    """Make the loop of a run's rollouts.

    Args:
        apart: Whether they keep running while the trainer learns, on their own thread.
        persistent: Whether they rest between steps.
    """
    return ThreadLoop() if apart else PersistentLoop() if persistent else Loop()


def _run(work: Coroutine[Any, Any, T]) -> T:
    reports = _Reports()
    with reports.muted_by_a_signal(), asyncio.Runner() as runner:
        try:
            return reports.run(runner, work)
        except KeyboardInterrupt:
            _end_tasks(runner)
            raise


def _end_tasks(runner: asyncio.Runner) -> None:
    """Cancel all tasks, and abandon those that do not end.

    A signal's exception may interrupt a callback of the event loop itself, such as the one that wakes a task whose
    awaitable is done. That task would wait forever, and so would closing the loop.
    """
    loop = runner.get_loop()
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        for task in loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE_S))[1]:
            asyncio.tasks._unregister_task(task)  # pyright: ignore[reportAttributeAccessIssue]


class _Reports:
    """Filter an event loop's reports: a signal's exception reaches the caller, so it is not printed as well."""

    def __init__(self) -> None:
        self._muted = False

    @contextlib.contextmanager
    def muted_by_a_signal(self) -> Iterator[None]:
        """Report nothing more once a signal has ended the block: its tasks may be destroyed much later."""
        try:
            yield
        except KeyboardInterrupt:
            self._muted = True
            raise

    def run(self, runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a loop that reports here.

        Its result is not the task's, which the SIGINT handler holds: `signal.signal` formats handlers in an internal
        error that is never seen, and with them everything that a step has played.
        """
        result: list[T] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(self._report)
            result.append(await work)

        runner.run(watched())
        return result[0]

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not (self._muted or isinstance(context.get("exception"), KeyboardInterrupt)):
            loop.default_exception_handler(context)
