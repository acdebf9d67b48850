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


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. What a signal raises in a task reaches the caller from the loop, so no task prints it again."""

    def say(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(say)
        return await work

    return asyncio.run(main())
