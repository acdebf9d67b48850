"""Forms that files of other projects have, and that were not read; see tests/crosscheck/corpora."""

import json
from typing import Any

import pytest
from tests.integrations.logs.test_agents import atif, episode, pair, rollout
from tests.integrations.logs.test_faults import read, said
from tests.integrations.logs.test_formats import TURNS, chat, export, lines, span, text, traced, turns, verifiers

from turnwise.base.errors import DataError
from turnwise.commands.cli import main
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.trajectories import make_trajectories

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("form", [list, json.dumps, lambda tools: list(map(json.dumps, tools))])
def test_tools_may_be_json_in_a_text(tmp_path, form):
    """As columns of data sets have them, whose cells are of one type."""
    found, source = read_log(lines(tmp_path / "log.jsonl", chat(tools=form([TOOL]))))
    assert [response.tools for response in found[0].responses] == [[TOOL]] * 2
    assert not source.left_out
    found, _ = read_log(lines(tmp_path / "results.jsonl", verifiers(tool_defs=form([TOOL]))))
    assert found[0].responses[0].tools == [TOOL]


def test_parts_with_a_value(tmp_path):
    """As LLaMA-Factory writes them; they were read as empty texts, and nothing said so."""
    call = {"type": "tool_call", "value": json.dumps({"name": "add", "arguments": {"x": 1}})}
    messages = [
        {"role": "user", "content": [{"type": "text", "value": "1 + 1?"}]},
        {"role": "assistant", "content": [{"type": "text", "value": "Perhaps 3"}], "loss_weight": 0.0},
        {"role": "user", "content": [{"type": "text", "value": "Sure?"}]},
        {"role": "assistant", "content": [{"type": "reasoning", "value": "hm"}, call], "loss_weight": 1.0},
        {"role": "tool", "content": [{"type": "text", "value": "2"}]},
        {"role": "assistant", "content": [{"type": "text", "value": "The sum is 2"}]},
    ]
    (found,), missing = read(lines(tmp_path / "log.jsonl", {"messages": messages, "reward": 1}))
    called = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
    assert turns(found) == [
        ("Sure?", f"<think>\nhm\n</think>\n\n{called}", True),
        ("2", "The sum is 2", False),
    ]
    assert not any("mark" in each for each in missing)


def test_what_is_wrong_after_a_call_is_named_with_its_place(tmp_path):
    call = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
    given = {"role": "assistant", "content": [call], "tool_calls": [3]}
    with pytest.raises(DataError, match=r"line 1: messages\[1\]\.tool_calls\[0\] is 3, expected an object"):
        read(lines(tmp_path / "log.jsonl", {"messages": [{"role": "user", "content": "q"}, given]}))


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "text", "txt": "hi"}, "1 parts of the type text: a mark with their checksum stands in their place"),
        ({"type": "reasoning", "encrypted_content": "x"}, "1 pieces of reasoning that are encrypted"),
        ({"type": "redacted_thinking", "data": "x"}, "1 pieces of reasoning that are encrypted"),
    ],
)
def test_what_a_part_says_in_another_way_is_counted(tmp_path, part, what):
    said = {"role": "assistant", "content": [part, {"type": "text", "text": "yes"}]}
    (found,), missing = read(lines(tmp_path / "log.jsonl", {"messages": [{"role": "user", "content": "q"}, said]}))
    assert what in missing
    assert found.turns[0].response.endswith("yes")


@pytest.mark.parametrize("tools", ["{", '"x"', 3])
def test_tools_that_are_none_cost_their_record(tmp_path, tools):
    _, missing = read(lines(tmp_path / "log.jsonl", chat(), chat(tools=tools)))
    assert missing[0].startswith("1 records are left out: log.jsonl, line 2: tools is ")


def test_a_call_without_a_readable_answer_leaves_no_trajectory(tmp_path):
    vector = {"object": "list", "data": [{"object": "embedding", "embedding": [0.1]}]}
    embedded = {"request": {"input": "a cat", "model": "e"}, "response": vector}
    found, missing = read(
        lines(tmp_path / "calls.jsonl", pair(chat()["messages"][:2], chat()["messages"][2]), embedded)
    )
    assert said(found) == [[turns(found[0])[0][1]]]
    assert missing[0].startswith(
        "1 records are left out: calls.jsonl, line 2: response: expected choices, content or out"
    )


