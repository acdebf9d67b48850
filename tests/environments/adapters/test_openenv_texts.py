"""Responses as actions and observations as text, by the schemas that OpenEnv's servers publish, without the package."""

import json
import re
import sys

import pytest

from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.tool_calls import ParsedCall, describe_tools, read_tool_calls
from turnwise.environments.wire import key_as_json
from turnwise.worlds.adapters.openenv import _key
from turnwise.worlds.adapters.openenv_texts import choose_action, choose_observation

METADATA = {"type": "object", "additionalProperties": True}


def schema(required=(), **fields):
    return {"properties": {"metadata": METADATA, **fields}, "required": list(required)}


TEXT, WHOLE, MAYBE = {"type": "string"}, {"type": "integer"}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def test_a_response_fills_the_only_field():
    act = choose_action("", {}, schema(["message"], message=TEXT))
    assert act(" go north\n") == {"message": " go north\n"}


def test_of_many_fields_the_only_required_one_is_filled():
    assert choose_action("", {}, schema(["column"], column=WHOLE, note=TEXT))("3") == {"column": 3}
    assert choose_action("", {"game": "a"}, schema(["game", "move"], game=TEXT, move=TEXT))("e4") == {
        "game": "a",
        "move": "e4",
    }


@pytest.mark.parametrize(
    ("field", "response", "value"),
    [
        (WHOLE, " 4 ", 4),
        (WHOLE, "4.5", None),
        (WHOLE, "true", None),  # a bool is an int in Python
        (WHOLE, "left", None),
        (MAYBE, "4", 4),
        ({"type": "number"}, "4.5", 4.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "string", "enum": ["up", "down"]}, " up ", "up"),
        ({"type": "string", "enum": ["up", "down"]}, "left", None),
        ({"type": "integer", "enum": [1, 2]}, "3", None),
    ],
)
def test_a_response_is_read_as_the_field_wants_it(field, response, value):
    assert choose_action("move", {}, schema(move=field))(response) == (None if value is None else {"move": value})


def test_json_and_tool_calls_fill_more_than_one_field():
    act = choose_action("json", {}, schema(row=WHOLE, column=WHOLE))
    assert act('{"row": 1, "column": 2}') == {"row": 1, "column": 2}
    assert act("[1, 2]") is act("row 1") is None
    call = choose_action("tool_call", {}, {})
    assert call('I look.<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>') == {
        "type": "call_tool",
        "tool_name": "look",
        "arguments": {"at": "door"},
    }
    assert call("look") is None
    assert call('<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}</tool_call>') is None


def shout(response):
    return {"message": response.upper()} if response else None


def test_a_function_of_ones_own_may_read_responses(monkeypatch):
    monkeypatch.setitem(sys.modules, "of_my_own", sys.modules[__name__])
    act = choose_action("of_my_own:shout", {"room": 1}, schema(message=TEXT, room=WHOLE))
    assert act("hey") == {"room": 1, "message": "HEY"}
    assert act("") is None


def test_the_only_text_of_an_observation_is_read_else_everything():
    assert choose_observation("", schema(text=TEXT, length=WHOLE))({"text": "hi", "length": 2}) == "hi"
    board = choose_observation("", schema(board=TEXT, player=TEXT))
    assert json.loads(board({"board": "x.o", "player": "o", "winner": None, "metadata": {"a": 1}})) == {
        "board": "x.o",
        "player": "o",
    }
    assert choose_observation("length", schema(text=TEXT, length=WHOLE))({"text": "hi", "length": 2}) == "2"


def test_all_of_an_observation_is_without_what_the_step_takes_over():
    served = {"text": "who?", "valid": True, "truncated": False, "state_key": "a", "admissible": ["ask"]}
    assert json.loads(choose_observation("json", {})({**served, "info": {"gold": "Ida"}})) == {"text": "who?"}
    theirs = {"board": "...", "info": "You moved to A", "valid": ["left", "up"]}  # which the step does not read
    assert json.loads(choose_observation("json", {})(theirs)) == theirs


