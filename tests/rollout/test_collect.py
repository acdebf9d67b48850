"""From tasks to trajectories: what is recorded, and that a broken world breaks its own trajectory only."""

import asyncio
from typing import Any

import pytest
from tests.toys import COLORS, Colors, ScriptedEngine, color_policy

from turnwise.environments.base import Step
from turnwise.errors import EngineFault
from turnwise.rollout.collect import collect
from turnwise.rollout.engine import Sampling
from turnwise.rollout.local import LocalEngine
from turnwise.rollout.record import Trajectory

POLICY = color_policy()
FORMAT = POLICY.format
STOP = FORMAT.stop_id


def word(text: str) -> list[int]:
    return FORMAT.tokenizer.encode(text, add_special_tokens=False)


def play(
    engine, tasks, world, *, group_size: int = 2, max_context: int = 64, seed: int = 0, **more
) -> list[Trajectory]:
    sampling = Sampling(max_new_tokens=3, stop_ids=(STOP,), seed=seed)
    return collect(
        engine, tasks, world, FORMAT, group_size=group_size, sampling=sampling, max_context=max_context, **more
    )


def always(text: str = "red") -> ScriptedEngine:
    return ScriptedEngine(lambda number, turn: [*word(text), STOP])


def mixed() -> ScriptedEngine:
    """Responses of different lengths, some without a stop token."""
    return ScriptedEngine(
        lambda number, turn: [*word(COLORS[(number + turn) % 4]) * (1 + (number + turn) % 3), STOP][:3]
    )


class Lasting(Colors):
    """Trajectory `n` of the task `(n, turns)` lasts `turns` turns."""

    def __init__(self, task: tuple[int, int]):
        super().__init__(task[0], turns=task[1])


def test_groups_are_adjacent_and_in_order():
    trajectories = play(always(), [7, 3, 5], Colors, group_size=3, task_name=lambda task: f"task {task}")
    assert [t.group for t in trajectories] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [t.task for t in trajectories] == ["task 7"] * 3 + ["task 3"] * 3 + ["task 5"] * 3
    for t, task in zip(trajectories, [7] * 3 + [3] * 3 + [5] * 3, strict=True):
        assert t.turns[0].observation == f"say {Colors.color(task, 0)}"


def test_tokens_are_appended_and_never_encoded_again():
    engine = mixed()
    trajectories = play(engine, [(0, 1), (1, 4), (2, 2), (3, 3)], Lasting)
    seen: dict[int, list[int]] = {}
    for turn, call in enumerate(engine.calls):
        for number, ids in call.items():
            assert ids[: len(seen.get(number, []))] == seen.get(number, [])
            seen[number] = ids + engine.respond(number, turn)
    assert [len(t.turns) for t in trajectories] == [1, 1, 4, 4, 2, 2, 3, 3]
    for number, t in enumerate(trajectories):
        recorded = [token for turn in t.turns for token in (*turn.prompt_ids, *turn.response_ids)]
        assert recorded == seen[number]
        for turn in t.turns:
            assert len(turn.behavior_logprobs) == len(turn.response_ids)
            assert turn.truncated == (turn.response_ids[-1] != STOP)
            assert turn.response == FORMAT.text(turn.response_ids)


def test_conversations_that_ended_are_closed():
    engine = mixed()
    play(engine, [(0, 1), (1, 2)], Lasting)
    assert engine.closed == [[], [0, 1], None]
    assert list(engine.calls[1]) == [2, 3]


def test_rewards_validity_success_and_state_keys_are_recorded():
    class World(Colors):
        def step(self, response: str) -> Step:
            step = super().step(response)
            return Step(
                observation=step.observation, reward=2 * step.reward, terminated=step.terminated, valid=response != "red",
                state_key=(self.seed, self.played), info={**step.info, "task_type": "kind"},
            )  # fmt: skip

    t = play(always("red"), [0], lambda seed: World(seed, turns=2), group_size=1)[0]
    assert [turn.reward for turn in t.turns] == [2.0, 0.0]
    assert [turn.valid for turn in t.turns] == [False, False]
    assert t.reward == 2.0
    assert [turn.state_key for turn in t.turns] == ["say red", (0, 1)]  # start said none, so the observation is the key
    assert (t.success, t.ended, t.info) == (False, "terminated", {"success": False, "task_type": "kind"})
    assert t.usable


def test_the_state_key_defaults_to_the_observation():
    t = play(always(), [(1, 3)], Lasting, group_size=1)[0]
    assert [turn.state_key for turn in t.turns] == [turn.observation for turn in t.turns]


def test_an_end_by_a_limit_of_the_world_is_no_termination():
    class World(Colors):
        def step(self, response: str) -> Step:
            return Step(observation="", truncated=True, info={"success": True})

    t = play(always(), [0], World, group_size=1)[0]
    assert (t.ended, t.success) == ("truncated", True)


def test_a_start_may_return_a_whole_step():
    class World(Colors):
        def start(self) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
            return Step(observation="say blue", state_key="first", admissible=["blue"])

    t = play(always(), [0], World, group_size=1)[0]
    assert (t.turns[0].observation, t.turns[0].state_key) == ("say blue", "first")


