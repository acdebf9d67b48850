"""Environments of five turns for forks; they stand apart from tests, so that a worker starts without torch."""

import dataclasses
import os

from tests.toys import Colors

from turnwise.environments.base import Step


class Long(Colors):
    def __init__(self, seed: int):
        super().__init__(seed, turns=5)


class Moody(Long):
    """Observes something else in its second turn each time it is played, in this process or in a worker."""

    plays = 0

    def step(self, response: str) -> Step:
        step = super().step(response)
        if self.seed == 1 and self.played == 2:
            Moody.plays += 1
            return dataclasses.replace(step, observation=f"mood {os.getpid()} {Moody.plays}")
        return step
