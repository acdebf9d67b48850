"""The Responses API and Anthropic's messages over HTTP: shapes, tools, streams, continuations and error bodies."""

import json
import urllib.error
import urllib.request

import pytest

from tests.gateway.asking import post, user
from tests.gateway.test_server import FMT, GREEN, TOKEN, served
from tests.toys import ScriptedEngine
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.rollout.trajectory import Turn

LOOK = '<tool_call>{"name": "look", "arguments": {"at": "red"}}</tool_call>'
FLAT = {"type": "function", "name": "look", "parameters": {"type": "object"}}
NAMED = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}


def saying(*texts: str) -> ScriptedEngine:
    left = iter(texts)
    return ScriptedEngine(lambda conversation, turn: [*FMT.encode(next(left)), FMT.stop_id])


def ask(endpoint: Endpoint, given, **more) -> dict:
    return post(endpoint, "responses", {"input": given, **more})


def tell(endpoint: Endpoint, messages: list, **more) -> dict:
    return post(endpoint, "messages", {"model": "policy", "max_tokens": 4, "messages": messages, **more})


def refused(endpoint: Endpoint, path: str, content, **headers: str) -> tuple[int, dict]:
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(endpoint, path, content, **headers)
    with raised.value as answer:
        return raised.value.code, json.load(answer)


def events(endpoint: Endpoint, path: str, content) -> list[dict]:
    body = json.dumps({**content, "stream": True}).encode()
    request = urllib.request.Request(f"{endpoint.base_url}/{path}", body, {"x-api-key": TOKEN})
    with urllib.request.urlopen(request, timeout=10) as answer:
        frames = [frame.split("\n") for frame in answer.read().decode().split("\n\n") if frame]
    found = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in found]
    return found


def counts(answer: dict) -> tuple[int, int]:
    return answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]


def read_and_written(turns: list[Turn]) -> tuple[int, int]:
    """Tokens of the conversation up to its last response, and of that response."""
    *before, last = turns
    read = sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in before) + len(last.prompt_ids)
    return read, len(last.response_ids)


def test_a_response_calls_a_tool_and_continues_by_items():
    with served(saying(f"hm {LOOK}", "green")) as (endpoint, gateway):
        begin = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
        first = ask(endpoint, begin, tools=[FLAT], instructions="be brief")
        said, called = first["output"]
        result = {"type": "function_call_output", "call_id": called["call_id"], "output": "a cat"}
        halves = [{"role": "assistant", "content": [{"type": "output_text", "text": half}]} for half in "hm"]
        again = [*begin, {"type": "reasoning", "summary": []}, *halves, called, result]
        second = ask(endpoint, again, tools=[FLAT], instructions="be brief")
        turns = gateway.sessions["one"].trajectory.turns
    assert (first["object"], first["status"], said["content"][0]["text"]) == ("response", "completed", "hm")
    assert (called["name"], json.loads(called["arguments"])) == ("look", {"at": "red"})
    assert second["output"][0]["content"][0]["text"] == "green"
    assert counts(second) == read_and_written(turns)
    assert second["usage"]["total_tokens"] == sum(counts(second))
    assert [(turn.observation, turn.fresh) for turn in turns] == [("a", True), ("a cat", False)]
    assert "<tool_response>\na cat\n</tool_response>" in FMT.tokenizer.decode(turns[1].prompt_ids)


def test_a_response_continues_another_by_its_id():
    with served(saying("green", "red", "blue")) as (endpoint, gateway):
        first = ask(endpoint, "a", instructions="be brief")
        second = ask(endpoint, "b", instructions="be brief", previous_response_id=first["id"])
        ask(endpoint, "b", previous_response_id=first["id"])  # instructions are not carried over
        code, body = refused(endpoint, "responses", {"input": "c", "previous_response_id": "resp_none"})
        turns = gateway.sessions["one"].trajectory.turns
    assert second["previous_response_id"] == first["id"]
    assert [turn.fresh for turn in turns] == [True, False, True]
    assert "be brief" in FMT.tokenizer.decode(turns[0].prompt_ids)
    assert "be brief" not in FMT.tokenizer.decode(turns[2].prompt_ids)
    assert (code, body["error"]["code"]) == (400, "previous_response_not_found")


def test_a_response_that_is_cut_is_incomplete():
    with served(ScriptedEngine(lambda conversation, turn: GREEN[:2])) as (endpoint, _):
        answer = ask(endpoint, "a", max_output_tokens=2)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_the_events_of_a_response_hold_the_same_as_the_answer():
    with served(saying(f"hm {LOOK}")) as (endpoint, _):
        found = events(endpoint, "responses", {"input": "a", "tools": [FLAT]})
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [found[0]["type"], found[-1]["type"]] == ["response.created", "response.completed"]
    assert "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta") == "hm"
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == found[-1]["response"]["output"]
    (arguments,) = (event for event in found if event["type"] == "response.function_call_arguments.done")
    assert json.loads(arguments["arguments"]) == {"at": "red"}


