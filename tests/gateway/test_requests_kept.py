"""What an agent sends is recorded: a run can be exported with the prompts that its responses answered."""

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.gateway.asking import assistant, call, scripted, user
from tests.integrations.logs.test_export import objects
from tests.rollout import chat_models
from turnwise.base.errors import DataError
from turnwise.config import parse_config
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.extensions.gateway.prompter import Prompter
from turnwise.integrations.logs.export import export
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.trajectories import _encode, make_trajectories
from turnwise.integrations.logs.write import import_log
from turnwise.integrations.recorded import RecordedRun
from turnwise.models.chat import chat_format
from turnwise.models.settings import PromptConfig
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Trajectory

TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "You find things."}
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "desk"}}\n</tool_call>'
FOUND = {"role": "tool", "content": "a mug"}


@pytest.fixture
def fmt():
    return chat_format(chat_models.tokenizer("qwen2_5"), PromptConfig())


async def asked(fmt) -> tuple[Trajectory, list[tuple[list[dict[str, Any]], list[Any]]]]:
    """An agent that uses a tool, asks a helper without tools, and then goes on with a summary of its history."""
    said = [CALL, "mug", "It is a mug.", "on the desk", "done"]
    session, _ = scripted(fmt, [[*fmt.encode(text), fmt.stop_id] for text in said])
    sent: list[tuple[list[dict[str, Any]], list[Any]]] = []

    async def ask(messages: list[dict[str, Any]], tools: list[Any]) -> dict[str, Any]:
        sent.append((json.loads(json.dumps(messages)), tools))
        replies, _ = await session.respond(call(messages, **({"tools": tools} if tools else {})))
        answer = replies[0].message
        return {**answer, **({"tool_calls": replies[0].calls} if replies[0].calls else {})}

    messages = [SYSTEM, user("What is there?")]
    messages.append(await ask(messages, [TOOL]))
    messages.append(FOUND)
    messages.append(await ask(messages, [TOOL]))
    await ask([SYSTEM, user("Say it whole: mug")], [])
    summary = [SYSTEM, user("Earlier: a mug was seen."), assistant("mug"), user("Where?"), user("Be exact.")]
    summary.append(await ask(summary, [TOOL]))
    summary += [user("Thanks."), user("Stop.")]
    await ask(summary, [TOOL])
    session.finish(Outcome(1.0, True, {}))
    return session.end(), sent


