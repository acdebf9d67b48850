"""Measures what worker processes add to a step: the same worlds in this process and in workers.

    OMP_NUM_THREADS=1 python -m benchmarks.worker_overhead

A world answers at once with a text of a given length. One world alone shows the latency of a step, many side by side the time a step takes
away from the event loop, where responses are generated. Processor time of the trainer's process is counted, too, since other work on the
machine does not change it.
"""

import argparse
import asyncio
import os
import platform
import time

from turnwise.environments.base import Step
from turnwise.errors import WorldFault
from turnwise.rollout.workers import WorkerWorlds
from turnwise.rollout.worlds import InProcessWorlds, Worlds


class Echo:
    """Answers with as many characters as its task says, and dies when told to."""

    def __init__(self, task: int):
        self.text = "x" * task

    def start(self) -> str:  # noqa: D102
        return self.text

    def step(self, response: str) -> Step:  # noqa: D102
        if response == "die":
            os._exit(1)
        return Step(observation=self.text, reward=1.0, valid=True, info={"success": False})


class Busy:
    """Computes for as many milliseconds a step as its task says."""

    def __init__(self, task: int):
        self.seconds = task / 1000

    def start(self) -> str:  # noqa: D102
        return ""

    def step(self, response: str) -> Step:  # noqa: D102
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return Step(observation="")


async def play(worlds: Worlds, key: int, task: int, steps: int) -> None:
    await worlds.start(key, task)
    for _ in range(steps):
        await worlds.step(key, "go to cabinet 1")
    worlds.close(key)


async def measure(worlds: Worlds, *, side_by_side: int, chars: int, steps: int) -> tuple[float, float]:
    """Microseconds a step: elapsed, and of this process."""
    await asyncio.gather(*[play(worlds, key, chars, 10) for key in range(side_by_side)])  # processes start
    elapsed, own = time.perf_counter(), time.process_time()
    await asyncio.gather(*[play(worlds, key, chars, steps // side_by_side) for key in range(side_by_side)])
    return 1e6 * (time.perf_counter() - elapsed) / steps, 1e6 * (time.process_time() - own) / steps


async def time_of_loss(worlds: Worlds, losses: int) -> float:
    """Milliseconds from a step that kills the worker to the next answer of its neighbour, made anew after ten steps."""
    total = 0.0
    for _ in range(losses):
        await worlds.start(0, 100)
        for _ in range(10):
            await worlds.step(0, "go")
        await worlds.start(1, 100)
        begun = time.perf_counter()
        try:
            await worlds.step(1, "die")
        except WorldFault:
            await worlds.step(0, "go")
        total += time.perf_counter() - begun
        worlds.close(0)
        worlds.close(1)
    return 1e3 * total / losses


async def main() -> None:
    from benchmarks.worker_overhead import Busy, Echo  # workers cannot import what only the running script has

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, microseconds a step")
    print(
        "| worlds side by side | characters | in process | workers | of that, trainer's processor |\n|-:|-:|-:|-:|-:|"
    )
    for side_by_side in (1, 64):
        for chars in (100, 2_000, 50_000):
            here, there = InProcessWorlds(Echo), WorkerWorlds(Echo, workers=2)
            size = {"side_by_side": side_by_side, "chars": chars, "steps": options.steps}
            (base, _), (elapsed, own) = await measure(here, **size), await measure(there, **size)
            await there.aclose()
            print(f"| {side_by_side} | {chars:,} | {base:.0f} | {elapsed:.0f} | {own:.0f} |")
    print("\nsteps a second of worlds that compute 2 ms a step, 16 side by side")
    print("| in process | 1 worker | 2 workers | 4 workers |\n|-:|-:|-:|-:|")
    size = {"side_by_side": 16, "chars": 2, "steps": options.steps // 10}
    elapsed = [(await measure(InProcessWorlds(Busy), **size))[0]]
    for workers in (1, 2, 4):
        there = WorkerWorlds(Busy, workers=workers)
        elapsed.append((await measure(there, **size))[0])
        await there.aclose()
    print("| " + " | ".join(f"{1e6 / microseconds:.0f}" for microseconds in elapsed) + " |")
    begun = time.perf_counter()
    worlds = WorkerWorlds(Echo, workers=1)
    await worlds.start(0, 100)
    print(f"first worker ready and first answer: {1e3 * (time.perf_counter() - begun):.0f} ms")
    worlds.close(0)
    print(f"a lost worker, until its neighbour has answered in a new one: {await time_of_loss(worlds, 50):.1f} ms")
    await worlds.aclose()


if __name__ == "__main__":
    asyncio.run(main())
