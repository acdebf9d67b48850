"""Environments that do to a worker what a policy's text could, where that text is executed. Imports nothing heavy."""

import ctypes
import json
import os
import pickle
import stat
import struct
import sys
import time
from typing import Any

from turnwise.environments.base import Step

HEAD = struct.Struct("<Q")
PIDFD_OPEN, PIDFD_GETFD = 434, 438
"""Numbers of system calls, equal on every architecture."""


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, mark: str):
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (self.mark, "w")


def say(raw: bytes) -> None:
    """Write into every socket of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), raw)
        except OSError:
            pass


def framed(body: bytes) -> bytes:
    return HEAD.pack(len(body)) + body


def answer(number: int, **fields: Any) -> bytes:
    """A message of the right form with some fields forged."""
    step = {"observation": "forged", "reward": 1.0, "rewards": None, "terminated": True, "truncated": False}
    step |= {"valid": True, "state_key": None, "admissible": None, "info": {"success": True}} | fields
    return framed(json.dumps({"number": number, "seconds": 0.0, "step": step}).encode())


class Forging:
    """The task `(seed, kind, mark)` lasts three turns and does as `kind` says in the second one.

    Requests are numbered from 1 in each worker. Alone in its worker, the environment is asked for number 3 then.
    """

    def __init__(self, task: tuple[int, str, str]):
        self.seed, self.kind, self.mark = task
        self.turn = 0

    def start(self) -> str:
        return f"{self.seed}: 0"

    def step(self, response: str) -> Step:
        self.turn += 1
        if self.turn == 2 and self.kind:
            made = getattr(self, "_" + self.kind)()
            if made is not None:
                return made
        return Step(observation=f"{self.seed}: {self.turn} {response}", reward=self.seed, terminated=self.turn == 3)

    # objects that run code where they are unpickled
    def _bomb_in_info(self) -> Step:
        return Step(observation="", info={"value": Bomb(self.mark)})

    def _bomb_in_nested_info(self) -> Step:
        return Step(observation="", info={"value": [{"deep": (Bomb(self.mark),)}]})

    def _bomb_in_key(self) -> Step:
        return Step(observation="", state_key=("a", Bomb(self.mark)))

    # bytes in the pipe
    def _pickle(self) -> None:
        say(framed(pickle.dumps((0.0, Bomb(self.mark)))))

    def _old_pickle(self) -> None:  # as version 0.2 framed it
        body = pickle.dumps((0.0, Bomb(self.mark)))
        say(struct.pack("<q", len(body)) + body)

    def _huge(self) -> None:
        say(HEAD.pack(1 << 60) + b"x" * 1000)

    def _negative(self) -> None:
        say(struct.pack("<q", -1) + b"x" * 1000)

    def _empty(self) -> None:
        say(HEAD.pack(0))

    def _noise(self) -> None:
        say(bytes(range(256)) * 8)

    def _nested(self) -> None:
        say(framed(b"[" * 50_000 + b"]" * 50_000))

    def _doubled(self) -> None:
        say(answer(3) + answer(3))

    def _unasked(self) -> None:
        say(answer(3) + answer(4))

    def _earlier(self) -> None:
        say(answer(2))

    def _later(self) -> None:
        say(answer(9))

    def _reward_huge(self) -> None:
        say(answer(3, reward=1e30))

    def _reward_nan(self) -> None:
        say(answer(3, reward=float("nan")))

    def _reward_text(self) -> None:
        say(answer(3, reward="1"))

    def _observation_huge(self) -> None:
        say(answer(3, observation="x" * 200_000))

    def _key_forged(self) -> None:
        say(answer(3, state_key={"float": "nan"}))

    def _key_of_equal_hashes(self) -> None:
        say(answer(3, state_key={"set": [number * (2**61 - 1) for number in range(16_000)]}))

    def _seconds_huge(self) -> None:
        say(framed(json.dumps({"number": 3, "seconds": 1.7e308, "computed": 1.7e308, "fault": "x"}).encode()))

    def _field(self) -> None:
        say(answer(3, surplus=1))

    def _copied(self) -> None:
        say(framed(json.dumps({"number": 3, "seconds": 0.0, "copied": True}).encode()))

    def _both(self) -> None:
        say(framed(json.dumps({"number": 3, "seconds": 0.0, "copied": True, "fault": "x"}).encode()))

    # children that come back
    def _forks(self) -> None:
        self._fork(lambda: None)

    def _forks_and_exits(self) -> None:
        self._fork(lambda: sys.exit(3))

    def _forks_and_fails_to_execute(self) -> None:
        self._fork(lambda: os.execv("/no/such/program", ["program"]))

    def _fork(self, act: Any) -> None:
        child = os.fork()
        if not child:
            act()
            return
        os.waitpid(child, 0)


class Thief:
    """The task "victim" waits for a second; the other takes the pipes of every process and answers for it."""

    def __init__(self, task: str):
        self.task = task

    def start(self) -> str:
        return self.task

    def step(self, response: str) -> Step:
        if self.task == "victim":
            time.sleep(1)
            return Step(observation="honest", terminated=True)
        libc = ctypes.CDLL(None, use_errno=True)
        taken = 0
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            process = -1 if pid in (os.getpid(), os.getppid()) else libc.syscall(PIDFD_OPEN, pid, 0)
            for number in range(3, 32) if process >= 0 else ():
                copy = libc.syscall(PIDFD_GETFD, process, number, 0)
                if copy >= 0 and stat.S_ISSOCK(os.fstat(copy).st_mode):
                    taken += 1
                    os.write(copy, answer(2, reward=777.0))
        return Step(observation=f"took {taken}", terminated=True)


OBJECTS = ("bomb_in_info", "bomb_in_nested_info", "bomb_in_key")
FORGED = (
    *("pickle", "old_pickle", "huge", "negative", "empty", "noise", "nested", "doubled", "unasked", "earlier", "later"),
    *("reward_huge", "reward_nan", "reward_text", "observation_huge", "key_forged", "field", "copied", "both"),
    *("key_of_equal_hashes", "seconds_huge"),
)
FORKS = ("forks", "forks_and_exits", "forks_and_fails_to_execute")
