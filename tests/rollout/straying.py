"""An environment whose steps leave processes behind that left their session. Imports nothing heavy."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig

LOOP = "import sys, time\nwhile True: open(sys.argv[1], 'w').close(); time.sleep(0.05)"


def stray(mark: str) -> None:
    """Leave a process that touches a file for ever: its parents have ended, and it is in a session of its own."""
    child = os.fork()
    if not child:
        os.setsid()
        subprocess.Popen([sys.executable, "-I", "-S", "-c", LOOP, mark], start_new_session=True)
        os._exit(0)
    os.waitpid(child, 0)
    while not os.path.exists(mark):
        time.sleep(0.01)


class Straying:
    """The task `(seed, mark, how)` leaves a stray process in its first step, and then does as `how` says."""

    def __init__(self, task: tuple[int, str, str]):
        self.seed, self.mark, self.how = task
        self.turn = 0

    def start(self) -> str:
        return f"{self.seed}: 0"

    def step(self, response: str) -> Step:
        self.turn += 1
        if self.turn == 1:
            stray(self.mark)
        elif self.how == "hangs":
            time.sleep(3600)
        elif self.how == "exits":
            os._exit(3)
        return Step(observation=f"{self.seed}: {self.turn}", terminated=self.turn == 3)


class Suite:
    """Straying environments for `turnwise check-env`."""

    def __init__(self, config: EnvironmentConfig, *, mark: str, how: str = ""):
        self.mark, self.how = mark, how

    def tasks(self, split: str) -> list[int]:
        return [1, 2]

    def environment(self, task: int) -> Any:
        return Straying((task, self.mark, self.how))

    def task_name(self, task: int) -> str:
        return str(task)


def is_alive(mark: Path) -> bool:
    """Tell whether a process still touches a file."""
    mark.unlink(missing_ok=True)
    time.sleep(0.4)
    return mark.exists()
