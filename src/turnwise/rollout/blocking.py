"""Run coroutines from synchronous code."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


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
        self._runner = asyncio.Runner()
        self._other: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, also in a notebook, where an event loop already runs."""
        if self._other is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return self._runner.run(_quiet(work))
            self._other = ThreadPoolExecutor(1)
        return self._other.submit(self._runner.run, _quiet(work)).result()

    def close(self) -> None:
        """Cancel the tasks that wait, and close the loop."""
        if self._other is None:
            self._runner.close()
        else:
            self._other.submit(self._runner.close).result()
            self._other.shutdown()


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(_quiet(work))


async def _quiet(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine. What a signal raises in a task reaches the caller from the loop, so no task prints it."""

    def say(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(say)
    return await work