class Faulty(Colors):
    """Task `place` is where it breaks."""

    def __init__(self, place: str):
        super().__init__(0, turns=3)
        self.place = place
        if place == "constructor":
            raise OSError("no room for another world")

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
    "constructor": "OSError: no room for another world",
    "start": "KeyError: 'no such game'",
    "start returns nothing": "NoneType",
    "step": "ValueError: a wire came loose",
    "step returns nothing": "NoneType",
    "step returns a text": "str",
    "reward": "nan",
    "observation": "observation 3",
    "state_key": "list",
}


@pytest.mark.parametrize("world", [Faulty, AsyncFaulty])
@pytest.mark.parametrize("place", CAUSES)
def test_a_world_that_breaks_fails_its_own_trajectory_only(place, world):
    trajectories = play(always(), ["nowhere", place, "nowhere"], world)
    assert [t.usable for t in trajectories] == [True, True, False, False, True, True]
    for t in trajectories[2:4]:
        assert t.ended == "failed"
        assert t.failure is not None
        assert t.failure.startswith("environment: ")
        assert CAUSES[place] in t.failure
        assert not t.success
    assert trajectories[2:4] == [t for t in trajectories if t.ended == "failed"]
    sound = play(always(), ["nowhere"], world)
    assert [t.turns for t in trajectories[:2]] == [t.turns for t in sound]


def test_a_failure_names_the_line_in_the_world():
    t = play(always(), ["step"], Faulty, group_size=1)[0]
    assert t.failure is not None
    assert "at step:" in t.failure


def test_a_cancelled_world_is_a_failed_one():
    t = play(always(), ["cancelled"], AsyncFaulty, group_size=1)[0]
    assert t.failure is not None
    assert "CancelledError" in t.failure


def test_an_interrupt_is_no_failure_of_the_world():
    class World(Colors):
        def step(self, response: str) -> Step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(always(), [0], World)


def test_when_the_engine_breaks_live_trajectories_fail():
    def respond(number: int, turn: int) -> list[int]:
        if turn == 1:
            raise EngineFault("out of pages")
        return [STOP]

    trajectories = play(ScriptedEngine(respond), [(0, 1), (1, 3)], Lasting, group_size=1)
    assert trajectories[0].usable
    assert trajectories[1].failure == "engine: out of pages"
    assert (trajectories[1].ended, trajectories[1].usable) == ("failed", False)


class AsyncColors(Colors):
    """Keeps a lock of the event loop from start to step, as a client of a game server keeps its connection."""

    async def start(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.lock = asyncio.Lock()
        async with self.lock:
            self.loop = asyncio.get_running_loop()
            return super().start()

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        await asyncio.sleep(0)
        return super().step(response)


def test_async_worlds_equal_sync_ones():
    for turns in (1, 3):
        plain = play(mixed(), [0, 1, 2], lambda seed, turns=turns: Colors(seed, turns=turns))
        awaited = play(mixed(), [0, 1, 2], lambda seed, turns=turns: AsyncColors(seed, turns=turns))
        assert awaited == plain
        assert all(t.usable for t in awaited)


def test_async_worlds_of_a_turn_wait_together():
    waiting, most = 0, 0

    class World(Colors):
        async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0)
            waiting -= 1
            return super().step(response)

    play(always(), [0, 1, 2], World)
    assert most == 6


def test_a_conversation_that_would_outgrow_the_context_ends():
    prompt = len(FORMAT.prompt_ids("say red", first=True))
    room = prompt + 3 + prompt + 3  # two turns of at most three tokens
    engine = ScriptedEngine(lambda number, turn: word("red red red"))
    t = play(engine, [0], lambda seed: Colors(seed, turns=5), group_size=1, max_context=room)[0]
    assert (t.ended, len(t.turns), t.usable, t.success) == ("context", 2, True, False)
    shorter = play(engine, [0], lambda seed: Colors(seed, turns=5), group_size=1, max_context=room - 1)[0]
    assert (shorter.ended, len(shorter.turns)) == ("context", 1)


def test_a_conversation_without_room_for_one_response_is_not_usable():
    t = play(always(), [0], Colors, group_size=1, max_context=3)[0]
    assert (t.ended, t.turns, t.usable) == ("context", [], False)


def test_same_seed_same_trajectories():
    def once(seed: int) -> list[Trajectory]:
        return play(LocalEngine(POLICY.model), [0, 1, 2], lambda task: Colors(task, turns=3), seed=seed)

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_turns_draw_from_different_seeds():
    engine = always()
    play(engine, [0], lambda seed: Colors(seed, turns=3), seed=5)
    seeds = [sampling.seed for sampling in engine.samplings]
    assert len(set(seeds)) == 3
    other = always()
    play(other, [0], lambda seed: Colors(seed, turns=3), seed=6)
    assert not set(seeds) & {sampling.seed for sampling in other.samplings}


def test_progress_counts_live_episodes():
    calls = []
    play(always(), [(0, 1), (0, 2)], Lasting, on_turn=lambda live, total: calls.append((live, total)))
    assert calls == [(2, 4), (0, 4)]