def test_calls_that_go_on_with_other_tools_are_a_trajectory(tmp_path):
    """Many clients send no tools with the request that is to end in an answer."""
    messages = chat()["messages"]
    first, second = pair(messages[:2], messages[2]), pair(messages[:4], messages[4])
    first["request"]["tools"] = [TOOL]
    (found,), _ = read(lines(tmp_path / "calls.jsonl", first, second))
    assert [turn.response for turn in found.turns] == [turn[1] for turn in TURNS]
    assert [turn.fresh for turn in found.turns] == [True, True]  # the model read other tools


def test_calls_of_other_tools_than_functions_and_their_answers(tmp_path):
    """`computer_call` and others: the answer comes back without what the server added to the call."""
    call = {"type": "computer_call", "call_id": "c", "actions": [{"type": "screenshot"}]}
    shown = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": "u"},
    }
    ask = {"role": "user", "content": "Look."}
    first = {
        "request": {"input": [ask]},
        "response": {"id": "1", "output": [{**call, "id": "x", "status": "completed"}]},
    }
    done = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]}
    second = {"request": {"input": [ask, call, shown]}, "response": {"id": "2", "output": [done]}}
    (found,), missing = read(lines(tmp_path / "calls.jsonl", first, second))
    expected = (
        '<tool_call>\n{"name": "computer_call", "arguments": {"actions": [{"type": "screenshot"}]}}\n</tool_call>'
    )
    assert [turn.response for turn in found.turns] == [expected, "A cat."]
    assert json.loads(found.turns[1].observation) == shown["output"]
    assert not any("parts of the type" in each for each in missing)


def test_transitions_of_nemo_gym(tmp_path):
    """Its agents for Aviary write what the model read before each response, and the response, as lists in a list."""
    plain = rollout(0, 1.0)
    output = [*plain["responses_create_params"]["input"], *plain["response"]["output"]]
    nested = rollout(0, 1.0)
    nested["responses_create_params"]["input"] = []
    nested["response"]["output"] = [output[:6], output]
    (expected,), _ = read(lines(tmp_path / "plain.jsonl", plain))
    (found,), missing = read(lines(tmp_path / "nested.jsonl", nested))
    assert turns(found) == turns(expected)
    assert not missing[1:]
    nested["response"]["output"] = [[{"role": "user", "content": "other"}, *output[1:6]], output]
    (found,), missing = read(lines(tmp_path / "other.jsonl", nested))
    assert turns(found) == turns(expected)
    assert "1 transitions that the last one does not continue" in missing


def test_rewards_of_episodes_may_be_numbers(tmp_path):
    told = episode(rewards={"right": 0.5, "form": {"score": 0.25, "weight": 2.0}})
    (found,), _ = read(lines(tmp_path / "traces.jsonl", told))
    assert found.reward == 1.0


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in given.items()]


CALL = {"type": "tool_call", "id": "1", "name": "add", "arguments": {"x": 1}}


def test_messages_in_events_of_a_span(tmp_path):
    """As Strands writes them, by the conventions' event with the details of a call, here in two of them."""
    expected, _ = read(lines(tmp_path / "attributes.json", export(*traced())))
    spans = traced()
    for each in spans[:2]:
        moved = [pair for pair in each["attributes"] if pair["key"].endswith(".messages")]
        each["attributes"] = [pair for pair in each["attributes"] if pair not in moved]
        each["events"] = [{"name": "gen_ai.client.inference.operation.details", "attributes": [pair]} for pair in moved]
    found, missing = read(lines(tmp_path / "events.json", export(*spans)))
    assert [turns(each) for each in found] == [turns(each) for each in expected]
    assert not [each for each in missing if "left out" in each]


def otlp(value: Any) -> dict[str, Any]:
    """Return a value as OTLP writes it."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": otlp(each)} for key, each in value.items()]}}
    return {"arrayValue": {"values": [*map(otlp, value)]}} if isinstance(value, list) else {"stringValue": value}


def record(number: int, name: str, body: Any, **more: Any) -> dict[str, Any]:
    """Return a record of a log, of the call with this number."""
    ids = {"traceId": "t", "spanId": str(number), "timeUnixNano": str(number)}
    return {**ids, "body": otlp(body), "attributes": [{"key": "event.name", "value": otlp(name)}], **more}


def logs(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def told() -> list[dict[str, Any]]:
    """Return the calls of `traced` as events up to version 1.36 of the conventions."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    asked = record(1, "gen_ai.user.message", {"content": "1 + 1?"})
    first = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    return [
        asked,
        record(1, "gen_ai.choice", {"index": "0", "finish_reason": "tool_calls", "message": first}),
        {**asked, "spanId": "2", "timeUnixNano": "2"},
        record(2, "gen_ai.assistant.message", {key: first[key] for key in ("content", "tool_calls")}),
        record(2, "gen_ai.tool.message", {"id": "1", "content": "2"}),
        record(2, "gen_ai.choice", {"index": "0", "finish_reason": "stop", "message": {"content": "The sum is 2"}}),
        record(9, "app.started", "not a call"),
    ]


