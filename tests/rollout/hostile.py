"""Environments that do what environments should not. Workers import this file, so it imports nothing heavy."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.environments.base import Step

WORDS = ("red", "green", "blue", "pink")


class Hostile:
    """The task `(seed, turns, kind)` lasts `turns` turns and misbehaves as `kind` says in the second one."""

    def __init__(self, task: tuple[int, int, str]):
        self.seed, self.turns, self.kind = task
        self.said: list[str] = []
        if self.kind == "constructor":
            raise OSError("no room for another environment")

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

    def _giant_list(self) -> Step:
        return Step(observation="", admissible=["x" * 1000] * 2000)

    def _memory(self) -> None:
        hoard = []
        while True:
            hoard.append(bytearray(10 << 20))

    def _long(self) -> Step:
        return Step(observation="x" * 90_000)  # more than one read of a pipe

    def _process(self) -> Step:
        return Step(observation=str(os.getpid()))


def _last(**fields: Any) -> Any:
    """A method that answers with a last step of these fields."""
    return lambda self: Step(**{"observation": "", "terminated": True, **fields})


ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "success_text": ({"info": {"success": "no"}}, "info[\"success\"] = 'no' (str), expected True or False"),
    "success_array": ({"info": {"success": np.zeros(2)}}, 'info["success"] = array('),
    "success_two": ({"info": {"success": 2}}, 'info["success"] = 2'),
    "success_none": ({"info": {"success": None}}, 'info["success"] = None'),
    "info_text": ({"info": "success"}, "info = 'success' (str), expected a dict"),
    "info_none": ({"info": None}, "info = None (NoneType), expected a dict"),
    "key_nan": ({"state_key": float("nan"), "terminated": False}, "state_key = nan: nan does not equal itself"),
    "key_part_nan": ({"state_key": ("a", float("nan"))}, "state_key = ('a', nan)"),
    "key_list": ({"state_key": ["a"]}, "state_key that cannot name a state (TypeError: unhashable"),
    "key_huge": ({"state_key": 10**5000}, "state_key that cannot name a state (ValueError"),
    "reward_huge": ({"reward": 1e200}, "reward of 1e+200, expected a finite number from -1,000,000 to 1,000,000"),
    "reward_negative": ({"reward": -1.1e6}, "reward of -1100000.0"),
    "reward_infinite": ({"reward": float("inf")}, "reward of inf"),
    "reward_text": ({"reward": "1"}, "reward of '1'"),
    "reward_long": ({"reward": 10**400}, "expected a finite number"),
    "flag_array": ({"terminated": np.ones(2, dtype=bool)}, "terminated = array("),
    "flag_text": ({"truncated": "no"}, "truncated = 'no'"),
    "valid_none": ({"valid": None}, "valid = None"),
    "admissible_text": ({"admissible": "look"}, "admissible = 'look', expected a list of texts"),
    "admissible_numbers": ({"admissible": [1, 2]}, "admissible that holds 1 (int), expected texts only"),
}
"""Fields that no run can use, by kind, and what the cause says of them."""
for _kind, (_fields, _) in ANSWERS.items():
    setattr(Hostile, f"_{_kind}", _last(**_fields))


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


class Paced(Hostile):
    """Takes the seconds that the file of its task says: to be made, to start and for each step."""

    def __init__(self, task: tuple[int, int, str, Path]):
        *rest, self.pace = task
        self._wait()
        super().__init__(rest)

    def _wait(self) -> None:
        time.sleep(float(self.pace.read_text()))

    def start(self) -> Any:
        self._wait()
        return super().start()

    def step(self, response: str) -> Any:
        self._wait()
        return super().step(response)


class NotThere:
    """Can be pickled by the trainer only."""

    def __reduce__(self) -> Any:
        return __import__, ("turnwise_no_such_module",)

    def __call__(self, task: Any) -> Hostile:
        return Hostile(task)
