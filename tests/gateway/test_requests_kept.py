"""What an agent sends is recorded: a run can be exported with the prompts that its responses answered."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.gateway.asking import assistant, call, scripted, user
from tests.integrations.logs.test_export import objects
from tests.rollout import chat_models
from turnwise.config import parse_config
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.integrations.logs.export import export
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
