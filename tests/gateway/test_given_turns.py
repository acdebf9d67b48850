"""Trajectories of harnesses that begin with given turns: forks, continuations, trees; and replays that diverge."""

import asyncio
import contextlib
import itertools
from typing import Any

import numpy as np
import pytest

from tests.gateway.asking import ask, call, post, serving, suite, user
from tests.gateway.test_agents import ROLLOUT, SAME, models_of
from tests.toys import ScriptedEngine
from turnwise.base.errors import EngineFault
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.extensions.continuations.play import Continuations
from turnwise.extensions.continuations.settings import ContinuationsConfig
from turnwise.extensions.gateway.agents import Harnesses
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.extensions.gateway.session import Session
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.rollout.collectors import make_collector, make_request
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.plays import play_starts, play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start, fork
from turnwise.rollout.trajectory import Trajectory

MODELS = models_of("tiny")
TASKS = suite.tasks("train")[:3]
NATIVE = InProcessEnvironments(suite.environment)


def harness(name: str = "tests.gateway.asking:play_household") -> Environments:
    return Harnesses(HarnessConfig(run=name))


def same(one: Trajectory, other: Trajectory) -> None:
    assert one.failure is other.failure is None
    assert (one.success, one.reward, one.shared) == (other.success, other.reward, other.shared)
    assert len(one.turns) == len(other.turns)
    for turn, twin in zip(one.turns, other.turns, strict=True):
        assert [getattr(turn, name) for name in SAME] == [getattr(twin, name) for name in SAME]
        np.testing.assert_allclose(turn.behavior_logprobs, twin.behavior_logprobs, atol=1e-4)


def games(environments: Environments) -> list[Trajectory]:
    return play_tasks(make_collector(ROLLOUT, environments, suite.task_name), MODELS, TASKS, seed=7)


@pytest.mark.parametrize("token", [0, 1])
def test_a_fork_of_a_harness_is_that_of_its_environment(token):
    forked = []
    for environments in (NATIVE, harness()):
        played = games(environments)
        starts = [
            fork(each, turn, TASKS[each.group], token if len(each.turns[turn].response_ids) > token else 0)
            for each in played
            for turn in range(len(each.turns))
        ]
        forked.append(play_starts(starts, make_request(MODELS, environments, ROLLOUT, seed=3)))
        for start, trajectory in zip(starts, forked[-1], strict=True):
            assert trajectory.failure is None
            assert trajectory.shared == len(start.turns)
            assert all(mine is given for mine, given in zip(trajectory.turns, start.turns, strict=False))
            if start.token:
                turn, parent = trajectory.turns[trajectory.shared], start.begun
                assert parent is not None
                assert (turn.begun, turn.origin) == (start.token, parent)
                assert turn.response_ids[: start.token] == parent.response_ids[: start.token]
    assert len(forked[0]) > 10
    for one, other in zip(*forked, strict=True):
        same(one, other)


@pytest.mark.parametrize("rule", ["tree_grpo", "arpo", "treerl"])
def test_trees_of_a_harness_are_those_of_its_environment(rule):
    options = {"starts": 2, "tokens": 1} if rule == "treerl" else {}
    rollout = RolloutConfig.model_validate(
        {"group_size": 6, "max_new_tokens": 6, "collector": {"name": "branching", "rule": rule, **options}}
    )
    trees = [
        play_tasks(make_collector(rollout, environments, suite.task_name), MODELS, TASKS[:2], seed=1)
        for environments in (NATIVE, harness())
    ]
    assert any(each.shared for each in trees[0])
    for one, other in zip(*trees, strict=True):
        same(one, other)
        assert one.tree == other.tree


def test_values_by_continuation_of_a_harness_are_those_of_its_environment():
    values = []
    for environments in (NATIVE, harness()):
        go_on = Continuations(ContinuationsConfig(number=4), ROLLOUT, environments, MODELS, seed=0)
        values.append(go_on(games(environments)[:3], TASKS))
    assert len(values[0]) > 5
    assert np.isfinite(values[0]).all()
    np.testing.assert_array_equal(*values)


