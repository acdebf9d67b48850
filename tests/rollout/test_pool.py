"""The pool: what steps learn from under lag, filters, budgets and orders, and under every pair of these."""

import asyncio
import contextlib
import copy
import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.rollout.playing import POLICY
from tests.toys import Colors

from turnwise.base.blocking import make_loop
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.gate import Gate, VisitedEngine
from turnwise.rollout.launch import Launch
from turnwise.rollout.pool import Pool
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.checkpoint import _from_torch, _to_torch

PARTS: dict[str, dict[str, Any]] = {
    "lag": {"max_lag": 2},
    "filter": {"filter": "mixed"},
    "budget": {"step_budget": {"turns": 24}},
}


class Uneven(Colors):
    """Tasks `4k` are slow: six turns and 4 ms each, and always won. Of the others, odd trajectories are won at once."""

    made = itertools.count()

    def __init__(self, seed: int):
        super().__init__(seed)
        self.slow = seed % 4 == 0
        self.number = next(self.made)

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.played += 1
        await asyncio.sleep(0.004 if self.slow else 0)
        won = self.slow or bool(self.number % 2)
        return Step(observation="say red", terminated=not self.slow or self.played == 6, info={"success": won})


class Mixed(Uneven):
    """As `Uneven`, but one trajectory of a slow group fails, so that a filter keeps all groups."""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        step = await super().step(response)
        return Step(observation="say red", terminated=step.terminated, info={"success": self.number % 2 == 0})


def experiences(environment: Any, steps: int, **how: Any) -> list[Any]:
    """Play some steps; two groups of two trajectories each, unless told otherwise."""
    with playing(environment, steps, **how) as (_, step):
        return [step(number) for number in range(1, steps + 1)]


@contextlib.contextmanager
def playing(
    environment: Any, steps: int, *, seed: int = 0, tasks: int = 400, state: Any = None, **settings: Any
) -> Iterator[tuple[Pool, Callable[[int], Any]]]:
    """Make a pool, perhaps from a checkpoint's state, and what plays a step."""
    given = {"groups": 2, "group_size": 2, "max_new_tokens": 2, **settings}
    rollout = RolloutConfig.model_validate(given)
    loop = make_loop(apart=rollout.max_lag > 0, persistent=rollout.step_budget is not None)
    environments = InProcessEnvironments(environment)
    try:
        pool = Pool(range(tasks), rollout, seed, last_step=steps, loop=loop, environments=environments)
        engine = VisitedEngine(Gate(LocalEngine(POLICY.model, apart=rollout.max_lag > 0)), loop)
        models, collector = Models(policy=NamedModel(POLICY, engine)), make_collector(rollout, environments, str)
        models.publish()
        if state is not None:
            pool.load_state_dict(state)
        yield pool, lambda step: pool.next(collector, models, step)
    finally:
        loop.close()


def merged(*names: str) -> dict[str, Any]:
    return {name: value for part in names for name, value in PARTS[part].items()}


COMBINED = [each for count in (1, 2, 3) for each in itertools.combinations(PARTS, count)]


@pytest.mark.parametrize("names", COMBINED, ids="+".join)
def test_steps_learn_from_whole_groups_of_equal_number_each_task_once(names):
    found = experiences(Mixed, 6, **merged(*names))
    numbers = [number for each in found for number in each.numbers]
    assert len(set(numbers)) == len(numbers), "no task comes twice within an epoch"
    for each in found:
        assert len({t.group for t in each.used}) == 2
        assert len(each.used) == 4
        assert all(trajectory.ended == "terminated" for trajectory in each.trajectories)
        assert [t.task for t in each.trajectories] == [str(number) for number in each.numbers for _ in range(2)]


@pytest.mark.parametrize("names", [each for each in COMBINED if "budget" not in each], ids="+".join)
def test_the_tasks_of_a_step_are_those_that_were_started_first_however_slow(names):
    slow, fast = ([each.numbers for each in experiences(kind, 5, **merged(*names))] for kind in (Mixed, Swift))
    assert slow == fast


class Rare(Mixed):
    """As `Mixed`, but a filter drops two groups of three."""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        step = await super().step(response)
        return step if self.seed % 3 == 0 else Step(observation="say red", terminated=step.terminated, info=LOST)


LOST = {"success": False}


