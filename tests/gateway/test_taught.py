"""Recorded conversations have the tokens that the gateway would have recorded, and errors name their line."""

import asyncio
import json

import pytest

from tests.gateway.asking import assistant, call, scripted, user
from tests.gateway.test_prompts import TOOL, make_format
from turnwise.base.errors import ConfigError, DataError
from turnwise.extensions.gateway.prompter import Prompter
from turnwise.extensions.gateway.taught import encode, read_conversations

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "the <wall>", "times": 2}'}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "red"}
WITH_TOOLS = {
    "messages": [
        {"role": "system", "content": "You see."},
        user("look"),
        assistant("", tool_calls=[CALL]),
        RESULT,
        assistant("I look again.", tool_calls=[CALL, CALL]),
        RESULT,
        RESULT,
        assistant("It is red."),
    ],
    "tools": [TOOL],
}
PLAIN = {"messages": [user("red"), assistant("go"), user("blue"), assistant("look")]}


def logged(tmp_path, *lines) -> str:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def conversation(tmp_path, line):
    (read,) = read_conversations(logged(tmp_path, line))
    return read


def fmt_of(family: str):
    if family != "tiny-chat":
        return make_format(family)
    from turnwise.models.settings import ModelConfig, PromptConfig
    from turnwise.models.tiny_chat import tiny_chat_policy

    return tiny_chat_policy(["look red"], ModelConfig(name="tiny-chat", hidden_size=16), PromptConfig(), seed=0).format


@pytest.mark.parametrize(
    ("family", "line"),
    [
        ("smollm2", WITH_TOOLS),
        ("qwen2_5", WITH_TOOLS),
        ("qwen3", WITH_TOOLS),
        ("tiny-chat", WITH_TOOLS),
        ("tiny", PLAIN),
    ],
)
def test_the_tokens_are_those_that_the_gateway_records(family, line, tmp_path):
    """A model that gives these responses is asked for them with these prompts, and its answers are these messages."""
    fmt = fmt_of(family)
    read = conversation(tmp_path, line)
    pieces = encode(read, fmt, Prompter(fmt))
    assert [told for _, told in pieces] == [False, True] * (len(pieces) // 2)

    async def play():
        session, _ = scripted(fmt, [ids for ids, told in pieces if told])
        said = []
        for index in read.imitated:
            replies, _ = await session.respond(call(line["messages"][:index], tools=line.get("tools", [])))
            said.append(replies[0].message)
        return session.trajectory.turns, said

    turns, said = asyncio.run(play())
    assert said == [read.messages[index] for index in read.imitated]
    assert [ids for turn in turns for ids in (turn.prompt_ids, turn.response_ids)] == [ids for ids, _ in pieces]
    assert [turn.fresh for turn in turns] == [True] + [False] * (len(turns) - 1)


def test_a_message_of_weight_0_is_read_and_not_imitated(tmp_path):
    fmt = make_format("tiny")
    line = {"messages": [user("red"), assistant("go", weight=0), user("blue"), assistant("look")]}
    pieces = encode(conversation(tmp_path, line), fmt, Prompter(fmt))
    assert [str(fmt.tokenizer.decode(ids)).split() for ids, _ in pieces] == [
        ["<obs>", "red", "<act>", "go", "<end>", "<obs>", "blue", "<act>"],
        ["look", "<end>"],
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"mesages": []}, "line 2: no key 'messages'. Did you mean 'mesages'?"),
        ({"messages": "x"}, 'line 2: messages="x"'),
        ({"messages": [], "tools": {}}, "line 2: tools={}, expected a list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 'line 2: messages[0].role="robot"'),
    ],
)
def test_a_line_that_is_no_conversation_is_named(line, told, tmp_path):
    with pytest.raises(DataError) as raised:
        read_conversations(logged(tmp_path, PLAIN, line))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({**WITH_TOOLS, "tools": []}, "line 1, messages[2]: it calls a tool, and the line has no 'tools'"),
        (
            {
                "messages": [user("a"), assistant("", tool_calls=[{"function": {"name": "look", "arguments": "{"}}])],
                "tools": [TOOL],
            },
            "line 1, messages[1]: the model would write",
        ),
        (
            {"messages": [user("a"), assistant("<|im_end|> b")]},
            "line 1, messages[1]: the model would write",
        ),
    ],
)
def test_a_response_that_the_model_cannot_have_given_names_its_line(line, told, tmp_path):
    fmt = make_format("qwen2_5")
    with pytest.raises(DataError) as raised:
        encode(conversation(tmp_path, line), fmt, Prompter(fmt))
    assert told in str(raised.value)