def test_a_fork_of_another_task_is_refused_at_its_first_message():
    for environments in (NATIVE, harness()):
        played = games(environments)[0]
        for turn in (0, 1):
            (other,) = play_starts([fork(played, turn, TASKS[2])], make_request(MODELS, environments, ROLLOUT, seed=0))
            assert "the replay " in (other.failure or ""), turn


COUNT = itertools.count()


def ask_otherwise_each_time(task: Any, endpoint: Any) -> float:
    messages = [user(f"go {next(COUNT)}")]
    for _ in range(3):
        messages += [ask(endpoint, messages), user("look")]
    return 1.0


PATIENCE = iter([4, 1])


def give_up_the_second_time(task: Any, endpoint: Any) -> float:
    messages = [user("look")]
    for _ in range(next(PATIENCE)):
        messages += [ask(endpoint, messages), user("look")]
    return 1.0


def keep_a_diary(task: Any, endpoint: Any) -> float:
    """Puts a number that changes into an earlier message; the last one stays the same."""
    messages = [user(f"go {next(COUNT)}"), {"role": "assistant", "content": "look"}, user("look")]
    for _ in range(2):
        messages += [ask(endpoint, messages), user("look")]
    return 1.0


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("ask_otherwise_each_time", r"the replay diverged before turn 1: its last message is 'go \d+', before it was"),
        ("give_up_the_second_time", r"the replay diverged before turn 2: it ended, where it had gone on before"),
        ("keep_a_diary", r"the replay diverged before turn 1: its prompt differs from token \d+ on"),
    ],
)
def test_a_replay_that_diverges_fails_with_the_turn_and_the_first_difference_and_is_counted(name, cause):
    environments = harness(f"tests.gateway.test_given_turns:{name}")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    assert first.failure is None
    begin = fork(first, 2 if name[0] == "g" else 1, 0)
    (again,) = play_starts([begin], make_request(MODELS, environments, ROLLOUT, seed=1))
    with pytest.raises(AssertionError, match=cause):
        raise AssertionError(again.failure)
    assert not again.usable
    assert rollout_metrics([first, again])["diverged"] == 1


def test_a_harness_that_catches_the_refusal_and_reports_a_reward_fails_all_the_same():
    environments = harness("tests.gateway.test_given_turns:lie_after_a_refusal")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    (again,) = play_starts([fork(first, 1, 0)], make_request(MODELS, environments, ROLLOUT, seed=1))
    assert again.failure is not None
    assert again.reward == first.turns[0].reward == 0


def lie_after_a_refusal(task: Any, endpoint: Any) -> float:
    messages = [user(f"go {next(COUNT)}")]
    for _ in range(2):
        try:
            messages += [ask(endpoint, messages), user("look")]
        except RuntimeError:
            return 1.0
    return 1.0


def test_a_replay_that_ends_where_it_had_gone_on_fails_and_leaves_the_shared_turn_alone():
    global PATIENCE
    PATIENCE = iter([3, 1])
    environments = harness("tests.gateway.test_given_turns:give_up_the_second_time")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    (again,) = play_starts([fork(first, 1, 0)], make_request(MODELS, environments, ROLLOUT, seed=1))
    assert again.failure == "harness: the replay diverged before turn 2: it ended, where it had gone on before"
    assert [turn.reward for turn in first.turns] == [0, 0, 1]


def test_the_prompt_of_the_first_response_that_is_generated_must_be_as_before_too():
    environments = harness("tests.gateway.test_given_turns:keep_a_diary")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    (again,) = play_starts([fork(first, 0, 0)], make_request(MODELS, environments, ROLLOUT, seed=1))
    assert "the replay diverged before turn 1: its prompt differs from token " in (again.failure or "")