def plain(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Roles, texts and calls, without the ids of calls, which agents and formats choose."""
    calls = [
        [
            (each["function"]["name"], json.loads(each["function"]["arguments"]))
            for each in message.get("tool_calls", ())
        ]
        for message in messages
    ]
    return [(each["role"], each.get("content") or "", call) for each, call in zip(messages, calls, strict=True)]


def recorded(trajectory: Trajectory, name: str = "run") -> Path:
    """A run of this trajectory and a failure of the same task, so that its responses have credit."""
    worse = Trajectory(0, trajectory.task, trajectory.turns[:1], ended="terminated")
    run = RecordedRun(Path(name).absolute(), parse_config({"model": {"name": "some/chat"}}))
    run.add([trajectory, worse])
    return run.folder.path


def test_an_exported_response_follows_the_messages_that_the_agent_sent(fmt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trajectory, sent = asyncio.run(asked(fmt))
    assert [turn.fresh for turn in trajectory.turns] == [True, False, True, True, False]
    run = recorded(trajectory)
    export(run, Path("a.jsonl"), "sft", by="advantage", least=-9.0)
    lines = objects("a.jsonl")[:5]
    assert [plain(line["prompt"]) for line in lines] == [plain(messages) for messages, _ in sent]
    assert [line.get("tools", []) for line in lines] == [tools for _, tools in sent]
    assert [line["completion"][0].get("content") for line in lines[1:]] == [
        "mug",
        "It is a mug.",
        "on the desk",
        "done",
    ]
    answer = lines[1]["prompt"][-1]
    assert answer["tool_call_id"] == lines[1]["prompt"][-2]["tool_calls"][0]["id"]


@pytest.mark.parametrize("to", ["chat", "atif", "opentelemetry"])
def test_a_run_of_an_agent_comes_back_from_every_format_with_its_prompts(fmt, tmp_path, monkeypatch, to):
    monkeypatch.chdir(tmp_path)
    trajectory, sent = asyncio.run(asked(fmt))
    export(recorded(trajectory), Path("log.jsonl"), to)
    import_log(Path("log.jsonl"), Path("again").absolute())
    export(Path("again"), Path("b.jsonl"), "sft", by="advantage", least=-9.0)
    prompts = [plain(line["prompt"]) for line in objects("b.jsonl")]
    for messages, _ in sent:
        assert plain(messages) in prompts


def test_an_observation_is_not_recorded_twice(fmt, tmp_path):
    trajectory, _ = asyncio.run(asked(fmt))
    path = recorded(trajectory, str(tmp_path / "run")) / "rollouts" / "step-000001.parquet"
    requests = [json.loads(each) for each in pq.read_table(path)["request"].to_pylist()[:5]]
    assert [len(each["messages"]) for each in requests] == [2, 1, 2, 5, 2]
    assert all("content" not in each["messages"][-1] for each in requests)
    assert [each.get("tools") for each in requests] == [[TOOL], None, None, [TOOL], None]
    assert pq.read_schema(path).metadata[b"turnwise_format"] == b"5"
    (again, _), _ = read_rollouts(path)
    assert [turn.extras["request"] for turn in again.turns] == requests


def test_a_log_with_a_sub_agent_is_read_with_the_ids_that_the_gateway_had(fmt, tmp_path, monkeypatch):
    """A planner goes on after its helper: what it has said keeps its ids, which the template would write otherwise."""
    monkeypatch.chdir(tmp_path)
    said = [CALL.replace("\n", ""), "It is a mug.", "done"]

    async def play() -> Trajectory:
        session, _ = scripted(fmt, [[*fmt.encode(text), fmt.stop_id] for text in said])
        messages = [SYSTEM, user("What is there?")]
        replies, _ = await session.respond(call(messages, tools=[TOOL]))
        messages += [{**replies[0].message, "tool_calls": replies[0].calls}, FOUND]
        await session.respond(call([user("Say it whole: mug")]))
        await session.respond(call(messages, tools=[TOOL]))
        session.finish(Outcome(1.0, True, {}))
        return session.end()

    trajectory = asyncio.run(play())
    assert [turn.fresh for turn in trajectory.turns] == [True, True, True]
    export(recorded(trajectory), Path("log.jsonl"), "atif")
    (logged, *_), _ = read_log(Path("log.jsonl"))
    (again,) = make_trajectories([logged])
    policy = SimpleNamespace(format=fmt, max_context=4096)
    _encode(logged, again, Prompter(fmt), policy)  # pyright: ignore[reportArgumentType]
    for one, other in zip(again.turns, trajectory.turns, strict=True):
        assert (one.fresh, one.prompt_ids, one.response_ids) == (other.fresh, other.prompt_ids, other.response_ids)


def test_pairs_leave_out_trajectories_of_several_conversations_and_say_so(fmt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trajectory, _ = asyncio.run(asked(fmt))
    run = recorded(trajectory)
    with pytest.raises(DataError, match=r"1 of them have several conversations .* which --by state pairs"):
        export(run, Path("a.jsonl"), "dpo")


def test_recordings_of_tasks_of_their_own_are_not_grouped(fmt, tmp_path):
    trajectory, _ = asyncio.run(asked(fmt))
    for names, grouped in (((0, 1), False), ((0, 0), True)):
        run = RecordedRun(tmp_path / str(grouped), parse_config({"model": {"name": "some/chat"}}))
        twins = [dataclasses.replace(trajectory, group=number) for number in names]
        run.add(twins)
        assert run.grouped is grouped
