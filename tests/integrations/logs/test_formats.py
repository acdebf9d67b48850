"""What each format of a log says becomes the same trajectories; what is wrong is one line with its place."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from turnwise.base.errors import DataError
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.trajectories import in_groups, make_trajectories
from turnwise.rollout.trajectory import Trajectory

EVAL = Path(__file__).parent / "sums.eval"  # made by tests/crosscheck/gateway/make_inspect_log.py
CALL = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
TURNS = [("1 + 1?", CALL, True), ("2", "The sum is 2", False)]


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def read(path: Path, **more: Any) -> list[Trajectory]:
    return make_trajectories(in_groups(read_log(path, **more)[0]))


def turns(trajectory: Trajectory) -> list[tuple[str, str, bool]]:
    return [(turn.observation, turn.response, turn.fresh) for turn in trajectory.turns]


def chat(reward: Any = 1.0, **more: Any) -> dict[str, Any]:
    arguments = json.dumps({"x": 1})
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "The sum is 2"},
    ]
    return {"messages": messages, **({} if reward is None else {"reward": reward}), **more}


def verifiers(**more: Any) -> dict[str, Any]:
    messages = chat()["messages"]
    flat = {**messages[2], "tool_calls": [{"id": "1", "name": "add", "arguments": '{"x": 1}'}]}
    told = {"prompt": messages[:2], "completion": [flat, *messages[3:]], "metrics": {"exact": 1.0}}
    return {"example_id": 7, "reward": 1.0, "error": None, "is_truncated": False, **told, **more}


def text(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def span(begun: int, asked: list, answered: list, trace: str = "t", **attributes: Any) -> dict[str, Any]:
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(answered),
        **attributes,
    }
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in values.items() if value is not None]
    return {"traceId": trace, "name": "chat m", "startTimeUnixNano": str(begun), "attributes": listed, "events": []}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def traced(*, score: float | None = 1.0) -> list[dict[str, Any]]:
    """Two calls, the second of them written first, and a span of the agent with the reward."""
    asked = [text("user", "1 + 1?")]
    call = {"type": "tool_call", "id": "1", "name": "add", "arguments": {"x": 1}}
    first = {"role": "assistant", "parts": [{"type": "text", "content": "Let me see."}, call], "finish_reason": "stop"}
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "2"}]}
    agent = {"traceId": "t", "name": "invoke_agent", "startTimeUnixNano": "1", "attributes": [], "events": []}
    if score is not None:
        names = {"gen_ai.evaluation.name": {"stringValue": "right"}}
        values = {**names, "gen_ai.evaluation.score.value": {"doubleValue": score}}
        told = [{"key": key, "value": value} for key, value in values.items()]
        agent["events"] = [{"name": "gen_ai.evaluation.result", "attributes": told}]
    return [span(20, [*asked, first, result], [text("assistant", "The sum is 2")]), span(10, asked, [first]), agent]


def test_messages_become_turns_that_continue(tmp_path):
    (trajectory,) = read(lines(tmp_path / "log.jsonl", chat(task="sum")))
    assert turns(trajectory) == TURNS
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]
    assert (trajectory.task, trajectory.success, trajectory.ended, trajectory.failure) == (
        "sum",
        True,
        "terminated",
        None,
    )
    assert [turn.state_key for turn in trajectory.turns] == ["1 + 1?", "2"]


def test_trajectories_of_a_task_are_a_group_and_of_a_prompt_without_a_task(tmp_path):
    other = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}], "success": False}
    path = lines(tmp_path / "log.jsonl", chat(), other, chat(0.0), chat(task="sum"), chat(0.5, group="g", task="sum"))
    found = read(path)
    assert [trajectory.group for trajectory in found] == [0, 0, 1, 2, 3]
    assert [trajectory.reward for trajectory in found] == [1.0, 0.0, 0.0, 1.0, 0.5]
    assert [trajectory.task for trajectory in found] == ["1 + 1?", "1 + 1?", "?", "sum", "sum"]


def test_rewards_of_messages_count_and_examples_in_the_prompt_are_not_turns(tmp_path):
    line = chat(0.5)
    line["messages"][2] |= {"reward": 0.25, "valid": False, "state_key": "start"}
    line["messages"][1:1] = [{"role": "user", "content": "0?"}, {"role": "assistant", "content": "0", "weight": 0}]
    (trajectory,) = read(lines(tmp_path / "log.jsonl", line))
    assert turns(trajectory) == TURNS
    assert [(turn.reward, turn.valid, turn.state_key) for turn in trajectory.turns] == [
        (0.25, False, "start"),
        (0.5, True, "2"),
    ]


def test_what_cannot_be_learned_from_has_failed_with_its_cause(tmp_path):
    empty = {"messages": [{"role": "user", "content": "?"}], "reward": 1}
    cut = chat(0.0, truncated=True)
    found = read(lines(tmp_path / "log.jsonl", chat(None), chat(1.0, failure="lost"), empty, cut))
    causes = {trajectory.failure for trajectory in found}
    assert causes == {"log: the log gives no reward", "log: lost", "log: the log has no response", None}
    assert [trajectory.ended for trajectory in found if trajectory.usable] == ["truncated"]


def test_results_of_verifiers(tmp_path):
    text_only = {"example_id": 8, "prompt": "2 + 2?", "completion": "4", "reward": 0.0}
    lost = {**text_only, "error": {"error": "ModelError", "error_chain_str": "ModelError -> timeout"}}
    found = read(lines(tmp_path / "results.jsonl", verifiers(), text_only, lost))
    assert turns(found[0]) == TURNS
    assert (found[0].task, found[0].reward, found[0].info) == ("7", 1.0, {"exact": 1.0})
    assert turns(found[1]) == [("2 + 2?", "4", True)]
    assert (found[2].group, found[2].failure) == (found[1].group, "log: ModelError -> timeout")
    tools = [{"type": "function", "function": {"name": "add"}}]
    first = {**verifiers(), "id": 3, "info": {"oai_tools": tools}}
    del first["example_id"]
    ((early,), _) = read_log(lines(tmp_path / "early.jsonl", first))  # as in files of 2025
    assert (early.task, [response.tools for response in early.responses]) == ("3", [tools, tools])
    with pytest.raises(DataError, match=r"line 1: no key 'example_id'\. Known: "):
        read(lines(tmp_path / "none.jsonl", {key: value for key, value in first.items() if key != "id"}))
    again = lines(tmp_path / "again.jsonl", {**verifiers(), "exact": 0.25})
    assert read(again, reward="exact")[0].reward == 0.25


def test_spans_are_calls_in_the_order_of_time(tmp_path):
    for values in ([export(*traced())], [export(one) for one in traced()]):
        (trajectory,) = read(lines(tmp_path / "spans.jsonl", *values))
        assert turns(trajectory) == TURNS
        assert (trajectory.reward, trajectory.info) == (1.0, {"conversation": "t"})


def test_a_sub_agent_begins_a_prompt_of_its_own_and_conversations_part_traces(tmp_path):
    spans = traced()
    helper = span(15, [text("user", "help")], [text("assistant", "use add")], **{"gen_ai.agent.name": "helper"})
    other = span(5, [text("user", "?")], [text("assistant", "a")], **{"gen_ai.conversation.id": "c"}, trace="u")
    scored = {"traceId": "u", "name": "end", "startTimeUnixNano": "9", "attributes": {"turnwise.reward": -1.0}}
    first, second = read(lines(tmp_path / "spans.jsonl", export(*spans, helper, other, scored)))
    assert [fresh for _, _, fresh in turns(first)] == [True, True, True]
    assert turns(second) == [("?", "a", True)]
    assert (second.reward, second.info) == (-1.0, {"conversation": "c"})


def test_a_real_log_of_inspect(tmp_path):
    found = read(EVAL)
    assert [(each.task, each.reward, each.success) for each in found] == [
        ("sums one", 1.0, True),
        ("sums one", 0.0, False),
        ("sums two", 0.0, False),
        ("sums two", 0.0, False),
    ]
    said = "tool call for tool add\n" + CALL.split("\n", 1)[1].replace('"x": 1', '"x": 1, "y": 1')
    assert turns(found[0]) == [("1 + 1?", said, True), ("2", "The sum is 2", False)]
    assert read(EVAL, reward="includes")[0].reward == 1.0


def sample(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "?", "source": "input"}, {"role": "assistant", "content": "a"}]
    return {"id": 1, "epoch": 1, "messages": messages, "scores": {"s": {"value": "C"}}, **more}


def inspect(path: Path, **more: Any) -> Path:
    path.write_text(json.dumps({"eval": {"task": "t", "model": "m"}, "samples": [sample(**more)]}))
    return path


def test_scores_errors_and_attachments_of_inspect(tmp_path):
    path = tmp_path / "log.json"
    assert read(inspect(path, scores={"s": {"value": {"a": 0.5, "b": "I"}}}), reward="s.a")[0].reward == 0.5
    assert read(inspect(path, scores={}))[0].failure == "log: the log gives no reward"
    assert read(inspect(path, error={"message": "sandbox"}))[0].failure == "log: sandbox"
    assert read(inspect(path, limit={"type": "time"}))[0].ended == "truncated"
    parts = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "attachment://5"}]
    told = [{"role": "user", "content": "?"}, {"role": "assistant", "content": parts}]
    assert turns(read(inspect(path, messages=told, attachments={"5": "long"}))[0]) == [
        ("?", "<think>\nhm\n</think>\n\nlong", True)
    ]


WRONG = [
    (
        "log.jsonl",
        [{"message": []}],
        "its first record belongs to no known format: {message: []}. Known formats: chat:",
    ),
    ("log.jsonl", [{"messages": "hi"}], 'line 1: messages is "hi", expected a list'),
    ("log.jsonl", [{"messages": [{"role": "robot"}]}], 'line 1: messages[0].role="robot": expected one of system'),
    ("log.jsonl", [{"messages": [{"role": "user", "content": [7]}]}], "content[0] is 7, expected a text or an object"),
    ("log.jsonl", [chat(step=0)], "line 1: step is 0, expected a whole number from 1"),
    ("log.jsonl", ["text"], 'no known format: "text"'),
    ("spans.jsonl", [export(span(1, [], []))], 'span "chat m": no attribute gen_ai.output.messages'),
    ("spans.jsonl", [export(span(1, [], [], **{"gen_ai.output.messages": "[{"}))], "is not valid JSON"),
]
PARTLY_WRONG = [
    ("log.jsonl", [chat(), {"message": []}], "line 2: no key 'messages'. Did you mean 'message'?"),
    ("results.jsonl", [verifiers(), {"prompt": "", "completion": ""}], "line 2: no key 'example_id'."),
    ("spans.jsonl", [export(*traced()), {"resource": 1}], "line 2: expected an export of OTLP"),
]
NO_REWARDS = [
    ("much", "line 1: found the reward 'much', expected a finite number"),
    (float("nan"), "found the reward nan"),
]


@pytest.mark.parametrize(("name", "values", "said"), WRONG)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, values, said):
    path = lines(tmp_path / name, *values)
    with pytest.raises(DataError) as raised:
        read(path)
    assert said in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "values", "said"), PARTLY_WRONG)
def test_one_bad_record_costs_itself(tmp_path, name, values, said):
    path = lines(tmp_path / name, *values)
    found, source = read_log(path)
    assert len(found) == 1
    (wrong,) = source.left_out
    assert said in wrong
    assert wrong.startswith(str(path))


@pytest.mark.parametrize(("reward", "said"), NO_REWARDS)
def test_what_is_no_number_is_no_reward(tmp_path, reward, said):
    path = lines(tmp_path / "log.jsonl", chat(reward), chat(0.5))
    found, source = read_log(path)
    assert [each.failure for each in make_trajectories(found)] == ["log: the log gives no reward", None]
    (wrong,) = source.unrewarded
    assert said in wrong


def test_damaged_and_missing_files_are_said(tmp_path):
    damaged = tmp_path / "damaged.eval"
    content = bytearray(EVAL.read_bytes())
    with zipfile.ZipFile(EVAL) as archive:
        content[archive.getinfo("samples/one_epoch_1.json").header_offset + 200] ^= 0xFF
    for data in (content, EVAL.read_bytes()[:500], b"text"):
        damaged.write_bytes(data)
        with pytest.raises(DataError, match=r"damaged\.eval"):
            read(damaged)
    for name in ("none.eval", "none.jsonl"):
        with pytest.raises(DataError, match="No such file"):
            read(tmp_path / name)
    with pytest.raises(DataError, match=r"it has the scores s, other; choose one with --reward NAME"):
        read(inspect(tmp_path / "log.json", scores={"s": {"value": 1}, "other": {"value": 0}}))
    with pytest.raises(DataError, match=r"no score 'include', which --reward names\. Did you mean 'includes'"):
        read(EVAL, reward="include")
    with pytest.raises(DataError, match=r"no key 'rewards', which --reward names\. Did you mean 'reward'"):
        read(lines(tmp_path / "log.jsonl", chat()), reward="rewards")