def ask_for_three_at_once(task: Any, endpoint: Any) -> float:
    messages = [user("look")]
    for _ in range(2):
        answer = post(endpoint, "chat/completions", {"messages": messages, "n": 3})
        messages += [answer["choices"][2]["message"], user("look")]
    return 1.0


@pytest.mark.parametrize("token", [0, 1])
def test_an_agent_that_asks_for_several_responses_at_once_is_forked_between_them(token):
    environments = harness("tests.gateway.test_given_turns:ask_for_three_at_once")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    assert len(first.turns) == 6
    starts = [fork(first, turn, 0, token) for turn in range(6) if len(first.turns[turn].response_ids) > token]
    assert len(starts) > 2
    for again in play_starts(starts, make_request(MODELS, environments, ROLLOUT, seed=1)):
        assert (again.failure, len(again.turns)) == (None, 6)
        assert [turn.fresh for turn in again.turns[:3]] == [turn.fresh for turn in first.turns[:3]]
        assert [turn.begun for turn in again.turns] == [token * (place == again.shared) for place in range(6)]
        begun = first.turns[again.shared].response_ids[:token]
        assert again.turns[again.shared].response_ids[:token] == begun


def test_calls_at_the_same_time_are_compared_with_the_record_one_by_one():
    fmt = MODELS.policy.policy.format
    first = Trajectory(0, "")

    async def both(trajectory: Trajectory, start: Start | None) -> list[Any]:
        engine = ScriptedEngine(lambda conversation, turn: [fmt.stop_id])
        session = Session(serving(fmt, engine), 0, trajectory=trajectory, start=start)
        calls = [session.respond(call([user(text)])) for text in ("go", "look")]
        return await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(both(first, None))
    start = fork(first, 0, 0)
    assert not [each for each in asyncio.run(both(start.trajectory(), start)) if isinstance(each, Exception)]


def test_a_fault_of_the_engine_where_the_record_ends_is_no_divergence_and_the_agent_may_ask_again():
    fmt = MODELS.policy.policy.format
    word = fmt.encode("look")[0]
    first, faults = Trajectory(0, ""), [True]

    def respond(conversation: int, turn: int) -> list[int]:
        if faults.pop():
            raise EngineFault("no memory")
        return [fmt.stop_id]

    async def asks(start: Start | None, engine: Any, *, again: bool, reward: bool = True) -> Trajectory:
        session = Session(serving(fmt, engine), 0, trajectory=start.trajectory() if start else first, start=start)
        with contextlib.suppress(BadRequest):
            await session.respond(call([user("look")]))
        if again:
            await session.respond(call([user("look")]))
        session.outcome = Outcome(1.0, True, {}) if reward else None
        return session.end()

    asyncio.run(asks(None, ScriptedEngine(lambda conversation, turn: [word, word, fmt.stop_id]), again=False))
    start = fork(first, 0, 0, token=2)
    lost = asyncio.run(asks(start, ScriptedEngine(respond), again=False))
    assert (lost.failure, first.turns[0].reward) == ("engine: no memory", 1.0)
    faults[:] = [False, True]
    found = asyncio.run(asks(start, ScriptedEngine(respond), again=True))
    assert (found.failure, found.turns[0].begun) == (None, 2)
    assert found.turns[0].response_ids == [word, word, fmt.stop_id]


