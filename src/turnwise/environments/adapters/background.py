"""An event loop in a thread of its own, for worlds whose connections must stay alive while the trainer computes."""

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines in one thread, whichever event loops their callers have, and keeps serving them in between.

    A trainer has a new event loop for every collection and leaves it for minutes of backward passes; a connection that lived in it
    would miss the other side's pings. The thread starts with the first coroutine, so an object that has run none may be forked.
    """

    def __init__(self):
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the thread and wait; a cancelled caller cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started()))

    def soon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run in the thread without waiting, from any thread and from finalizers."""
        if self._loop is None or self._loop.is_closed():
            work.close()  # the interpreter ends, and what the work would let go of with it
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="turnwise-worlds", daemon=True)
                thread.start()
                atexit.register(_stop, loop, thread)
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=5.0)
