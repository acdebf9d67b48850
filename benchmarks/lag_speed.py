"""Measure what playing ahead gains where one environment in eight is ten times slower.

    OMP_NUM_THREADS=1 python -m benchmarks.lag_speed
    OMP_NUM_THREADS=1 python -m benchmarks.lag_speed --kind filter
    OMP_NUM_THREADS=1 python -m benchmarks.lag_speed --kind harness

Whole training runs of a tiny policy in worker processes, eight trajectories of six turns per step, each of a task of
its own, which says whether its environment is slow. Runs with and without lag take turns, so that other work on the
machine slows all of them. The first three steps do not count. A run with lag trains as many steps more at its beginning
and at its end, which do not count either: it is equally far ahead when the clock starts and when it stops, so that what
was played before does not count as gained. With a filter, four groups of two are learned from, those with a success and
a failure; with a harness, the same games are played through the gateway, by a function in threads.

"Of the ideal" is the least time that these environments allow over the measured one, if groups are taken in the order
of their start: a trajectory begins as soon as the weights that it may begin with are there, or the group that it
replaces has been dropped, with a worker for each environment or as many as `--workers` says. A step learns as long
after its rollouts, and takes at least as long in all, as one whose environments do not wait. That leaves generation
out. "With generation" adds to each wait the time of a response that is generated alone, likewise without waits.
"""

import argparse
import functools
import heapq
import itertools
import json
import random
import statistics
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from turnwise.config import parse_config
from turnwise.environments.base import Step
from turnwise.train.display import Display
from turnwise.train.loop import train

TURNS, SLOWER, SLOW_SHARE = 6, 10, 1 / 8
WARM_UP = 3
"""First steps of a run without lag, which do not count."""


def seconds_of(task: int, fast_ms: float) -> float:
    """Return how long a step of a task takes: the same tasks are slow in every run."""
    return fast_ms / 1000 * (SLOWER if random.Random(task).random() < SLOW_SHARE else 1)


class Uneven:
    """Waits `fast_ms` per step; one in eight waits ten times as long. A checksum of the last response says who wins."""

    def __init__(self, task: int, *, fast_ms: float):
        self.seconds, self.turn = seconds_of(task, fast_ms), 0

    @staticmethod
    def words(**options: Any) -> list[str]:
        """Return the words of all texts."""
        return ["say", "red", "green"]

    def start(self) -> str:  # noqa: D102
        return "say red"

    def step(self, response: str) -> Step:  # noqa: D102
        time.sleep(self.seconds)
        self.turn += 1
        won = zlib.crc32(response.encode()) % 2 == 0
        return Step(observation="say red", reward=float(won), terminated=self.turn == TURNS, info={"success": won})


def play(task: int, endpoint: Any) -> dict[str, Any]:
    """Play the environment as a harness, through the gateway."""
    game, messages, total = Uneven(task, fast_ms=FAST_MS[0]), list[dict[str, str]](), 0.0
    observation, ended, won = game.start(), False, False
    while not ended:
        messages.append({"role": "user", "content": observation})
        body = json.dumps({"messages": messages, "model": endpoint.model}).encode()
        headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            messages.append(json.load(answer)["choices"][0]["message"])
        step = game.step(messages[-1]["content"] or "")
        observation, ended, won = step.observation, step.terminated, step.info["success"]
        total += step.reward
    return {"reward": total, "success": won}


FAST_MS = [20.0]
"""Of the games that a harness plays."""
KINDS: dict[str, dict[str, Any]] = {
    "native": {"rollout": {"groups": 8, "group_size": 1}},
    "filter": {"rollout": {"groups": 4, "group_size": 2, "filter": "mixed"}},
    "harness": {"rollout": {"groups": 8, "group_size": 1}, "harness": {"run": "benchmarks.lag_speed:play"}},
}


TAKEN = ("group", "trajectory", "task", "success")
"""What the records of a step say of the groups that it took."""


class Group(NamedTuple):
    """A group that a step took: the task of each trajectory, and whether the filter kept it."""

    tasks: tuple[int, ...]
    kept: bool = True


class Measured(NamedTuple):
    """What a run took: seconds per step, those of them after its rollouts, and the groups of each step."""

    seconds: float
    learning: float
    steps: list[list[Group]]