@pytest.mark.parametrize("names", [each for each in COMBINED if "budget" not in each], ids="+".join)
def test_no_two_groups_of_a_run_have_the_same_draws(names, monkeypatch):
    """Those that replace dropped ones, too: such a group would be dropped again for the same responses."""
    seen, play = [], Launch._play

    async def watched(self: Launch, started: Any, chosen: Any, *more: Any) -> None:
        seen.extend((started.seed, place) for place in started.places)
        await play(self, started, chosen, *more)

    monkeypatch.setattr(Launch, "_play", watched)
    found = experiences(Rare, 8, **merged(*names))
    assert ("filter" in names) == any(len(each.numbers) > 2 for each in found)
    assert len(set(seen)) == len(seen)


class Doomed(Colors):
    """Never won."""

    def step(self, response: str) -> Step:
        return Step(observation="", terminated=True, info={"success": False})


@pytest.mark.parametrize("select", ["epochs", "vade"])
@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize(("kind", "most"), [(Rare, 10), (Doomed, 2)])
def test_groups_that_replace_dropped_ones_take_the_next_tasks_in_a_resumed_run_too(kind, most, lag, select):
    """Where every group is dropped, a step takes those that were played ahead of it, and others replace them."""
    decays = {"observed_decay": 0.5, "unobserved_decay": 0.9} if select == "vade" else {}
    how: dict[str, Any] = {"filter": "mixed", "max_lag": lag, "max_batches": most}
    how["select"] = {"name": select, **decays}
    whole = list(map(numbers_and_responses, experiences(kind, 8, **how)))
    if select == "epochs":
        learned = [number for numbers, _ in whole for number in numbers]
        assert len(set(learned)) == len(learned), "no task comes twice within an epoch"
    assert resumed(kind, 8, **how) == whole


class Told(Colors):
    """Decides by its task and by what was said, so that it answers a resumed run alike."""

    said = ""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.played, self.said = self.played + 1, f"{self.said}|{response}"
        ended = self.played > self.seed % 3
        won = ended and zlib.crc32(f"{self.seed}{self.said}".encode()) % 3 == 0
        return Step(observation="say red", terminated=ended, info={"success": won})


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("learn", ["complete", "played"])
@pytest.mark.parametrize("budget", [{"turns": 8}, {"tokens": 16}], ids=str)
def test_a_resumed_run_spends_the_budget_of_a_step_that_was_played_ahead_again(budget, learn, lag):
    """A checkpoint has nothing of that step, of which more or less is played while the trainer learns."""
    how: dict[str, Any] = {"group_size": 3, "max_lag": lag, "step_budget": {**budget, "learn": learn}}
    whole = list(map(numbers_and_responses, experiences(Told, 6, **how)))
    assert resumed(Told, 6, **how) == whole


def resumed(kind: Any, steps: int, **how: Any) -> list[Any]:
    """Play each step in a pool of its own, from the checkpoint of the step before."""
    found, state = [], None
    for step in range(1, steps + 1):
        with playing(kind, steps, state=state, **how) as (pool, play):
            found.append(numbers_and_responses(play(step)))
            time.sleep(0.02 * (how["max_lag"] > 0))  # what is played ahead goes on
            state = _from_torch(_to_torch(pool.state_dict()))
    return found


def numbers_and_responses(experience: Any) -> tuple[list[int], list[list[str]]]:
    return experience.numbers, [[turn.response for turn in each.turns] for each in experience.trajectories]


class Swift(Mixed):
    """As `Mixed`, without waiting."""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.played += 1
        ended = not self.slow or self.played == 6
        return Step(observation="say red", terminated=ended, info={"success": self.number % 2 == 0})


class EverySecondMixed(Colors):
    """Every second task is mixed within its group; the others are all lost."""

    made: ClassVar[dict[int, int]] = {}

    def __init__(self, seed: int):
        super().__init__(seed)
        self.place = self.made.get(seed, 0)
        self.made[seed] = self.place + 1

    def step(self, response: str) -> Step:
        won = self.seed % 2 == 0 and self.place % 2 == 0
        return Step(observation="", terminated=True, info={"success": won})