@pytest.mark.parametrize("how", ["hangs up", "is rewarded"])
@pytest.mark.parametrize("again", [False, True])
def test_a_first_new_response_that_does_not_arrive_leaves_the_shared_turn_alone(how, again):
    """The caller's patience ends while the policy answers, or a reward is posted meanwhile."""
    fmt = MODELS.policy.policy.format
    word = next(number for number in range(len(fmt.tokenizer)) if number != fmt.stop_id)
    first, slow = Trajectory(0, ""), [False]

    class Slow(ScriptedEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            if slow.pop():
                await asyncio.sleep(0.05)
            return await super().generate(conversation, prompt_ids, sampling)

    async def begin() -> None:
        session = Session(serving(fmt, Slow(lambda conversation, turn: [word, word, fmt.stop_id])), 0, trajectory=first)
        slow[:] = [False, False]
        messages = [user("look")]
        replies, _ = await session.respond(call(messages))
        await session.respond(call([*messages, replies[0].message, user("go")]))
        session.finish(Outcome(1.0, True, {}))
        session.end()

    async def resume(start: Start) -> Trajectory:
        engine = Slow(lambda conversation, turn: [fmt.stop_id])
        session = Session(serving(fmt, engine), 0, trajectory=start.trajectory(), start=start)
        messages = [user("look")]
        replies, _ = await session.respond(call(messages))
        request = call([*messages, replies[0].message, user("go")])
        slow[:] = [False, True]
        late = asyncio.ensure_future(session.respond(request))
        await asyncio.sleep(0.01)
        if how == "hangs up":
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
            if again:
                await session.respond(request)
        session.finish(Outcome(-1.0, False, {}))
        if how == "is rewarded" and again:  # else the agent ends before the response is there
            await asyncio.gather(late, return_exceptions=True)
        trajectory = session.end()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        return trajectory

    asyncio.run(begin())
    for token in (0, 2):
        resumed = asyncio.run(resume(fork(first, 1, 0, token=token)))
        assert [turn.reward for turn in first.turns] == [0.0, 1.0]
        if how == "hangs up" and again:
            assert (resumed.failure, resumed.turns[1].begun, resumed.reward) == (None, token, -1.0)
            assert resumed.turns[1].response_ids == [*[word] * token, fmt.stop_id]
        else:
            cause = "harness: the replay diverged before turn 2: it ended, where it had gone on before"
            assert resumed.failure == cause


def conversations(order: str, trajectory: Trajectory, start: Start | None) -> tuple[Trajectory, list[Any]]:
    """Let two sub-agents ask in an order, such as "abab"; each goes on from its own answers."""
    fmt = MODELS.policy.policy.format
    said = {"a": [user("go")], "b": [user("look")]}

    async def ask_all() -> list[Any]:
        session = Session(
            serving(fmt, ScriptedEngine(lambda conversation, turn: [fmt.encode("take")[0], fmt.stop_id])),
            0,
            trajectory=trajectory,
            start=start,
        )
        outcomes: list[Any] = []
        for name in order:
            try:
                ((reply,), _) = await session.respond(call(said[name]))
                said[name] += [reply.message, user("look")]
                outcomes.append(reply.message["content"])
            except BadRequest as error:
                outcomes.append(error)
        session.outcome = Outcome(1.0, True, {})
        session.end()
        return outcomes

    return trajectory, asyncio.run(ask_all())


@pytest.mark.parametrize(("order", "shared"), [("baba", 2), ("baba", 4), ("aabb", 2), ("aabb", 3), ("bbaa", 3)])
def test_sub_agents_that_ask_in_another_order_are_answered_by_what_they_ask(order, shared):
    first, _ = conversations("ababab", Trajectory(0, ""), None)
    assert len(first.turns) == 6
    start = fork(first, shared, 0)
    again, outcomes = conversations(order + "ab", start.trajectory(), start)
    assert [each for each in outcomes if isinstance(each, BadRequest)] == []
    assert (again.failure, len(again.turns)) == (None, 6)
    assert all(mine is given for mine, given in zip(again.turns, first.turns[:shared], strict=False))


def test_a_sub_agent_that_never_asks_again_has_diverged():
    first, _ = conversations("abab", Trajectory(0, ""), None)
    start = fork(first, 2, 0)
    again, _ = conversations("aa", start.trajectory(), start)
    assert again.failure == "harness: the replay diverged before turn 2: it ended, where it had gone on before"
