"""Environments in this process, behind the protocol that environments elsewhere keep too."""

import asyncio
import pickle
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.toys import Broken, Colors

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.hosts import Environments, InProcessEnvironments


class Slow(Colors):
    async def start(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        return Colors.start(self)

    async def step(self, response: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        return Colors.step(self, response)


@pytest.mark.parametrize("environment", [Colors, Slow])
def test_environments_are_played_side_by_side_under_their_keys(environment):
    async def scenario(environments: Environments) -> None:
        starts = await asyncio.gather(*(environments.start(key, seed) for key, seed in ((3, 0), (8, 1), (5, 0))))
        assert [step.observation for step in starts] == ["say red", "say green", "say red"]
        steps = await asyncio.gather(
            environments.step(8, "green"), environments.step(3, "red"), environments.step(5, "blue")
        )
        assert [(step.reward, step.terminated, step.info["success"]) for step in steps] == [
            (1.0, True, True),
            (1.0, True, True),
            (0.0, True, False),
        ]
        for key in (3, 5, 8, 8, 99):
            environments.close(key)
        assert (await environments.start(3, 2)).observation == "say blue"  # the key is free again
        await environments.aclose()

    asyncio.run(scenario(InProcessEnvironments(environment)))


def test_a_plain_environment_answers_without_a_turn_of_the_loop():
    coroutine = InProcessEnvironments(Colors).start(0, 0)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert done.value.value == Step(observation="say red")


def test_a_fault_says_what_was_raised_and_where_and_keeps_its_cause():
    async def scenario() -> None:
        environments = InProcessEnvironments(Broken)
        await environments.start(0, 0)
        with pytest.raises(
            EnvironmentFault, match=r"^OSError: the game server is gone at step \(toys.py:\d+\)$"
        ) as fault:
            await environments.step(0, "red")
        assert isinstance(fault.value.__cause__, OSError)
        assert str(pickle.loads(pickle.dumps(fault.value))) == str(fault.value)
        environments.close(0)

    asyncio.run(scenario())


def test_an_answer_that_is_no_step_is_a_fault():
    class Toy(Colors):
        def step(self, response: str) -> Any:
            return "say red"

    async def scenario() -> None:
        environments = InProcessEnvironments(Toy)
        await environments.start(0, 0)
        with pytest.raises(EnvironmentFault, match="answered with str, expected a Step") as fault:
            await environments.step(0, "red")
        assert isinstance(fault.value.__cause__, EnvironmentFault)

    asyncio.run(scenario())


class Cancelled(Slow):
    async def step(self, response: str) -> Any:
        if response == "wait":
            await asyncio.sleep(3600)
        raise asyncio.CancelledError("by the environment itself")


def test_an_environment_that_is_cancelled_within_is_a_fault_and_a_cancelled_caller_is_not():
    async def scenario() -> None:
        environments = InProcessEnvironments(Cancelled)
        await environments.start(0, 0)
        with pytest.raises(EnvironmentFault, match="CancelledError: by the environment itself"):
            await environments.step(0, "red")
        waiting = asyncio.ensure_future(environments.step(0, "wait"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())


def test_an_interrupt_is_nobodys_fault():
    class Toy(Colors):
        def start(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InProcessEnvironments(Toy).start(0, 0).send(None)


class Leaving(Colors):
    """Raises its task."""

    def start(self) -> Any:
        return "say red"

    def step(self, response: str) -> Any:
        raise self.seed  # pyright: ignore


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SystemExit("enough"), "SystemExit: enough"),
        (BaseException("odd"), "BaseException: odd"),
        (BaseExceptionGroup("two", [SystemExit()]), "BaseExceptionGroup: two"),
        (Unreadable(), "Unreadable: its text cannot be read at step \\(test_environments.py:"),
        (ValueError("two\nlines"), "ValueError: two lines"),
    ],
)
def test_whatever_an_environment_raises_is_its_own_fault(error, cause, asynchronous):
    class Waiting(Leaving):
        async def step(self, response: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            await asyncio.sleep(0)
            return super().step(response)

    async def scenario() -> None:
        environments = InProcessEnvironments(Waiting if asynchronous else Leaving)
        await environments.start(0, error)
        with pytest.raises(EnvironmentFault, match=cause):
            await environments.step(0, "red")

    asyncio.run(scenario())


def test_answers_come_with_plain_types():
    class Numpy(Colors):
        def step(self, response: str) -> Any:
            return Step(
                observation="",
                reward=np.float32(1),
                terminated=np.bool_(True),
                valid=1,  # pyright: ignore
                admissible={"red": 1}.keys(),
                info=MappingProxyType({"success": np.int64(1)}),
            )  # pyright: ignore

    async def scenario() -> None:
        environments = InProcessEnvironments(Numpy)
        await environments.start(0, 0)
        step = await environments.step(0, "red")
        assert step == Step(observation="", reward=1.0, terminated=True, admissible=("red",), info={"success": True})
        assert [type(value) for value in (step.reward, step.terminated, step.valid, step.info)] == [
            float,
            bool,
            bool,
            dict,
        ]
        assert step.info["success"] is True

    asyncio.run(scenario())
