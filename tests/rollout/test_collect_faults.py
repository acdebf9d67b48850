"""Faults during collection: a broken environment fails only its own trajectory, and nothing is left behind."""

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.rollout.playing import FORMAT, POLICY, STOP, FixedLength, Passes, always, play
from tests.toys import Colors, ScriptedEngine, color_policy

from turnwise.base.errors import EngineFault
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play as play_starts
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.starts import make_starts


class Faulty(Colors):
    """Task `place` is where it breaks."""

    def __init__(self, place: str):
        super().__init__(0, turns=3)
        self.place = place
        if place == "constructor":
            raise OSError("no room for another environment")

    def start(self) -> Any:
        if self.place == "start":
            raise KeyError("no such game")
        return None if self.place == "start returns nothing" else super().start()

    def step(self, response: str) -> Any:
        step = super().step(response)
        if self.played == 2:
            if self.place == "step":
                raise ValueError("a wire came loose")
            if self.place == "cancelled":
                raise asyncio.CancelledError
            if self.place == "system exit":
                raise SystemExit("the game is over")
            if self.place == "step returns nothing":
                return None
            if self.place == "step returns a text":
                return "say red"
            if self.place == "reward":
                return Step(observation="", reward=float("nan"))
            if self.place == "observation":
                return Step(observation=3)  # pyright: ignore[reportArgumentType]
            if self.place == "state_key":
                return Step(observation="", state_key=["a list"])  # pyright: ignore[reportArgumentType]
        return step


class AsyncFaulty(Faulty):
    async def start(self) -> Any:
        return Faulty.start(self)

    async def step(self, response: str) -> Any:
        await asyncio.sleep(0)
        return Faulty.step(self, response)


CAUSES = {
    "constructor": "OSError: no room for another environment",
    "start": "KeyError: 'no such game'",
    "start returns nothing": "NoneType",
    "step": "ValueError: a wire came loose",
    "system exit": "SystemExit: the game is over",
    "step returns nothing": "NoneType",
    "step returns a text": "str",
    "reward": "nan",
    "observation": "observation 3",
    "state_key": "list",
}


@pytest.mark.parametrize("environment", [Faulty, AsyncFaulty])
@pytest.mark.parametrize("place", CAUSES)
def test_an_environment_that_breaks_fails_its_own_trajectory_only(place, environment):
    trajectories = play(always(), ["nowhere", place, "nowhere"], environment)
    assert [t.usable for t in trajectories] == [True, True, False, False, True, True]
    for t in trajectories[2:4]:
        assert t.ended == "failed"
        assert t.failure is not None
        assert t.failure.startswith("environment: ")
        assert CAUSES[place] in t.failure
        assert not t.success
    assert trajectories[2:4] == [t for t in trajectories if t.ended == "failed"]
    sound = play(always(), ["nowhere"], environment)
    assert [t.turns for t in trajectories[:2]] == [t.turns for t in sound]


def test_a_failure_names_the_line_in_the_environment():
    t = play(always(), ["step"], Faulty, group_size=1)[0]
    assert t.failure is not None
    assert "at step (test_collect_faults.py:" in t.failure


def test_half_a_surrogate_pair_in_what_an_environment_says_costs_nothing():
    class Toy(Colors):
        def __init__(self, seed: int):
            super().__init__(seed, turns=3)

        def step(self, response: str) -> Step:
            return dataclasses.replace(super().step(response), observation="\udcff.py", admissible=["\ud83d"])

    odd = play(always(), [0], Toy)
    assert all(t.usable and len(t.turns) == 3 for t in odd)
    assert {turn.observation for t in odd for turn in t.turns[1:]} == {"?.py"}


def test_a_cancelled_environment_is_a_failed_one():
    t = play(always(), ["cancelled"], AsyncFaulty, group_size=1)[0]
    assert t.failure is not None
    assert "CancelledError" in t.failure


def test_an_interrupt_is_no_failure_of_the_environment():
    class Toy(Colors):
        def step(self, response: str) -> Step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(always(), [0], Toy)


