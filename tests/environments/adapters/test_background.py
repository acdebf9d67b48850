"""The thread in which the connections of environments live."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time

import pytest

from turnwise.worlds.adapters.background import Background


async def where():
    return threading.get_ident()


def test_work_of_all_event_loops_is_done_in_one_thread():
    background = Background()

    async def here():
        return await asyncio.gather(background.run(where()), background.run(where()))

    (thread,) = {*asyncio.run(here()), *asyncio.run(here())}
    assert thread != threading.get_ident()


def test_work_goes_on_while_the_caller_computes():
    background, ticks = Background(), []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def start():
        asyncio.create_task(tick())  # noqa: RUF006 (it lives as long as the loop)

    asyncio.run(background.run(start()))
    before = len(ticks)
    time.sleep(0.3)  # no event loop of ours runs
    assert len(ticks) > before + 3


def test_errors_come_back():
    async def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(Background().run(fail()))


def test_a_cancelled_caller_cancels_the_work():
    background, cancelled = Background(), threading.Event()

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def caller():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await background.run(work())

    asyncio.run(caller())
    assert cancelled.wait(5.0)


def test_work_may_be_left_to_itself():
    background, done = Background(), threading.Event()

    async def work():
        done.set()

    background.soon(work())  # no thread yet, so nothing that it could let go of
    assert not done.wait(0.1)
    asyncio.run(background.run(where()))
    background.soon(work())
    assert done.wait(5.0)


def test_a_process_with_work_left_ends_in_peace():
    program = """
import asyncio
from turnwise.worlds.adapters.background import Background
background = Background()
async def last():
    try:
        await asyncio.sleep(60)
    finally:
        print("let go", flush=True)
async def start():
    background.task = asyncio.create_task(last())
    await asyncio.sleep(0)
asyncio.run(background.run(start()))
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "let go\n", "")
