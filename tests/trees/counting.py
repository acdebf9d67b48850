"""Environments that count their steps and can be copied; a worker imports them without torch."""

import copy
import dataclasses

from tests.toys import Colors

from turnwise.environments.base import Step


class Counting(Colors):
    """Tells how many steps have been played in its process."""

    steps = 0

    def __init__(self, seed: int):
        super().__init__(seed, turns=4)

    def step(self, response: str) -> Step:
        Counting.steps += 1
        step = super().step(response)
        return dataclasses.replace(step, info={**step.info, "steps": Counting.steps})


class Copied(Counting):
    def copy(self) -> "Copied":
        return copy.copy(self)


class Awaited(Counting):
    async def copy(self) -> "Awaited":
        return copy.copy(self)


class Broken(Copied):
    """Cannot be copied before its last turn in the game of task 1."""

    def copy(self) -> "Broken":
        if self.seed == 1 and self.played == 3:
            raise OSError("no space left")
        return copy.copy(self)


def mixed(task: int) -> Counting:
    """Environments of one worker: those that can be copied, one that cannot, and one that raises."""
    return Counting(task) if task == 9 else Broken(1) if task == 11 else Copied(task)