def test_a_fault_of_the_engine_fails_the_trajectories_that_it_hits():
    def respond(number: int, turn: int) -> list[int]:
        if (number, turn) == (1, 1):
            raise EngineFault("out of pages")
        return [STOP]

    trajectories = play(ScriptedEngine(respond), [(0, 3), (1, 3), (2, 1)], FixedLength, group_size=1)
    assert [t.usable for t in trajectories] == [True, False, True]
    assert trajectories[1].failure == "engine: out of pages"
    assert trajectories[1].ended == "failed"
    assert [len(t.turns) for t in trajectories] == [3, 2, 1]
    assert trajectories[1].turns[1].response_ids == []
    assert rollout_metrics(trajectories)["env_steps"] == 3 + 1 + 1, "the response that failed was not played"


def test_an_engine_that_is_gone_fails_all_with_the_cause():
    def respond(number: int, turn: int) -> list[int]:
        raise EngineFault("connection refused at http://localhost:8000")

    for trajectory in play(ScriptedEngine(respond), [0, 1, 2], Colors):
        assert trajectory.failure == "engine: connection refused at http://localhost:8000"


def test_a_broken_model_fails_all_that_are_live_with_the_cause():
    policy = color_policy()
    fed = Passes(policy)

    def environment(task: tuple[int, int]) -> FixedLength:
        return FixedLength(task)

    with fed.broken_at(6):
        trajectories = play(LocalEngine(policy.model), [(0, 1), (1, 9)], environment, group_size=2)
    assert [t.usable for t in trajectories] == [True, True, False, False]
    assert {t.failure for t in trajectories[2:]} == {"engine: RuntimeError: a cable was pulled"}


def test_progress_counts_those_that_fail_and_those_without_room_too():
    calls = []
    play(always(), ["constructor"], Faulty, on_turn=lambda live, total: calls.append((live, total)))
    play(always(), [0], Colors, max_context=3, on_turn=lambda live, total: calls.append((live, total)))
    assert calls == [(2, 2), (1, 2), (0, 2)] * 2


# --- what is let go of ---


class Kept(InProcessEnvironments):
    """Remembers which environments were let go."""

    def __init__(self, make_environment: Any):
        super().__init__(make_environment)
        self.closed: list[int] = []

    def close(self, key: int) -> None:
        self.closed.append(key)
        super().close(key)


def test_every_environment_is_let_go_of_however_it_ended():
    environments = Kept(Faulty)
    engine = always()
    play(engine, ["nowhere", "constructor", "step"], environments)
    assert sorted(environments.closed) == list(range(6))
    assert engine.closed[-1] is None
    environments = Kept(Colors)
    play(always(), [0], environments, max_context=3)
    assert sorted(environments.closed) == [0, 1]


def test_cancelling_a_collection_cleans_up_everything():
    environments, engine = Kept(lambda seed: Hanging(seed, turns=3)), LocalEngine(POLICY.model)
    began, ended = [], []

    class Hanging(Colors):
        async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
            began.append(self.seed)
            try:
                await asyncio.sleep(3600 if self.seed == 1 and self.played == 1 else 0)
            finally:
                ended.append(self.seed)
            return super().step(response)

    async def scenario() -> None:
        collection = asyncio.ensure_future(
            play_starts(
                make_starts([0, 1], 2),
                Request(
                    engine=engine,
                    environments=environments,
                    fmt=FORMAT,
                    sampling=Sampling(max_new_tokens=3),
                    max_context=64,
                ),
            )
        )
        while began.count(1) < 4:  # both have taken a first step, and hang in the second
            await asyncio.sleep(0.01)
        assert not collection.done()
        collection.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collection
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
    assert sorted(environments.closed) == [0, 1, 2, 3]
    assert ended.count(1) == 4  # two first steps that returned, two that were interrupted
    assert play(engine, [0], Colors)[0].usable


def test_an_error_of_ours_ends_the_collection_and_cleans_up():
    environments, engine = Kept(lambda seed: Colors(seed, turns=3)), LocalEngine(POLICY.model)

    told: list[int] = []

    def break_(live: int, total: int) -> None:
        told.append(live)
        if len(told) > 1:  # the first call is before anything is played
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(engine, [0, 1], environments, on_turn=break_)
    assert sorted(set(environments.closed)) == [0, 1, 2, 3]
    assert play(engine, [0], Colors)[0].usable