class Times(Display):
    """Note when each step ends, and how long its rollouts took."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rollouts: list[float] = []

    def step(self, step: int, steps: int, metrics: Any) -> None:
        """Note the times."""
        self.ends.append(time.perf_counter())
        self.rollouts.append(metrics.get("time/rollout_s", 0.0))


def seconds_per_step(
    lag: int,
    fast_ms: float,
    steps: int,
    hidden: int = 64,
    workers: int = 0,
    kind: str = "native",
    groups: int | None = None,
) -> Measured:
    """Train a policy; return the means of `steps - WARM_UP` steps, whatever the lag."""
    first, last, given = WARM_UP + lag, steps + lag, KINDS[kind]
    sizes = {"groups": groups} if groups else {}
    FAST_MS[0] = fast_ms
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config({
            "run": {"folder": folder, "name": f"lag-{lag}", "steps": last + lag, "threads": 1},
            "environment": {"name": "benchmarks.lag_speed:Uneven", "options": {"fast_ms": fast_ms}, "workers": workers,
                            "isolation": "worker"},
            "model": {"hidden_size": hidden, "num_layers": 2, "max_context": 256},
            "warmstart": {"steps": 0},
            "method": "reinforce",
            **given,
            "rollout": {**given["rollout"], **sizes, "max_new_tokens": 8, "max_lag": lag},
            "update": {"learning_rate": 1e-9},  # a policy that always wins would leave a filter nothing
            "evaluate": {"every": 0, "final_episodes": 2},
            "checkpoint": {"every": 1000},
        })  # fmt: skip
        times = Times()
        train(config, display=times)
        files = sorted(Path(folder).glob("*/rollouts/*.parquet"))
        steps = [groups_of(pq.read_table(file, columns=list(TAKEN)).to_pydict(), kind) for file in files]
    seconds = (times.ends[last - 1] - times.ends[first - 1]) / (last - first)
    return Measured(seconds, seconds - sum(times.rollouts[first:last]) / (last - first), steps)


def groups_of(rows: dict[str, list[Any]], kind: str) -> list[Group]:
    """Return the groups that a step took, in their order, from its records of turns."""
    played = {
        (group, one): (int(task), won) for group, one, task, won in zip(*(rows[name] for name in TAKEN), strict=True)
    }
    groups = []
    for number in dict.fromkeys(group for group, _ in played):
        tasks, won = zip(*(each for (group, _), each in played.items() if group == number), strict=True)
        groups.append(Group(tasks, kind != "filter" or len({*won}) > 1))
    return groups


def ideal_seconds(
    steps: Sequence[Sequence[Group]],
    lag: int,
    fast_ms: float,
    workers: int,
    wanted: int,
    computes: float = 0.0,
    learning: float = 0.0,
    generates: float = 0.0,
) -> float:
    """Return the least seconds per step that the groups which each step took, in their order, allow.

    The order is the pool's: another group starts for each that is dropped, and `wanted` ones when a step has learned.
    Each of the workers waits for one environment at a time. A response takes `generates` seconds, whatever else is
    generated. A step computes for `computes` seconds, and learns in the last `learning` of them.
    """
    groups, asked, ends, free = [group for step in steps for group in step], [], list[float](), [0.0] * workers
    left = [[TURNS] * len(group.tasks) for group in groups]
    done, over = [0.0] * len(groups), set(itertools.accumulate(map(len, steps)))
    started, taken, now = 0, 0, 0.0

    def start(at: float, count: int) -> None:
        nonlocal started
        for number in range(started, min(started + count, len(groups))):
            for member in range(len(groups[number].tasks)):
                heapq.heappush(asked, (at, number, member))
        started = min(started + count, len(groups))

    start(0.0, (1 + lag) * wanted)
    while asked:
        at, number, member = heapq.heappop(asked)
        home = (number * len(groups[number].tasks) + member) % workers
        at = free[home] = max(at + generates, free[home]) + seconds_of(groups[number].tasks[member], fast_ms)
        left[number][member] -= 1
        done[number] = max(done[number], at)
        if left[number][member]:
            heapq.heappush(asked, (at, number, member))
        while taken < started and not any(left[taken]):
            now, taken = max(now, done[taken]), taken + 1
            if not groups[taken - 1].kept:
                start(now, 1)
            if taken in over:
                now = max(now + learning, (ends[-1] if ends else 0.0) + computes)
                ends.append(now)
                start(now, (1 + lag) * wanted - (started - taken))
    return (ends[-1] - ends[len(ends) // 3]) / (len(ends) - 1 - len(ends) // 3)


def main() -> None:
    """Print a table: steps per hour without and with lag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--fast-ms", type=float, nargs="+", default=[20.0, 50.0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="default: as many as turnwise chooses")
    parser.add_argument("--kind", choices=KINDS, default="native")
    options = parser.parse_args()
    print(
        "| ms per step, fast and slow | lag | steps per hour | times lag 0, by round | of the ideal | with generation |"
    )
    print("|-:|-:|-:|-|-|-|")
    measured = functools.partial(
        seconds_per_step, hidden=options.hidden, workers=options.workers, kind=options.kind, steps=options.steps
    )
    least = min(measured(0, 0.0) for _ in range(options.rounds))
    alone = min(measured(0, 0.0, kind="native", groups=1) for _ in range(options.rounds))
    generates = (alone.seconds - alone.learning) / TURNS
    computes = {"computes": least.seconds, "learning": least.learning}
    for fast_ms in options.fast_ms:
        lags = [0, *options.lags]
        rounds = [{lag: measured(lag, fast_ms) for lag in lags} for _ in range(options.rounds)]
        for lag in lags:
            seconds = [each[lag].seconds for each in rounds]
            gains = ", ".join(f"{each[0].seconds / each[lag].seconds:.2f}" for each in rounds)
            how = (lag, fast_ms, options.workers or 10**4, KINDS[options.kind]["rollout"]["groups"])
            shares = [
                ", ".join(
                    f"{100 * ideal_seconds(each[lag].steps, *how, **bound) / each[lag].seconds:.0f} %"
                    for each in rounds
                )
                for bound in (computes, {**computes, "generates": generates})
            ]
            speed = f"{3600 / statistics.median(seconds):,.0f}"
            print("", f"{fast_ms:g}, {fast_ms * SLOWER:g}", lag, speed, gains, *shares, "", sep=" | ", flush=True)
    print(
        f"\nWithout waits a step takes {least.seconds:.2f} s, {least.learning:.2f} of it after its rollouts. "
        f"A response that is generated alone takes {1000 * generates:.0f} ms."
    )


if __name__ == "__main__":
    main()
