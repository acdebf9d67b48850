"""Read messages of chat completions, the common form of all dialects and logs, and name histories."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.environments.plain import sound, sound_text
from turnwise.environments.tool_calls import read_json
from turnwise.extensions.gateway.errors import BadRequest

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = dict[str, Any]
"""A message after `read_message`: `role`, `content` (text), and perhaps `tool_calls` with `function`s."""


def read_messages(value: Any) -> list[Message]:
    """Validate messages, and normalise them: `content` is text, arguments of tool calls are objects.

    Raises:
        BadRequest: One is not valid, or the last is the assistant's.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest("messages: expected a list with at least one message", param="messages")
    messages = [read_message(message, f"messages[{number}]") for number, message in enumerate(in_order(value))]
    if messages[-1]["role"] == "assistant":
        raise BadRequest("the last message is the assistant's; a response cannot be continued", param="messages")
    return messages


def in_order(messages: Sequence[Any]) -> list[Any]:
    """Put the results that follow calls in the order of the calls, by their ids, if each result names another call.

    Agents send the results of parallel calls as they come; chat templates match them by place.
    """
    found, place = list(messages), dict[Any, int]()
    start = 0  # of the results of the latest calls
    for number, message in enumerate([*messages, None]):
        fields = message if isinstance(message, dict) else {}
        if fields.get("role") == "tool":
            continue
        ids = [str(each.get("tool_call_id")) for each in found[start:number]]
        if len(ids) > 1 and len({*ids} & place.keys()) == len(ids):
            found[start:number] = sorted(found[start:number], key=lambda each: place[str(each.get("tool_call_id"))])
        calls = fields.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        place = {str(call.get("id")): at for at, call in enumerate(calls) if isinstance(call, dict)}
        start = number + 1
    return found


def read_message(message: Any, where: str) -> Message:
    """Validate a message, and normalise it.

    Raises:
        BadRequest: It is not valid.
    """
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise BadRequest(f"{where}.role={short(role)}: expected one of {', '.join(ROLES)}", param=f"{where}.role")
    read: Message = {
        "role": "system" if role == "developer" else role,
        "content": read_text(message.get("content"), f"{where}.content"),
    }
    if not read["content"] and isinstance(refusal := message.get("refusal"), str):
        read["content"] = sound_text(refusal)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRequest(f"{where}.tool_calls: expected a list", param=f"{where}.tool_calls")
    if not calls and message.get("function_call"):  # as requests had it before tools
        read["tool_calls"] = [read_call({"function": message["function_call"]}, f"{where}.function_call")]
    if calls:
        read["tool_calls"] = [read_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return read


def read_text(content: Any, where: str) -> str:
    """Join the texts of a message's content, which is a text or a list of parts.

    Raises:
        BadRequest: A part is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return sound_text(content)
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRequest(f'{where}[{number}]: expected text, or {{"type": "text", "text": ...}}', param=where)
    return sound_text("".join(part["text"] for part in content))


def read_call(call: Any, where: str) -> dict[str, Any]:
    """Read a tool call; arguments that are valid JSON become values.

    Raises:
        BadRequest: It has no name.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{where}.function: expected a name and arguments", param=where)
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}  # some clients write this for no content
    with contextlib.suppress(ValueError):  # a harness may pass on a model's malformed call
        arguments = read_json(arguments) if isinstance(arguments, str) else arguments
    return {"function": {"name": sound_text(function["name"]), "arguments": sound(arguments)}}


def history_keys(messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[bytes]:
    """Return a key per message that names the conversation up to it. Ids of tool calls do not count."""
    key = _digest(b"", json.dumps(list(tools), sort_keys=True))
    return [key := next_key(key, message) for message in messages]


def next_key(key: bytes, message: Message) -> bytes:
    """Return the key of a conversation that a message continues: a hash of role, text, and calls with arguments."""
    content, calls = message["content"], [call["function"] for call in message.get("tool_calls", ())]
    called = json.dumps([[call["name"], _same(call["arguments"])] for call in calls], sort_keys=True) if calls else ""
    # the length separates texts from calls; most messages have none, and writing JSON takes longer than hashing
    return _digest(key, f"{message['role']} {len(content)} {content}{called}")


def _same(value: Any) -> Any:
    """Write equal numbers alike: clients in other languages send 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_same(each) for each in value]
    return {name: _same(each) for name, each in value.items()} if isinstance(value, dict) else value


def _digest(key: bytes, text: str) -> bytes:
    return hashlib.blake2b(key + text.encode(errors="surrogatepass"), digest_size=16).digest()


def length_of(value: Any) -> int:
    """Count the characters of a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + length_of(each) for name, each in value.items())
    return sum(map(length_of, value)) if isinstance(value, list) else 1


def added_to(messages: Sequence[Message], tools: Sequence[Any], before: int) -> dict[str, Any]:
    """Return what a request adds to a conversation of `before` messages, to be recorded with the observation.

    Returns:
        `messages`, the last one without its text, which is the observation, unless it is the assistant's; and `tools`
        if there are any and the conversation begins.
    """
    added = list(messages[before:])
    if added and added[-1]["role"] != "assistant":
        added[-1] = {name: value for name, value in added[-1].items() if name != "content"}
    return {"messages": added, **({"tools": list(tools)} if tools and not before else {})}


def with_text(request: Mapping[str, Any], observation: str) -> list[Message]:
    """Return the messages that `added_to` returned, with the text of the last one."""
    return [{"content": observation, **message} for message in request["messages"]]


def last_message(messages: Sequence[Message]) -> str:
    """Return the text of the last message that is not the assistant's."""
    return next((message["content"] for message in reversed(messages) if message["role"] != "assistant"), "")


def short(value: Any) -> str:
    """Return a value as JSON of at most 80 characters, for errors."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
