"""Sessions that share the rows of an engine, and rewards that come while a response is generated."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.asking import call, scripted, serving, user
from tests.toys import ScriptedEngine, color_policy
from turnwise.engines.local import LocalEngine
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.extensions.gateway.recorder import Recorder
from turnwise.extensions.gateway.session import Session

WON = Outcome(1.0, True, {})


def two_calls_each(max_rows: int | None, *, n: int = 1) -> list[list[list[int]]]:
    """Ids of the responses of four sessions that call twice in turn, none of which ends before the others."""

    async def play():
        policy = color_policy()
        engine = LocalEngine(policy.model, max_rows=max_rows)
        shared = serving(policy.format, engine, max_context=64)
        sessions = [Session(shared, number) for number in range(4)]
        said = [[user(f"say {color}")] for color in ("red", "green", "blue", "pink")]
        async with asyncio.timeout(20):
            for _ in range(2):
                for session, messages in zip(sessions, said, strict=True):
                    replies, _ = await session.respond(call(messages, n=n))
                    messages += [replies[0].message, user("say red")]
        assert max_rows is None or engine._num_rows <= max_rows
        assert all(session.trajectory.turns[n].fresh == (n > 1) for session in sessions)
        await engine.aclose()
        return [[turn.response_ids for turn in session.trajectory.turns] for session in sessions]

    return asyncio.run(play())


@pytest.mark.parametrize("n", [1, 2])
def test_idle_sessions_make_room_for_others_and_continue_as_if_they_had_not(n):
    """The first call of a session waited until another one ended."""
    assert two_calls_each(2, n=n) == two_calls_each(None, n=n)


def test_a_request_with_a_seed_is_answered_alike_whatever_came_before():
    async def play(number: int) -> list[list[int]]:
        policy = color_policy(spread=0.1)
        engine = LocalEngine(policy.model)
        session = Session(serving(policy.format, engine, max_context=64, fixed=False), number)
        for _ in range(number):
            await session.respond(call([user("say blue")]))
        replies, _ = await session.respond(call([user("say red")], n=3, seed=5, temperature=5.0))
        await engine.aclose()
        return [reply.generation.token_ids for reply in replies]

    first, second = (asyncio.run(play(number)) for number in (0, 2))
    assert first == second
    assert len({tuple(ids) for ids in first}) > 1


def test_what_requests_ask_for_is_not_kept():
    async def play() -> int:
        policy = color_policy()
        engine = LocalEngine(policy.model)
        shared = serving(policy.format, engine, max_context=64, fixed=False)
        sessions = [Session(shared, number) for number in range(3)]
        for seed in range(0, 60, 3):
            asked = [each.respond(call([user("say red")], seed=seed + at)) for at, each in enumerate(sessions)]
            await asyncio.gather(*asked)
        kept = len(engine._samplings)
        await engine.aclose()
        return kept

    assert asyncio.run(play()) <= 6


@pytest.mark.parametrize("how", ["reward", "end"])
def test_a_response_that_comes_after_the_reward_is_no_turn(how):
    async def play():
        session, engine = scripted(color_policy().format, [[7], [8]])
        await session.respond(call([user("say red")]))
        late = asyncio.ensure_future(session.respond(call([user("say blue")])))
        while len(engine.calls) < 2:
            await asyncio.sleep(0)
        session.finish(WON)
        trajectory = session.end() if how == "end" else session.trajectory
        with pytest.raises(BadRequest, match="this session has ended") as raised:
            await late
        assert (raised.value.status, raised.value.code) == (409, "session_ended")
        assert [turn.response_ids for turn in trajectory.turns] == [[7]]
        trajectory = session.end()
        assert (trajectory.reward, trajectory.turns[-1].reward) == (1.0, 1.0)
        assert {number for numbers in engine.closed for number in numbers or ()} == {0, 2**20}, "a row stays held"

    asyncio.run(play())


def test_a_session_is_not_silent_while_it_is_answered():
    class Slow(ScriptedEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            await go_on.wait()
            return await super().generate(conversation, prompt_ids, sampling)

    async def play():
        session = Session(serving(color_policy().format, Slow(lambda conversation, turn: [7])), 0)
        answer = asyncio.ensure_future(session.respond(call([user("say red")])))
        await asyncio.sleep(0.02)
        assert session.silent_s == 0
        go_on.set()
        await answer
        await asyncio.sleep(0.02)
        assert session.silent_s > 0.01

    go_on = asyncio.Event()
    asyncio.run(play())


def test_a_recorder_opens_no_more_sessions_than_it_may():
    async def play():
        shared = serving(color_policy().format, ScriptedEngine(lambda conversation, turn: [7]))
        recorder = Recorder(shared, lambda trajectories: None, sessions=2)
        for name in "ab":
            recorder.open(name, "")
        with pytest.raises(BadRequest, match="2 sessions are open; end some by their reward") as raised:
            recorder.open("c", "")
        assert (raised.value.status, raised.value.code) == (429, "too_many_sessions")

    asyncio.run(play())


def test_what_could_not_be_written_is_written_at_the_end():
    written: list[list[str]] = []

    def write(trajectories):
        written.append([each.task for each in trajectories])
        if len(written) == 1:
            raise OSError("no space left")

    async def play():
        shared = serving(color_policy().format, ScriptedEngine(lambda conversation, turn: [7]))
        recorder = Recorder(shared, write, batch=1, patience_s=0.0)
        recorder.open("a", "one")
        gateway: Any = SimpleNamespace(lost=asyncio.get_running_loop().create_future(), forget=lambda session: None)
        with pytest.raises(OSError, match="no space left"):
            await recorder.serve(gateway)

    asyncio.run(play())
    assert written == [["one"], ["one"]]


def test_a_temperature_that_float32_cannot_divide_by_is_greedy():
    """It gave nan, and failed the calls of all other sessions."""

    async def play(**asked):
        policy = color_policy()
        session = Session(serving(policy.format, LocalEngine(policy.model), max_context=64, fixed=False), 0)
        await session.respond(call([user("say red")], **asked))
        return session.trajectory.turns[0].response_ids

    expected = asyncio.run(play(temperature=0))
    assert asyncio.run(play(temperature=1e-40)) == asyncio.run(play(top_p=1e-50)) == expected