@pytest.mark.parametrize("form", ["events", "names", "details", "with spans", "events of spans"])
def test_conversations_in_records_of_logs(tmp_path, form):
    """OpenTelemetry's own instrumentations write the messages as logs, next to spans that have none, or alone."""
    expected, _ = read(lines(tmp_path / "spans.json", export(*traced())))
    values = [logs(*told())]
    spans = [
        {**each, "spanId": str(number), "attributes": [p for p in each["attributes"] if not p["key"].endswith("ages")]}
        for each, number in zip(traced(), "213", strict=True)
    ]
    if form == "names":
        values = [logs(*({**each, "attributes": [], "eventName": name_of(each)} for each in told()))]
    elif form == "details":
        name = "gen_ai.client.inference.operation.details"
        values = [
            logs(record(int(number), name, {}, eventName=name, attributes=each["attributes"]))
            for each, number in zip(traced(), "21", strict=False)
        ]
    elif form == "with spans":
        values = [logs(*told()[:3]), export(*spans), logs(*told()[3:])]
    elif form == "events of spans":  # as Azure's library writes them
        for each in spans:
            each["events"] += [
                {
                    "name": name_of(one),
                    "attributes": [{"key": "gen_ai.event.content", "value": otlp(json.dumps(plain(one["body"])))}],
                }
                for one in told()
                if one["spanId"] == each["spanId"]
            ]
        values = [export(*spans)]
    found, missing = read(lines(tmp_path / "logs.json", *values))
    assert [turns(each) for each in found] == [turns(each) for each in expected]
    assert not [each for each in missing if "left out" in each]
    if "spans" in form:
        assert [each.reward for each in found] == [1.0]


def name_of(record: dict[str, Any]) -> str:
    return record["attributes"][0]["value"]["stringValue"]