def test_what_a_tool_returned_is_read_as_its_texts():
    said = {"result": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": 1}}
    assert choose_observation("result", {})(said) == "a\nb"


@pytest.mark.parametrize(
    ("choice", "further", "message"),
    [
        ("", {}, r"have the fields row, column: set environment.options.action to the field"),
        ("colum", {}, r"actions have no field 'colum'. Did you mean 'column'\?"),
        ("row", {"colum": 1}, r"actions have no field 'colum'. Did you mean 'column'\?"),
    ],
)
def test_a_field_that_does_not_exist_is_said(choice, further, message):
    with pytest.raises(ConfigError, match=message):
        choose_action(choice, further, schema(["row", "column"], row=WHOLE, column=WHOLE))
    with pytest.raises(ConfigError, match=r"observations have no field 'tex'. Did you mean 'text'\?"):
        choose_observation("tex", schema(text=TEXT))


@pytest.mark.parametrize(
    ("response", "said", "calls"),
    [
        ("no call", "no call", []),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "", [ParsedCall("f", '{"x": 1}')]),
        ('hm <tool_call>\n{"name": "f"}\n</tool_call> so', "hm  so", [ParsedCall("f", "{}")]),
        ('<tool_call>{"name": "f"}', "", [ParsedCall("f", "{}")]),  # cut off at the end of the response
        ("<tool_call>{f}</tool_call>", "", [ParsedCall("", "{f}", malformed=True)]),
        (
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            "",
            [ParsedCall("", '{"name": "f", "arguments": [1]}', True)],
        ),
        ("<tool_call>" + "[" * 5000, "", [ParsedCall("", "[" * 5000, malformed=True)]),
        ('<tool_call>{"arguments": {}}</tool_call>', "", [ParsedCall("", '{"arguments": {}}', True)]),
    ],
)
def test_tool_calls_are_read_from_responses(response, said, calls):
    assert read_tool_calls(response) == (said, calls)


def test_a_described_tool_can_be_called_as_described():
    described = describe_tools([{"type": "function", "function": {"name": "add", "parameters": {}}}])
    assert '{"name": "add", "parameters": {}}' in described
    assert "<tool_call>" in described


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"environment.options.url='': expected a server's address"),
        ({"url": "localhost:8000"}, r"expected a server's address"),
        ({"url": "http://localhost:9", "tasks": "all"}, r"environment.options.tasks='all': expected 'seed' or 'index'"),
        ({"url": "http://localhost:9", "sessions": 0}, r"environment.options.sessions=0: expected a whole number"),
        ({"url": "http://localhost:9", "action": 3}, r"environment.options.action=3: expected text, such as ''"),
    ],
)
def test_options_that_cannot_be_are_said(options, message):
    with pytest.raises(ConfigError, match=message):
        make_suite(EnvironmentConfig(name="openenv", options=options))


@pytest.mark.parametrize(
    ("given", "said"),
    [({"workers": 2}, "environment.workers=2"), ({"isolation": "worker"}, "environment.isolation='worker'")],
)
def test_workers_have_no_part_in_it(given, said):
    config = EnvironmentConfig(name="openenv", options={"url": "http://localhost:9"}, **given)
    with pytest.raises(ConfigError, match=f"{said}.*an OpenEnv environment runs on its server, not in workers; set"):
        make_suite(config)


def test_serving_without_the_package_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openenv.core.env_server.http_server", None)
    assert main(["serve-env", "household"]) == 2
    assert re.fullmatch(
        r"turnwise: serve-env needs .*; pip install 'turnwise-rl\[serve-env\]'\n",
        capsys.readouterr().err,
    )


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"needs the module 'websockets.*'; pip install 'turnwise-rl\[openenv\]'"):
        make_suite(EnvironmentConfig(name="openenv", options={"url": "http://localhost:9"}))


@pytest.mark.parametrize("key", [frozenset([8, 0]), ("room", 2, b"\x00"), "room", 3, None])
def test_state_keys_are_equal_on_both_sides(key):
    assert _key(json.loads(json.dumps(key_as_json(key)))) == key
    assert _key({"room": [1]}) == "{'room': [1]}"  # of another server
    assert _key([1, {"a": 2}]) == (1, "{'a': 2}")
