"""From tasks to trajectories: what is recorded, and that a broken world breaks its own trajectory only."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.toys import COLORS, Colors, ScriptedEngine, color_policy

from turnwise.environments.base import Step
from turnwise.errors import EngineFault
from turnwise.policy import Policy
from turnwise.rollout.collect import blocking, collect
from turnwise.rollout.engine import Sampling
from turnwise.rollout.local import LocalEngine
from turnwise.rollout.record import Trajectory
from turnwise.rollout.worlds import InProcessWorlds
from turnwise.tokens import Sequences, score

POLICY = color_policy()
FORMAT = POLICY.format
STOP = FORMAT.stop_id


def word(text: str) -> list[int]:
    return FORMAT.tokenizer.encode(text, add_special_tokens=False)


def play(
    engine, tasks, world, *, group_size: int = 2, max_context: int = 64, seed: int = 0, **more
) -> list[Trajectory]:
    sampling = Sampling(max_new_tokens=3, stop_ids=(STOP,), seed=seed)
    worlds = world if isinstance(world, InProcessWorlds) else InProcessWorlds(world)
    return blocking(
        collect(
            engine, tasks, worlds, FORMAT, group_size=group_size, sampling=sampling, max_context=max_context, **more
        )
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
    turns: Counter[int] = Counter()
    for number, ids in engine.calls:
        assert ids[: len(seen.get(number, []))] == seen.get(number, [])
        seen[number] = ids + engine.respond(number, turns[number])
        turns[number] += 1
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
    assert engine.closed[-1] is None
    assert sorted(number for numbers in engine.closed[:-1] for number in numbers or ()) == [0, 1, 2, 3]
    assert engine.closed.index([1]) < engine.closed.index([2])  # at their own end, not at the end of all


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


def test_a_fault_of_the_engine_fails_the_trajectories_that_it_hits():
    def respond(number: int, turn: int) -> list[int]:
        if (number, turn) == (1, 1):
            raise EngineFault("out of pages")
        return [STOP]

    trajectories = play(ScriptedEngine(respond), [(0, 3), (1, 3), (2, 1)], Lasting, group_size=1)
    assert [t.usable for t in trajectories] == [True, False, True]
    assert trajectories[1].failure == "engine: out of pages"
    assert trajectories[1].ended == "failed"
    assert [len(t.turns) for t in trajectories] == [3, 2, 1]
    assert trajectories[1].turns[1].response_ids == []


def test_an_engine_that_is_gone_fails_all_with_the_cause():
    def respond(number: int, turn: int) -> list[int]:
        raise EngineFault("connection refused at http://localhost:8000")

    for trajectory in play(ScriptedEngine(respond), [0, 1, 2], Colors):
        assert trajectory.failure == "engine: connection refused at http://localhost:8000"


def test_a_broken_model_fails_all_that_are_live_with_the_cause():
    policy = color_policy()
    fed = Passes(policy)

    def world(task: tuple[int, int]) -> Lasting:
        return Lasting(task)

    with fed.broken_at(6):
        trajectories = play(LocalEngine(policy.model), [(0, 1), (1, 9)], world, group_size=2)
    assert [t.usable for t in trajectories] == [True, True, False, False]
    assert {t.failure for t in trajectories[2:]} == {"engine: RuntimeError: a cable was pulled"}


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


class Passes:
    """Counts what a model is asked to compute."""

    def __init__(self, policy: Policy):
        self.decoder, self.count, self.broken = policy.model.get_decoder(), 0, 0
        self.decoder.register_forward_pre_hook(self)

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.count == self.broken:
            raise RuntimeError("a cable was pulled")

    @contextmanager
    def broken_at(self, count: int) -> Iterator[None]:
        self.count, self.broken = 0, count
        yield
        self.broken = 0


@pytest.mark.parametrize("slow", [0, 3, 5])
def test_a_slow_world_is_not_waited_for_by_others(slow):
    policy, loops = color_policy(), 0
    passes = Passes(policy)

    class World(Colors):
        async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
            nonlocal loops
            target = passes.count + 10
            while self.seed == slow and self.played == 0 and passes.count < target:  # for ever, were others waiting too
                loops += 1
                assert loops < 1000
                await asyncio.sleep(0)
            return super().step(response)

    def once(world: type[Colors]) -> list[Trajectory]:
        return play(
            LocalEngine(policy.model), range(6), lambda seed: world(seed, turns=6), group_size=1, max_context=100
        )

    late = once(World)
    assert loops > 0
    plain = once(Colors)
    for one, other in zip(late, plain, strict=True):  # what is said is the same, whoever is late
        assert [turn.response_ids for turn in one.turns] == [turn.response_ids for turn in other.turns]
        assert one.success == other.success
        for mine, theirs in zip(one.turns, other.turns, strict=True):
            assert mine.behavior_logprobs == pytest.approx(theirs.behavior_logprobs, abs=1e-4)
    assert {len(t.turns) for t in late} == {6}


def test_async_worlds_wait_together():
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


@pytest.mark.parametrize("patience", [0.0, 0.5, 50.0])
@pytest.mark.parametrize("max_rows", [1, 3, None])
def test_behavior_logprobs_are_those_of_the_scorer(patience, max_rows):
    policy = color_policy(layers=2, context=128)
    engine = LocalEngine(policy.model, patience=patience, max_rows=max_rows)
    trajectories = play(engine, [(0, 1), (1, 4), (2, 7), (3, 3)], Lasting, group_size=3, max_context=128)
    assert [t.usable for t in trajectories] == [True] * 12
    assert len({sum(len(turn.response_ids) for turn in t.turns) for t in trajectories}) > 5  # of different lengths
    sampled = [logprob for t in trajectories for turn in t.turns for logprob in turn.behavior_logprobs]
    scored, _ = score(policy.model, Sequences.from_trajectories(trajectories))
    assert len(sampled) > 100
    assert sampled == pytest.approx(scored.tolist(), abs=1e-4)


def test_what_is_said_does_not_depend_on_the_schedule():
    def once(**options: Any) -> list[list[list[int]]]:
        engine = LocalEngine(POLICY.model, **options)
        trajectories = play(engine, [(0, 1), (1, 4), (2, 3), (3, 2)], Lasting, group_size=4)
        return [[turn.response_ids for turn in t.turns] for t in trajectories]

    everything = once()
    assert len({str(said) for said in everything}) > 8
    for options in ({"patience": 0.0}, {"patience": 9.0}, {"max_rows": 2}, {"max_rows": 5}, {"share_prefixes": False}):
        assert once(**options) == everything


# --- ends ---


class Kept(InProcessWorlds):
    """Remembers which worlds were let go."""

    def __init__(self, make_environment: Any):
        super().__init__(make_environment)
        self.closed: list[int] = []

    def close(self, key: int) -> None:
        self.closed.append(key)
        super().close(key)


def test_every_world_is_let_go_of_however_it_ended():
    worlds = Kept(Faulty)
    engine = always()
    play(engine, ["nowhere", "constructor", "step"], worlds)
    assert sorted(worlds.closed) == list(range(6))
    assert engine.closed[-1] is None
    worlds = Kept(Colors)
    play(always(), [0], worlds, max_context=3)
    assert sorted(worlds.closed) == [0, 1]


def test_cancelling_a_collection_cleans_up_everything():
    worlds, engine = Kept(lambda seed: Hanging(seed, turns=3)), LocalEngine(POLICY.model)
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
            collect(
                engine, [0, 1], worlds, FORMAT, group_size=2, sampling=Sampling(max_new_tokens=3), max_context=64
            )
        )  # fmt: skip
        while began.count(1) < 4:  # both have taken a first step, and hang in the second
            await asyncio.sleep(0.01)
        assert not collection.done()
        collection.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collection
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
    assert sorted(worlds.closed) == [0, 1, 2, 3]
    assert ended.count(1) == 4  # two first steps that returned, two that were interrupted
    assert play(engine, [0], Colors)[0].usable


def test_an_error_of_ours_ends_the_collection_and_cleans_up():
    worlds, engine = Kept(lambda seed: Colors(seed, turns=3)), LocalEngine(POLICY.model)

    def break_(live: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(engine, [0, 1], worlds, on_turn=break_)
    assert sorted(set(worlds.closed)) == [0, 1, 2, 3]
    assert play(engine, [0], Colors)[0].usable


def test_collections_can_be_had_where_an_event_loop_is_running():
    async def notebook() -> list[Trajectory]:
        return play(always(), [0, 1], Colors)

    assert asyncio.run(notebook()) == play(always(), [0, 1], Colors)


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


def test_progress_counts_live_episodes():
    calls = []
    play(always(), [(0, 1), (0, 3)], Lasting, on_turn=lambda live, total: calls.append((live, total)))
    assert calls == [(3, 4), (2, 4), (2, 4), (2, 4), (2, 4), (2, 4), (1, 4), (0, 4)]


def test_progress_counts_those_that_fail_and_those_without_room_too():
    calls = []
    play(always(), ["constructor"], Faulty, on_turn=lambda live, total: calls.append((live, total)))
    play(always(), [0], Colors, max_context=3, on_turn=lambda live, total: calls.append((live, total)))
    assert calls == [(1, 2), (0, 2)] * 2