def plain(value: dict[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    if kind == "kvlistValue":
        return {pair["key"]: plain(pair["value"]) for pair in inner["values"]}
    return [*map(plain, inner["values"])] if kind == "arrayValue" else inner


def test_records_of_logs_without_messages_are_refused_with_what_they_are(tmp_path):
    path = lines(tmp_path / "logs.json", logs(record(1, "app.started", "x"), record(2, "app.stopped", "y")))
    with pytest.raises(DataError, match=r"logs.json has 2 spans or records of logs, none of them a call of a model"):
        read_log(path)
    path = lines(tmp_path / "empty.json", logs(record(1, "gen_ai.choice", {"index": "0", "message": {}})))
    with pytest.raises(DataError, match=r"no attribute gen_ai.output.messages; have the instrumentation capture"):
        read_log(path)


def test_spans_of_openinference(tmp_path):
    def message(side: str, number: int, **fields: str) -> dict[str, str]:
        return {
            f"llm.{side}_messages.{number}.message.{key.replace('__', '.')}": value for key, value in fields.items()
        }

    called = {"tool_calls__0__tool_call.id": "1", "tool_calls__0__tool_call.function.name": "add"}
    called["tool_calls__0__tool_call.function.arguments"] = '{"x": 1}'
    parts = {"contents__0__message_content.type": "text", "contents__0__message_content.text": "1 + 1?"}
    first = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "session.id": "s",
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
        **message("input", 0, role="user", **parts),
        **message("output", 0, role="assistant", content="Let me see.", **called),
    }
    second = {
        **first,
        **message("input", 1, role="assistant", content="Let me see.", **called),
        **message("input", 2, role="tool", content="2", tool_call_id="1"),
        **message("output", 0, content="The sum is 2"),
    }
    second = {key: each for key, each in second.items() if "output" not in key or "tool_call" not in key}
    tool = {"openinference.span.kind": "TOOL", "input.value": "1"}
    spans = [
        {"traceId": "t", "name": "response", "startTimeUnixNano": f"{begun}", "attributes": attributes(given)}
        for begun, given in enumerate((first, tool, second))
    ]
    found, source = read_log(lines(tmp_path / "spans.json", export(*spans)))
    (read_again,), _ = read(tmp_path / "spans.json")
    assert turns(read_again) == TURNS
    assert (found[0].model, found[0].responses[0].tools) == ("m", [TOOL])
    assert not source.left_out


def test_items_of_one_response_in_openinference_are_one_response(tmp_path):
    """Its instrumentation of the Responses API writes a message per item, in what was asked as well."""

    def items(side: str, begin: int) -> dict[str, str]:
        name = f"llm.{side}_messages.{{}}.message."
        first, second = name.format(begin), name.format(begin + 1)
        call = f"{second}tool_calls.0.tool_call.function."
        told = {f"{first}role": "assistant", f"{first}content": "Let me see.", f"{second}role": "assistant"}
        return {**told, f"{call}name": "add", f"{call}arguments": '{"x": 1}'}

    asked = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "1 + 1?",
    }
    result = {"llm.input_messages.3.message.role": "tool", "llm.input_messages.3.message.content": "2"}
    last = {"llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "The sum is 2"}
    given = ({**asked, **items("output", 0)}, {**asked, **items("input", 1), **result, **last})
    spans = [
        {"traceId": "t", "name": "response", "startTimeUnixNano": f"{begun}", "attributes": attributes(each)}
        for begun, each in enumerate(given)
    ]
    (found,), _ = read(lines(tmp_path / "spans.json", export(*spans)))
    assert turns(found) == TURNS


def test_what_a_tool_answered_in_texts_of_bedrock(tmp_path):
    told = {"type": "tool_call_response", "id": "1", "response": [{"text": "2"}]}
    asked = [text("user", "q"), {"role": "assistant", "parts": [CALL]}, {"role": "tool", "parts": [told]}]
    (found,), _ = read(lines(tmp_path / "spans.json", export(span(1, asked, [text("assistant", "a")]))))
    assert found.turns[0].observation == "2"


def test_spans_with_numbered_prompts(tmp_path):
    """As OpenLLMetry (Traceloop) writes them."""
    called = {"tool_calls.0.id": "1", "tool_calls.0.name": "add", "tool_calls.0.arguments": '{"x": 1}'}

    def numbered(side: str, number: int, **fields: str) -> dict[str, str]:
        return {f"gen_ai.{side}.{number}.{key}": value for key, value in fields.items()}

    asked = numbered("prompt", 0, role="user", content="1 + 1?")
    said_first = {"role": "assistant", "content": "Let me see.", **called}
    first = {"gen_ai.operation.name": "llm_request", "gen_ai.request.model": "m", **asked}
    first |= {"llm.request.functions.0.name": "add", "llm.request.functions.0.parameters": '{"type": "object"}'}
    second = {**first, **numbered("prompt", 1, **said_first)}
    second |= numbered("prompt", 2, role="tool", content="2", tool_call_id="1")
    first |= numbered("completion", 0, **said_first)
    second |= numbered("completion", 0, role="assistant", content="The sum is 2", finish_reason="length")
    task = {"gen_ai.operation.name": "execute_task", "gen_ai.task.output": "x"}
    spans = [
        {"traceId": "t", "name": "chat", "startTimeUnixNano": f"{begun}", "attributes": attributes(given)}
        for begun, given in enumerate((task, first, second))
    ]
    ((found,), _), (logged, _) = read(path := lines(tmp_path / "spans.json", export(*spans))), read_log(path)
    assert turns(found) == TURNS
    assert logged[0].responses[0].tools == [TOOL]
    assert [turn.truncated for turn in found.turns] == [False, True]


def test_spans_with_a_prompt_and_a_completion_in_one_text_each(tmp_path):
    given = {"gen_ai.request.model": "m", "gen_ai.prompt": "1 + 1?", "gen_ai.completion": "2"}
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.prompt": "1 + 1", "gen_ai.completion": "2"}
    spans = [{"traceId": "t", "name": "x", "attributes": attributes(each)} for each in (given, tool)]
    (found,), _ = read(lines(tmp_path / "spans.json", export(*spans)))
    assert turns(found) == [("1 + 1?", "2", True)]


def test_spans_of_no_call_are_refused_with_what_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = span(1, [], [], **{"gen_ai.operation.name": "embeddings"})
    lines(tmp_path / "spans.json", export(other, {"traceId": "t", "name": "GET /", "attributes": []}))
    assert main(["import", "spans.json"]) == 2
    assert "2 spans, none of them a call of a model" in (said := capsys.readouterr().err)
    assert 'got "embeddings", null' in said
    with pytest.raises(DataError, match="none of them a call of a model"):
        read_log(tmp_path / "spans.json")
    found, _ = read_log(
        lines(tmp_path / "mixed.json", export(other, span(2, [text("user", "q")], [text("assistant", "a")])))
    )
    assert len(found) == 1


def test_a_tool_that_failed_tells_the_model_why(tmp_path):
    """Inspect keeps the message next to the content, which is what the tool gave until then, mostly nothing."""
    failed = {"type": "timeout", "message": "Command timed out."}
    call = {"id": "1", "function": "bash", "arguments": {"cmd": "sleep 9"}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "1", "function": "bash", "error": failed},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "half", "tool_call_id": "1", "error": {"type": "limit", "message": "Too long."}},
        {"role": "assistant", "content": "a"},
    ]
    log = {"eval": {}, "samples": [{"id": 1, "messages": messages, "scores": {"s": {"value": "C"}}}]}
    (tmp_path / "log.json").write_text(json.dumps(log))
    (found,) = make_trajectories(read_log(tmp_path / "log.json")[0])
    assert [turn.observation for turn in found.turns] == ["q", "Error: Command timed out.", "half\nError: Too long."]


