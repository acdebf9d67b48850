"""The last step of every seat is checked as any answer of an environment, with and without workers."""

import asyncio
import dataclasses
from typing import Any

import pytest

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import SeatStep, checked_step
from turnwise.environments.check import check_environment
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.workers import WorkerEnvironments
from turnwise.worlds.seats.suite import Seats

CONFIG = EnvironmentConfig(name="seats", max_steps=9, success_reward=1.0)


class Spoilt:
    """Tic-tac-toe whose last steps have a field changed."""

    def __init__(self, environment: Any, field: str, value: Any):
        self.environment, self.field, self.value = environment, field, value

    def start(self) -> Any:
        return self._spoil(self.environment.start())

    def step(self, response: str) -> Any:
        return self._spoil(self.environment.step(response))

    def _spoil(self, step: SeatStep) -> SeatStep:
        ends = tuple(dataclasses.replace(each, **{self.field: self.value}) for each in step.ends)
        return dataclasses.replace(step, ends=ends)


@dataclasses.dataclass(frozen=True)
class Make:
    field: str
    value: Any

    def __call__(self, task: Any) -> Spoilt:
        return Spoilt(Seats(CONFIG, game="tictactoe").environment(task), self.field, self.value)


BAD = [("reward", float("nan"), "a reward of nan"), ("reward", 1e30, "1e"), ("info", {"success": "no"}, "'no'")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("field", "value", "said"), BAD)
def test_a_bad_last_step_of_a_seat_fails_its_trajectory(workers, field, value, said):
    async def play() -> None:
        make = Make(field, value)
        environments = WorkerEnvironments(make, workers=1) if workers else InProcessEnvironments(make)
        task = Seats(CONFIG, game="tictactoe").tasks("train")[0]
        try:
            step = await environments.start(0, dataclasses.replace(task, players=("policy", "policy")))
            while not step.ended:
                step = await environments.step(0, step.admissible[0])
        finally:
            await environments.aclose()

    with pytest.raises(EnvironmentFault, match=said):
        asyncio.run(play())


def test_ends_that_are_no_steps_are_a_fault():
    step = SeatStep(observation="", seat=0, ends=7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvironmentFault, match="ends = 7, expected a step per seat"):
        checked_step(step)


class SpoiltSeats(Seats):
    """Games of which no last step has a reward that counts."""

    def environment(self, task: Any) -> Any:
        return Spoilt(super().environment(task), "reward", float("nan"))


def test_check_env_finds_a_bad_last_step():
    found = check_environment(SpoiltSeats(CONFIG, game="tictactoe"), num_tasks=1)
    assert any("the last step of a seat: " in problem.what for problem in found)
    assert check_environment(Seats(CONFIG, game="tictactoe"), num_tasks=1) == []
