"""Ends `turnwise gateway` at random moments, again and again: `python -m tests.gateway.kills FOLDER TIMES`.

Agents play sessions meanwhile, and note those whose reward was acknowledged. Lives are forks of one process that has
imported everything, as in `tests.train.kills`.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from http.client import HTTPException
from pathlib import Path

import numpy as np

from tests.gateway.asking import ask, post, user
from tests.toys import small_config
from tests.train.kills import whole  # noqa: F401 (makes tqdm safe to fork)
from tests.train.signals import ended, live
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.rollout.record import read_rollouts
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

BATCH, AGENTS, FLUSH_S = 4, 3, 2.0
"""Sessions per recorded step, agents that play, and the longest time until a full step is written (seconds)."""


class Agents:
    """Play sessions until the gateway is gone."""

    def __init__(self, address: str):
        self.acknowledged: dict[str, tuple[float, float]] = {}
        self._address = address
        self._threads = [threading.Thread(target=self._play, args=(number,)) for number in range(AGENTS)]
        for thread in self._threads:
            thread.start()

    def _play(self, number: int) -> None:
        for session in range(10**6):
            name, reward = f"agent-{number}-{session}", float((number + session) % 2)
            endpoint = Endpoint(f"{self._address}/s/{name}/v1", "any", "policy")
            try:
                said = [user("say red")]
                said.append({"role": "assistant", "content": ask(endpoint, said)["content"]})
                ask(endpoint, [*said, user("say green")])
                post(endpoint, "reward", reward)
            except (OSError, RuntimeError, HTTPException):
                return
            self.acknowledged[name] = (time.monotonic(), reward)

    def join(self) -> dict[str, tuple[float, float]]:
        for thread in self._threads:
            thread.join()
        return self.acknowledged


def address_in(path: Path, process: int) -> str:
    """Wait until the gateway says where it is."""
    for _ in range(2400):
        text = path.read_text() if path.exists() else ""
        if " at http" in text:
            return text.partition(" at ")[2].partition("/s/NAME")[0]
        assert os.waitpid(process, os.WNOHANG)[0] == 0, text
        time.sleep(0.05)
    raise AssertionError("the gateway did not start")


def problems(out: Path, acknowledged: dict[str, tuple[float, float]], at: float, number: int) -> list[str]:
    """What is wrong with what a gateway left that a signal ended at a moment."""
    found, recorded = [], {}
    if out.exists():
        run, _ = RunFolder.open(out)
        for path in sorted(run.rollouts.glob("*")):
            if path.suffix != ".tmp":  # what a kill interrupted has not got its name yet
                trajectories, columns = read_rollouts(path)
                recorded |= {each.task: each for each in trajectories}
                with_credit = np.isfinite(columns.get("advantage", np.array([]))).sum()
                if with_credit != sum(len(each.turns) for each in trajectories if each.usable):
                    found.append(f"{path.name} lacks credit")
        run.metrics()
    for name, (_, reward) in acknowledged.items():
        if name in recorded and (recorded[name].reward, len(recorded[name].turns)) != (reward, 2):
            found.append(f"{name} is recorded with {recorded[name].reward}")
    lost = [moment for name, (moment, _) in acknowledged.items() if name not in recorded]
    if number == signal.SIGTERM and lost:
        found.append(f"SIGTERM lost {len(lost)} sessions")
    if len([moment for moment in lost if moment < at - FLUSH_S]) >= BATCH:
        found.append(f"a kill lost {len(lost)} sessions, some of a step that was full")
    return found


def main(folder: Path, times: int) -> None:
    """End a gateway so many times; prints what was lost or damaged."""
    process = os.fork()
    if not process:
        train(small_config(folder, run={"steps": 0}, evaluate={"final_episodes": 1}))
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    moments, told = random.Random(0), {"kills": 0, "terminated": 0, "sessions": 0, "problems": []}
    for life in range(times):
        place, out = folder / f"life-{life}", folder / f"out-{life}"
        words = ["gateway", str(folder / "run"), "--out", str(out), "--port", "0", "--batch", str(BATCH)]
        process, number = live(place, words), moments.choice([signal.SIGKILL, signal.SIGTERM])
        agents = Agents(address_in(place / "err", process))
        time.sleep(moments.uniform(0, 3))
        at = time.monotonic()
        os.kill(process, number)
        code, acknowledged = ended(process), agents.join()
        told["kills" if number == signal.SIGKILL else "terminated"] += 1
        told["sessions"] += len(acknowledged)
        found = [] if code == 128 + number else [f"exit code {code}"]
        found += problems(out, acknowledged, at, number)
        if out.exists():
            code = ended(live(place, ["report", str(out), "--output", str(place / "page")]))
            found += [] if code == 0 or not any((out / "rollouts").glob("*.parquet")) else [f"report: exit code {code}"]
        told["problems"] += [f"life {life}: {each}" for each in found]
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
