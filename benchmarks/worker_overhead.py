"""Measure what worker processes add to a step: the same environments in this process and in workers.

    OMP_NUM_THREADS=1 python -m benchmarks.worker_overhead

An environment answers at once with a text of a given length. A single environment shows the latency of a step. Many
concurrent ones show the time that a step takes from the event loop, where responses are generated. The processor time
of the trainer's process is counted too, since other work on the machine does not change it.
"""

import argparse
import asyncio
import os
import platform
import time

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.workers import WorkerEnvironments


class Echo:
    """Answers with as many characters as its task says, and dies on request."""

    def __init__(self, task: int):
        self.text = "x" * task

    def start(self) -> str:  # noqa: D102
        return self.text

    def step(self, response: str) -> Step:  # noqa: D102
        if response == "die":
            os._exit(1)
        return Step(observation=self.text, reward=1.0, valid=True, info={"success": False})


class Busy:
    """Computes for as many milliseconds per step as its task says."""

    def __init__(self, task: int):
        self.seconds = task / 1000

    def start(self) -> str:  # noqa: D102
        return ""

    def step(self, response: str) -> Step:  # noqa: D102
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return Step(observation="")


async def play(environments: Environments, key: int, task: int, steps: int) -> None:
    await environments.start(key, task)
    for _ in range(steps):
        await environments.step(key, "go to cabinet 1")
    environments.close(key)


async def measure(environments: Environments, *, side_by_side: int, chars: int, steps: int) -> tuple[float, float]:
    """Measure microseconds per step: elapsed, and of this process."""
    await asyncio.gather(*[play(environments, key, chars, 10) for key in range(side_by_side)])  # processes start
    elapsed, own = time.perf_counter(), time.process_time()
    await asyncio.gather(*[play(environments, key, chars, steps // side_by_side) for key in range(side_by_side)])
    return 1e6 * (time.perf_counter() - elapsed) / steps, 1e6 * (time.process_time() - own) / steps


async def time_of_loss(environments: Environments, losses: int) -> float:
    """Measure the time from a step that kills a worker to its neighbour's next answer, after ten steps (ms)."""
    total = 0.0
    for _ in range(losses):
        await environments.start(0, 100)
        for _ in range(10):
            await environments.step(0, "go")
        await environments.start(1, 100)
        begun = time.perf_counter()
        try:
            await environments.step(1, "die")
        except EnvironmentFault:
            await environments.step(0, "go")
        total += time.perf_counter() - begun
        environments.close(0)
        environments.close(1)
    return 1e3 * total / losses


async def main() -> None:
    from benchmarks.worker_overhead import Busy, Echo  # workers cannot import what only the running script has

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, microseconds a step")
    print("| environments | characters | in process | workers | of that, trainer's processor |\n|-:|-:|-:|-:|-:|")
    for side_by_side in (1, 64):
        for chars in (100, 2_000, 50_000):
            here, there = InProcessEnvironments(Echo), WorkerEnvironments(Echo, workers=2)
            size = {"side_by_side": side_by_side, "chars": chars, "steps": options.steps}
            (base, _), (elapsed, own) = await measure(here, **size), await measure(there, **size)
            await there.aclose()
            print(f"| {side_by_side} | {chars:,} | {base:.0f} | {elapsed:.0f} | {own:.0f} |")
    print("\nsteps per second of environments that compute 2 ms per step, 16 concurrently")
    print("| in process | 1 worker | 2 workers | 4 workers |\n|-:|-:|-:|-:|")
    size = {"side_by_side": 16, "chars": 2, "steps": options.steps // 10}
    elapsed = [(await measure(InProcessEnvironments(Busy), **size))[0]]
    for workers in (1, 2, 4):
        there = WorkerEnvironments(Busy, workers=workers)
        elapsed.append((await measure(there, **size))[0])
        await there.aclose()
    print("| " + " | ".join(f"{1e6 / microseconds:.0f}" for microseconds in elapsed) + " |")
    begun = time.perf_counter()
    environments = WorkerEnvironments(Echo, workers=1)
    await environments.start(0, 100)
    print(f"first worker ready and first answer: {1e3 * (time.perf_counter() - begun):.0f} ms")
    environments.close(0)
    print(f"a lost worker, until its neighbour answers in a new one: {await time_of_loss(environments, 50):.1f} ms")
    await environments.aclose()


if __name__ == "__main__":
    asyncio.run(main())
