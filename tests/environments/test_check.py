"""The conformance test for environments finds each planted fault, and finds none where there is none."""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.toys import Colors

from turnwise.config import EnvironmentConfig
from turnwise.environments.base import Step
from turnwise.environments.check import Problem, check_environment, report
from turnwise.environments.suites import Seeded, make_suite


class World:
    """Sound: three turns."""

    def __init__(self, seed: int):
        self.seed, self.played = seed, 0

    def start(self) -> Any:
        return "a start"

    def step(self, response: str) -> Any:
        self.played += 1
        return Step(observation=f"{self.seed} {response[:5]} {self.played}", **self.more())

    def more(self) -> dict[str, Any]:
        return {"terminated": self.played == 8, "info": {"success": False}, "admissible": ("left", "right")}


def with_more(**fields: Any) -> type[World]:
    return type("Planted", (World,), {"more": lambda self: {**World.more(self), **fields}})


class Dice(World):
    def more(self):
        return {**super().more(), "reward": random.random()}


class Counting(World):
    """Keeps state outside the object."""

    worlds = 0

    def start(self):
        Counting.worlds += 1
        return f"world {Counting.worlds}"


class Picky(World):
    def step(self, response):
        if response not in ("left", "right"):
            raise KeyError(response)
        return super().step(response)


class Unbuildable(World):
    def __init__(self, seed):
        raise OSError("no display")


class Unstartable(World):
    def start(self):
        raise OSError("no display")


class Wordless(World):
    def start(self):
        return None


class Texts(World):
    def step(self, response):
        return "a text"


class NotANumber(World):
    def more(self):
        return {**super().more(), "reward": float("nan")}  # a new one each time: it does not even equal itself


class Endless(World):
    def more(self):
        return {**super().more(), "terminated": False}


class Untold(World):
    def more(self):
        return {**super().more(), "info": {}}


class Both(World):
    def more(self):
        return {**super().more(), "truncated": self.played == 8}


class NoStep:
    def __init__(self, seed: int):
        pass

    def start(self):
        return "look"


class NoStart(NoStep):
    start = None  # pyright: ignore

    def step(self, response):
        return Step(observation="", terminated=True)


FAULTS: dict[str, tuple[Callable[[int], Any], str]] = {
    "no step": (NoStep, "NoStep has no step()"),
    "no start": (NoStart, "NoStart has no start()"),
    "random": (Dice, "another answer at turn 1 of a second play"),
    "state outside": (Counting, "another answer at turn 0 of a second play"),
    "raises on nonsense": (Picky, "step('') raised KeyError"),
    "constructor raises": (Unbuildable, "the constructor raised OSError: no display"),
    "start raises": (Unstartable, "start() raised OSError: no display"),
    "start says nothing": (Wordless, "start() returned NoneType"),
    "step returns a text": (Texts, "step('') returned str"),
    "no end": (Endless, "did not end within 50 turns"),
    "no success": (Untold, "the last step's info has no 'success'"),
    "both ends": (Both, "turn 8 is both terminated and truncated"),
    "nan reward": (NotANumber, "reward at turn 1 is nan"),
    "infinite reward": (with_more(reward=math.inf), "reward at turn 1 is inf"),
    "text reward": (with_more(reward="1"), "reward at turn 1 is '1'"),
    "boolean reward": (with_more(reward=True), "reward at turn 1 is True"),
    "observation": (with_more(observation=3), "observation at turn 1 is int"),
    "valid": (with_more(valid=1), "valid at turn 1 is 1"),
    "truncated": (with_more(truncated=None), "truncated at turn 1 is None"),
    "state key": (with_more(state_key=["a"]), "state_key at turn 1 is not hashable"),
}
with_observation = FAULTS["observation"][0]
with_observation.step = lambda self, response: Step(observation=3)  # pyright: ignore


def check(world: Any, **more: Any) -> list[Problem]:
    return check_environment(Seeded(world, {}), **{"max_turns": 50, **more})


def test_a_sound_world_has_no_problems():
    assert check(World) == []
    assert check(Colors) == []
    assert "sound" in report("mine", [])


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    random.seed(0)
    world, expected = FAULTS[name]
    problems = check(world)
    assert any(expected in problem.what for problem in problems), problems
    problem = next(problem for problem in problems if expected in problem.what)
    assert problem.mend
    assert problem.severe == (name != "no success")
    text = report("mine", problems)
    assert text.startswith(f"mine: {len(problems)} to mend")
    assert f"{'ERROR' if problem.severe else 'warning'}: {problem.what}" in text


@pytest.mark.parametrize("name", ["nan reward", "text reward", "observation", "valid", "no success", "no end"])
def test_a_fault_is_not_taken_for_another(name):
    world, expected = FAULTS[name]
    kinds = {problem.what.split(" at turn")[0] for problem in check(world)}
    assert kinds <= {expected.split(" at turn")[0], "an episode did not end within 50 turns"} | (
        {"an episode did not end within 50 turns", "the last step's info has no 'success'"}
        if name == "observation"
        else set()
    )


def test_a_slow_world_is_a_warning():
    [problem] = check(World, slow_s=-1.0)
    assert "a step takes" in problem.what
    assert not problem.severe


class Suite(Seeded):
    """Tasks of the tester's choice."""

    def __init__(self, tasks: list[Any]):
        super().__init__(World, {})
        self.list = tasks

    def tasks(self, split: str) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.list


class Changing:
    def __reduce__(self):
        return (str, ("changed",))


def test_tasks_must_survive_pickling():
    assert any("cannot be pickled" in problem.what for problem in check_environment(Suite([lambda: 0])))
    assert any("changes when it is pickled" in problem.what for problem in check_environment(Suite([Changing()])))


def test_few_tasks_are_all_played():
    played = []

    class Few(Suite):
        def environment(self, task: Any) -> Any:
            played.append(task)
            return super().environment(task)

    check_environment(Few([0, 1]))
    assert set(played) == {0, 1}


def test_a_split_without_tasks_is_a_problem():
    assert [problem.what for problem in check_environment(Suite([]))] == ["split 'train' has no tasks"]


def test_the_same_problem_is_said_once():
    assert len(check(with_more(valid=1), num_tasks=3)) == len(check(with_more(valid=1), num_tasks=1))


class Awaited(World):
    async def start(self):
        self.lock, self.loop = asyncio.Lock(), asyncio.get_running_loop()
        return super().start()

    async def step(self, response):
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return super().step(response)


def test_async_worlds_are_checked_too():
    assert check(Awaited) == []

    class Failing(Awaited):
        async def step(self, response):
            raise ValueError("gone")

    assert "raised ValueError: gone" in check(Failing)[0].what


@pytest.mark.parametrize("state_key", ["observation", "state"])
def test_household_is_sound(state_key):
    options = {"size": "tiny", "num_train": 6, "state_key": state_key}
    assert check_environment(make_suite(EnvironmentConfig(max_steps=20, options=options))) == []