def test_a_message_calls_a_tool_and_continues():
    with served(saying(f"hm {LOOK}", "green")) as (endpoint, gateway):
        told = [user("a")]
        system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
        first = tell(endpoint, told, tools=[NAMED], system=system)
        said, called = first["content"]
        result = {"type": "tool_result", "tool_use_id": called["id"], "content": [{"type": "text", "text": "a cat"}]}
        told += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = tell(endpoint, told, tools=[NAMED], system=system)
        turns = gateway.sessions["one"].trajectory.turns
    assert (first["type"], first["stop_reason"], said) == ("message", "tool_use", {"type": "text", "text": "hm"})
    assert (called["type"], called["name"], called["input"]) == ("tool_use", "look", {"at": "red"})
    assert (second["content"][0]["text"], second["stop_reason"]) == ("green", "end_turn")
    assert counts(second) == read_and_written(turns)
    assert [(turn.observation, turn.fresh) for turn in turns] == [("a", True), ("a cat", False)]
    assert "<tool_response>\na cat\n</tool_response>" in FMT.tokenizer.decode(turns[1].prompt_ids)


def test_the_events_of_a_message_hold_the_same_as_the_answer():
    with served(saying(f"hm {LOOK}")) as (endpoint, _):
        asked = {"model": "policy", "max_tokens": 4, "messages": [user("a")], "tools": [NAMED]}
        found = events(endpoint, "messages", asked)
    assert [found[0]["type"], found[-1]["type"]] == ["message_start", "message_stop"]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "text_delta", "text": "hm"}
    assert json.loads(deltas[1]["partial_json"]) == {"at": "red"}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_stop_text_ends_a_message():
    with served() as (endpoint, _):
        answer = tell(endpoint, [user("a")], stop_sequences=[" red"])
    assert (answer["content"][0]["text"], answer["stop_reason"], answer["stop_sequence"]) == (
        "green",
        "stop_sequence",
        " red",
    )


OF_RESPONSES = [
    ({}, "input: expected a text or a list of items"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, 'input[0].type="item_reference" is not supported'),
    ({"input": "a", "tools": [{"type": "web_search"}]}, "other tools run elsewhere"),
    ({"input": "a", "inputs": 1}, "Did you mean 'input'?"),
    ({"input": "a", "background": True}, "background=true is not supported"),
    ({"input": "a", "text": {"format": {"type": "json_object"}}}, "needs `turnwise gateway` with engine.name=server"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]: expected text"),
]
OF_MESSAGES = [
    ({"messages": [user("a")]}, "max_tokens: expected a whole number from 1"),
    ({"max_tokens": 4}, "messages: expected a list"),
    ({"max_tokens": 4, "messages": [{"role": "tool", "content": ""}]}, 'messages[0].role="tool"'),
    ({"max_tokens": 4, "messages": [user("a"), {"role": "assistant", "content": "b"}]}, "cannot be continued"),
    ({"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
    ({"max_tokens": 4, "messages": [user("a")], "tools": [{"type": "bash_20250124", "name": "b"}]}, "elsewhere"),
]


def test_bad_requests_get_the_body_of_their_own_api():
    with served() as (endpoint, gateway):
        for content, said in OF_RESPONSES:
            code, body = refused(endpoint, "responses", content)
            assert (code, body["error"]["type"]) == (400, "invalid_request_error")
            assert said in body["error"]["message"]
        for content, said in OF_MESSAGES:
            code, body = refused(endpoint, "messages", {"model": "policy", **content})
            assert (code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
            assert said in body["error"]["message"]
        code, body = refused(endpoint, "messages/count_tokens", {})
        assert (code, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")
        stranger = Endpoint(endpoint.base_url, "wrong", "")
        code, body = refused(stranger, "messages", {})
        assert (code, body["error"]["type"]) == (401, "authentication_error")
        assert not gateway.sessions["one"].trajectory.turns


def test_an_engine_that_can_constrain_gets_the_schema():
    schema = {"type": "object", "properties": {"color": {"type": "string"}}}
    asked = [
        ("chat/completions", {"messages": [user("a")], "response_format": {"type": "json_object"}}),
        (
            "chat/completions",
            {"messages": [user("a")], "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        ),
        ("responses", {"input": "a", "text": {"format": {"type": "json_schema", "name": "c", "schema": schema}}}),
        ("responses", {"input": "a", "text": {"format": {"type": "text"}}}),
    ]
    engine = ScriptedEngine(lambda conversation, turn: GREEN)
    with served(engine, schemas=True, fixed=False) as (endpoint, _):
        for path, content in asked:
            post(endpoint, path, content)
    assert [sampling.schema for sampling in engine.samplings] == [{"type": "object"}, schema, schema, None]
