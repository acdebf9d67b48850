"""Environments that hang, crash or depend on the hash seed; processes of their own import them without pytest."""

import os
import sys
import time
from typing import Any

from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig


class Sound:
    """Three turns; the first answers may do what `kind` says."""

    def __init__(self, seed: int, *, kind: str = ""):
        self.seed, self.kind, self.played = seed, kind, 0
        if kind == "constructor hangs":
            time.sleep(3600)

    def start(self) -> Any:
        if self.kind == "start hangs":
            time.sleep(3600)
        if self.kind == "hash":
            return f"{self.seed}: {' '.join({'red', 'green', 'blue', 'pink', 'gray'})}"
        if self.kind == "hash offered":
            return Step(observation=f"{self.seed}", admissible=list({"red", "green", "blue", "pink", "gray"}))
        return f"{self.seed}"

    def step(self, response: str) -> Any:
        self.played += 1
        if self.kind == "hang":
            while True:
                pass
        if self.kind == "os._exit":
            os._exit(3)
        if self.kind == "segfault":
            os.kill(os.getpid(), 11)
        if self.kind == "sys.exit":
            sys.exit("enough")
        return Step(observation=str(self.played), terminated=self.played == 3, info={"success": False})


class Watch(Sound):
    """Says that its observations may differ."""

    repeats = False


class Waiting(Sound):
    """The same with coroutines."""

    async def start(self) -> Any:
        return super().start()

    async def step(self, response: str) -> Any:
        return super().step(response)


class Own:
    """A suite with its own tasks."""

    def __init__(self, config: EnvironmentConfig, *, kind: str = ""):
        if kind == "suite":
            raise OSError("no games here")

    def tasks(self, split: str) -> list[int]:
        return [1, 2, 3]

    def environment(self, task: int) -> Sound:
        return Sound(task)

    def task_name(self, task: int) -> str:
        return f"game {task}"


class Named(Own):
    """Its tasks are in a split of its own."""

    def tasks(self, split: str) -> list[int]:
        return {"mine": [1, 2]}[split]


class NoConfig(Own):
    def __init__(self):
        """Takes no configuration."""


class NoSeed(Sound):
    def __init__(self):
        """Takes no seed."""