def test_a_template_that_refuses_a_conversation_names_its_line(tmp_path, monkeypatch):
    fmt = make_format("qwen2_5")
    refuses = "{{ raise_exception('Only two messages.') if messages | length > 2 }}"
    monkeypatch.setattr(fmt.tokenizer, "chat_template", refuses + str(fmt.tokenizer.chat_template))
    line = {"messages": [user("a"), assistant("b"), user("c"), assistant("d")]}
    with pytest.raises(DataError, match=r"line 1, messages\[3\]: the model's chat template refuses .* Only two"):
        encode(conversation(tmp_path, line), fmt, Prompter(fmt))
    tiny = make_format("tiny")
    with pytest.raises(DataError, match=r"line 1, messages\[2\]: this model has no chat template, so it cannot call"):
        encode(conversation(tmp_path, WITH_TOOLS), tiny, Prompter(tiny))


def lines_of_a_function():
    yield PLAIN


def test_a_function_gives_conversations_too():
    (read,) = read_conversations(f"{__name__}:lines_of_a_function")
    assert read.imitated == (1, 3)
    with pytest.raises(ConfigError, match="has no 'lines'"):
        read_conversations(f"{__name__}:lines")


def test_a_file_without_a_response_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no message of an assistant"):
        read_conversations(logged(tmp_path, {"messages": [user("a")]}))


THOUGHTFUL = {
    "messages": [user("red"), assistant("go", reasoning_content="It is red."), user("blue"), assistant("look")]
}
IN_TAGS = {"messages": [user("red"), assistant("<think>\nIt is red.\n</think>\n\ngo"), user("b"), assistant("look")]}


@pytest.mark.parametrize("line", [THOUGHTFUL, IN_TAGS])
@pytest.mark.parametrize("family", ["smollm2", "qwen2_5", "qwen3", "tiny-chat"])
def test_reasoning_is_imitated_and_no_part_of_the_message(family, line, tmp_path):
    fmt = fmt_of(family)
    told = [fmt.text(ids) for ids, told in encode(conversation(tmp_path, line), fmt, Prompter(fmt)) if told]
    begun = "" if fmt.opens_reasoning else "<think>\n"
    if family != "tiny-chat":  # which has no words for it
        assert told[0] == f"{begun}It is red.\n</think>\n\ngo"
    assert told[-1].removeprefix("</think>").strip() == "look"


def test_calls_and_refusals_of_older_requests_are_read(tmp_path):
    call = {"name": "look", "arguments": '{"at": "\\ud800"}'}
    messages = [user("a"), assistant(None, function_call=call), user("b"), assistant(None, refusal="No.")]
    read = conversation(tmp_path, {"messages": messages, "tools": [{**TOOL, "note": "\ud800"}]}).messages
    assert read[1] == assistant("", tool_calls=[{"function": {"name": "look", "arguments": {"at": "?"}}}])
    assert read[3] == assistant("No.")


def test_silence_is_not_imitated(tmp_path):
    fmt = make_format("qwen2_5")
    for message in (assistant(None), assistant("<think>\nhm\n</think>\n\n")):
        with pytest.raises(DataError, match=r"line 1, messages\[1\]: it says nothing; leave it out, or give it the"):
            encode(conversation(tmp_path, {"messages": [user("a"), message]}), fmt, Prompter(fmt))