def test_a_completion_that_begins_with_the_prompt_has_it_once(tmp_path):
    """As verifiers' recursive environments write it; calls are texts of JSON there."""
    prompt = [{"content": "1 + 1?", "role": "user"}]
    call = json.dumps({"id": "1", "function": {"name": "add", "arguments": '{"x": 1}'}, "type": "function"})
    completion = [
        {"content": "1 + 1?", "role": "user", "tool_calls": None},
        {"content": "Let me see.", "role": "assistant", "tool_calls": [call]},
        {"content": "2", "role": "tool", "tool_calls": None},
        {"content": "The sum is 2", "role": "assistant", "tool_calls": None},
    ]
    path = lines(tmp_path / "results.jsonl", verifiers(prompt=prompt, completion=completion))
    logged, _ = read_log(path)
    assert [len(response.history) for response in logged[0].responses] == [1, 3]
    assert turns(make_trajectories(logged)[0]) == TURNS


def sampled(ids: list[Any], logprobs: list[Any]) -> dict[str, Any]:
    metrics = {"completion_token_ids": ids, "logprobs": logprobs}
    return atif(steps=[{"source": "user", "message": "q"}, {"source": "agent", "message": "a", "metrics": metrics}])


NAN = float("nan")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (sampled([1], [NAN]), "steps[1]: NaN is one of the log-probabilities, expected finite numbers"),
        (sampled([1], [-float("inf")]), "steps[1]: -Infinity is one of the log-probabilities, expected finite"),
        (sampled([True], [0]), "steps[1]: metrics.completion_token_ids[0] is true, expected a whole number"),
        (sampled(["2"], [0]), 'steps[1]: metrics.completion_token_ids[0] is "2", expected a whole number'),
        (sampled([1], [False]), "steps[1]: metrics.logprobs[0] is false, expected a number"),
        (atif(extra={"turnwise.step": "2"}), 'step is "2", expected a whole number'),
        (atif(subagent_trajectories=[7]), "sub-agent 0 is 7, expected an object"),
        (pair([], {"role": "assistant", "content": "a"}, step=True), "step is true, expected a whole number"),
        (verifiers(is_truncated=2), "is_truncated is 2, expected true or false"),
        (episode(nodes=[{"message": {"role": "user", "content": "q"}, "token_ids": [True]}]), "token_ids[0] is true"),
        (episode(rewards={"r": {"score": 1, "weight": None}}), "rewards.r.weight is null, expected a number"),
    ],
)
def test_numbers_are_checked_and_not_trusted(tmp_path, record, expected):
    with pytest.raises(DataError) as raised:
        read(lines(tmp_path / "log.jsonl", record))
    assert expected in str(raised.value)


def test_what_is_not_a_failure_or_a_success_is_none(tmp_path):
    found, missing = read(lines(tmp_path / "results.jsonl", *(verifiers(error=each) for each in (None, False, ""))))
    assert [each.failure for each in found] == [None] * 3
    (found,), _ = read(lines(tmp_path / "cut.jsonl", verifiers(is_truncated="no")))
    assert found.ended == "terminated"
    _, missing = read(lines(tmp_path / "log.jsonl", chat(success="yes"), chat()))
    assert "line 1: found success = 'yes' (str), expected True or False" in missing[0]


def test_sub_agents_without_a_name_are_all_read(tmp_path):
    subs = [atif(steps=[{"source": "agent", "message": each}]) for each in "ab"]
    found, _ = read(lines(tmp_path / "log.jsonl", atif(subagent_trajectories=subs)))
    assert [turn.response for turn in found[0].turns][-2:] == ["a", "b"]