@pytest.mark.parametrize("lag", [0, 2])
def test_a_dropped_group_makes_room_for_one_other_and_no_more(lag):
    EverySecondMixed.made = {}
    found = experiences(EverySecondMixed, 4, filter="mixed", max_lag=lag, groups=3)
    for each in found:
        assert len({trajectory.group for trajectory in each.used}) == 3
        assert all(number % 2 == 0 for number in (each.numbers[t.group] for t in each.used))
        played = len(each.numbers)
        assert each.metrics["kept_frac"] == pytest.approx(3 / played)
        assert each.numbers[-1] % 2 == 0, "the last group is the one that filled the step"
    started = sum(EverySecondMixed.made.values()) // 2
    assert started == sum(len(each.numbers) for each in found), "nothing was played in vain"


def test_a_step_that_no_group_fills_ends_at_its_limit():
    (found,) = experiences(Doomed, 1, filter="mixed", max_batches=3)
    assert len(found.numbers) == 6
    assert found.metrics["batches"] == 3
    assert not found.used
    (broken,) = experiences(Broken, 1, filter="mixed", max_batches=9)
    assert len(broken.numbers) == 2, "further ones would fail too"


class Broken(Colors):
    def step(self, response: str) -> Step:
        raise OSError("the game server is gone")


class SlowSuccess(Colors):
    """Every fourth task takes 20 ms and eight turns, and is won by one of its trajectories; so it passes a filter."""

    made: ClassVar[dict[int, int]] = {}

    def __init__(self, seed: int):
        super().__init__(seed)
        self.slow, self.place = seed % 4 == 0, self.made.get(seed, 0)
        self.made[seed] = self.place + 1

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.played += 1
        await asyncio.sleep(0.02 if self.slow and self.played == 1 else 0)
        won = self.slow or self.place % 2 == 0
        ended = not self.slow or self.played == 8
        return Step(observation="say red", terminated=ended, info={"success": won and self.place % 2 == 0})


def slow_share(seed: int, **settings: Any) -> float:
    """Share of slow tasks among the groups that ten steps learn from."""
    SlowSuccess.made = {}
    found = experiences(SlowSuccess, 10, seed=seed, groups=2, **settings)
    learned = [each.numbers[group] % 4 == 0 for each in found for group in {t.group for t in each.used}]
    return float(np.mean(learned))


def interval(values: list[float]) -> tuple[float, float]:
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values)) - half, float(np.mean(values)) + half


@pytest.mark.parametrize(
    "names",
    [
        names if names[-1] == "filter" or len(names) == 3 else pytest.param(names, marks=pytest.mark.slow)
        for names in COMBINED
    ],  # lag and a budget alone have a test each, in their files
    ids="+".join,
)
def test_slow_means_successful_is_not_under_represented(names):
    low, high = interval([slow_share(seed, **merged(*names)) for seed in range(20)])
    assert low < 0.25 < high, (low, high)


class Late(Colors):
    """The tasks named here take two seconds, the others no time."""

    late: ClassVar[set[int]] = set()

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(2.0 if self.seed in self.late else 0)
        return Step(observation="", terminated=True, info={"success": True})


FINISHED: dict[str, Any] = {"groups": 1, "max_lag": 2, "order": "finished"}


def test_in_the_order_of_arrival_no_group_is_overtaken_by_more_steps_than_may_run_ahead(monkeypatch):
    first = experiences(Late, 1, groups=1, max_lag=2)[0].numbers
    monkeypatch.setattr(Late, "late", set(first))
    found = experiences(Late, 8, **FINISHED)
    (taken,) = (step for step, each in enumerate(found, 1) if each.numbers == first)
    assert taken == 1 + FINISHED["max_lag"]


def test_a_resumed_run_takes_groups_in_the_order_in_which_they_had_arrived(monkeypatch):
    started = [each.numbers[0] for each in experiences(Late, 3, groups=1, max_lag=2)]
    monkeypatch.setattr(Late, "late", {started[0]})
    with playing(Late, 9, **FINISHED) as (pool, step):
        taken = step(1).numbers
        while len(pool._launch.finished) < 1:
            time.sleep(0.01)
        state = copy.deepcopy(pool.state_dict())
        arrived = pool._launch.finished[0].number
    assert {*taken, arrived} == {*started[1:]}
    monkeypatch.setattr(Late, "late", {arrived})  # now it is the slowest
    with playing(Late, 9, state=state, **FINISHED) as (pool, step):
        assert step(2).numbers == [arrived]
        state = pool.state_dict()
    with playing(Late, 9, state=state, **FINISHED) as (_, step):
        assert step(3).numbers == [started[0]], "overtaken by two steps"
