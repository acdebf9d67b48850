"""Worlds that do what worlds should not. Workers import this file, so it imports nothing heavy."""

import os
import signal
import sys
import time
from typing import Any

from turnwise.environments.base import Step

WORDS = ("red", "green", "blue", "pink")


class Hostile:
    """The task `(seed, turns, kind)` lasts `turns` turns and misbehaves as `kind` says in the second one."""

    def __init__(self, task: tuple[int, int, str]):
        self.seed, self.turns, self.kind = task
        self.said: list[str] = []
        if self.kind == "constructor":
            raise OSError("no room for another world")

    def start(self) -> Any:
        while self.kind == "start hangs":
            pass
        return Step(observation="say red", state_key=("start", self.seed), admissible=WORDS)

    def step(self, response: str) -> Any:
        self.said.append(response)
        if len(self.said) == 2 and (done := getattr(self, "_" + self.kind, None)):
            return done()
        if self.kind == "slow":
            time.sleep(0.1)
        return Step(
            observation=f"{self.seed}: {' '.join(self.said)} \N{SNOWMAN}",
            reward=len(response) / 7,
            terminated=len(self.said) == self.turns,
            valid=response != "pink",
            state_key=(self.seed, *self.said),
            info={"success": response == "red", "said": list(self.said)},
        )

    def _hang(self) -> None:
        time.sleep(3600)

    def _exit(self) -> None:
        os._exit(3)

    def _sys_exit(self) -> None:
        sys.exit("enough")

    def _segfault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def _raise(self) -> None:
        raise ValueError("a wire came loose")

    def _nan(self) -> Step:
        return Step(observation="", reward=float("nan"))

    def _garbage(self) -> Any:
        return "say red"

    def _giant(self) -> Step:
        return Step(observation="x" * 2_000)

    def _giant_info(self) -> Step:
        return Step(observation="", info={"log": "x" * (2 << 20)})

    def _unpicklable(self) -> Step:
        return Step(observation="", info={"open": lambda: None})

    def _memory(self) -> None:
        hoard = []
        while True:
            hoard.append(bytearray(10 << 20))

    def _long(self) -> Step:
        return Step(observation="x" * 90_000)  # more than one read of a pipe

    def _process(self) -> Step:
        return Step(observation=str(os.getpid()))


class Waiting(Hostile):
    """The same with coroutines."""

    async def start(self) -> Any:
        return Hostile.start(self)

    async def step(self, response: str) -> Any:
        return Hostile.step(self, response)


class Fickle(Hostile):
    """Says another thing in every process."""

    def start(self) -> Step:
        return Step(observation=f"say red, said process {os.getpid()}")


class Watch(Fickle):
    """The same, and says that it does not matter."""

    repeats = False


class NotThere:
    """Can be pickled by the trainer only."""

    def __reduce__(self) -> Any:
        return __import__, ("turnwise_no_such_module",)

    def __call__(self, task: Any) -> Hostile:
        return Hostile(task)
