"""Long runs use no more at their end than at their start.

python -m tests.long_runs environment 2000000    # steps of household games in two workers
python -m tests.long_runs training 3000          # steps of a tiny training

prints the memory over time (MiB, median of each tenth), and what is open before and after.
"""

import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.toys import small_config
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.workers import WorkerEnvironments
from turnwise.train.display import Display
from turnwise.train.loop import train

TOGETHER = 16
"""Episodes at a time."""


def processes() -> list[int]:
    """Find this process and its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [os.getpid()]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def memory_mb() -> float:
    """Sum what this process and its descendants hold; pages that several of them share count once.

    Pages of files are left out: of a library that other programs map too, each counts its part, which grows when
    another one ends.
    """
    total = 0
    for process in processes():
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(kib) for kib in re.findall(r"^Pss_(?:Anon|Shmem): *(\d+)", text, re.MULTILINE))
    return total / 1024


def opened() -> dict[str, int]:
    """Count open files, threads and processes."""
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(processes()),
    }


async def play(steps: int, memory: list[float]) -> None:
    """Play household games in workers with random admissible actions, and record the memory."""
    suite = make_suite(EnvironmentConfig(name="household"))
    tasks = suite.tasks("train")
    environments = WorkerEnvironments(suite.environment, workers=2)
    done, next_key, every = 0, 0, max(1, steps // 200)

    async def episodes(seed: int) -> None:
        nonlocal done, next_key
        chance = random.Random(seed)
        while done < steps:
            key, next_key = next_key, next_key + 1
            step = await environments.start(key, chance.choice(tasks))
            while not step.ended and done < steps:
                step = await environments.step(key, chance.choice(step.admissible or ["look"]))
                done += 1
                if done % every == 0:
                    memory.append(memory_mb())
            environments.close(key)

    try:
        await asyncio.gather(*map(episodes, range(TOGETHER)))
    finally:
        await environments.aclose()


class Watching(Display):
    """Records the memory after every step."""

    def __init__(self, memory: list[float]):
        super().__init__()
        self.memory = memory

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None:
        self.memory.append(memory_mb())


def learn(steps: int, memory: list[float]) -> None:
    """Train a tiny policy, and record the memory."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"checkpoint": {"every": 100, "keep": 2}, "evaluate": {"every": 500}}
        train(small_config(Path(folder), run={"steps": steps}, **settings), display=Watching(memory))


def run(what: str, steps: int) -> dict[str, object]:
    """Run something once to load all that it needs, then at length; returns what it used."""
    does = {"environment": lambda steps, memory: asyncio.run(play(steps, memory)), "training": learn}[what]
    does(min(steps, 50), [])
    memory: list[float] = []
    before, began = opened(), time.monotonic()
    does(steps, memory)
    tenth = max(1, len(memory) // 10)
    tenths = [round(statistics.median(memory[start : start + tenth]), 1) for start in range(0, len(memory), tenth)]
    seconds = time.monotonic() - began
    return {"steps": steps, "seconds": round(seconds, 1), "memory_mb": tenths, "before": before, "after": opened()}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
