"""Read messages of chat completions, Anthropic, the Responses API and OpenTelemetry into one form.

A message has `role`, `content` (text), and perhaps `tool_calls` with an `id` and a `function`, `reasoning_content`,
`tool_call_id`, and `extra`, what else its log says about it.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from turnwise.base.errors import DataError
from turnwise.environments.plain import sound_text
from turnwise.environments.tool_calls import read_response
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import ROLES, Message, read_call, short
from turnwise.integrations.logs.logged import check
from turnwise.integrations.logs.source import Source

ALSO = {"developer": "system", "function": "tool", "model": "assistant", "ai": "assistant", "human": "user"}
"""Other names of roles."""
TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text")
THOUGHTS = ("reasoning", "thinking", "redacted_thinking", "reasoning.text", "reasoning.summary")
CALLS = ("tool_use", "tool_call", "function_call", "server_tool_use", "mcp_tool_use", "custom_tool_call")
ANSWERS = ("tool_result", "tool_call_response", "function_call_output", "custom_tool_call_output")

NO_ARGUMENTS = ("type", "id", "call_id", "status", "name")
"""Keys of other calls that are not their arguments; the server may add some of them."""


class _Given(BaseModel):
    role: Any = None
    content: Any = None
    parts: list[Any] | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None
    reasoning_details: list[Any] | None = None
    audio: dict[str, Any] | None = None
    tool_call_id: str | None = None


class _Part(BaseModel):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    id: str | None = None
    call_id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None


def read_history(given: Any, where: str, source: Source) -> list[Message]:
    """Read a list of messages.

    Args:
        given: The messages, as the log has them.
        where: Their place, for errors.
        source: The log; it counts what is not kept.

    Raises:
        DataError: It is not such a list.
    """
    if not isinstance(given, list):
        raise DataError(f"{where}: expected a list of messages, got {type(given).__name__}")
    return [
        read for number, message in enumerate(given) for read in read_one(message, where, f"messages[{number}]", source)
    ]


def read_one(message: Any, where: str, name: str, source: Source) -> list[Message]:
    """Read one message; tool results in it become separate messages before it.

    Raises:
        DataError: It is not a message.
    """
    given = check(_Given, message, f"{where}: {name}")
    role = ALSO.get(given.role, given.role) if isinstance(given.role, str) else given.role
    if role not in ROLES:
        raise DataError(f"{where}: {name}.role={short(given.role)}: expected one of {', '.join(ROLES)}")
    content = given.content if given.parts is None else given.parts
    parts = content if isinstance(content, list) else [] if content is None else [content]
    texts: list[str] = []
    thoughts = [*map(_thought, (given.reasoning_content, given.reasoning, given.thinking))]
    if not any(thoughts):
        thoughts = [*map(_thought, given.reasoning_details or ())]
    calls: list[dict[str, Any]] = []
    answers: list[Message] = []
    for number, each in enumerate(parts):
        place = f"{where}: {name}.{'content' if given.parts is None else 'parts'}[{number}]"
        if isinstance(each, str):
            texts.append(each)
            continue
        if not isinstance(each, dict):
            raise DataError(
                f"{place[:-3] if content is each else place} is {short(each)}, expected a text or an object"
            )
        part = check(_Part, each, place)
        if part.type in TEXTS:
            given_texts = (part.text, part.refusal, each.get("content"), each.get("value"))
            said = next((text for text in given_texts if text is not None), None)
            if said is None and len(each) > 1:
                said = _mark(each, source)
            texts.append(said if isinstance(said, str) else short(said) if said is not None else "")
        elif part.type in THOUGHTS:
            thoughts.append(_thought(each))
            if not thoughts[-1] and (each.get("encrypted_content") or each.get("data")):
                source.lack("pieces of reasoning that are encrypted")
        elif part.type in CALLS or (part.call_id and part.type.endswith("_call")):
            tool = part.name
            arguments = each.get("arguments", each.get("input"))
            if part.type not in CALLS:  # of a tool that the API knows, such as `computer_call`
                tool = tool or part.type
                arguments = {key: value for key, value in each.items() if key not in NO_ARGUMENTS and value}
            call = {"name": tool, "arguments": arguments, "id": part.call_id or part.id}
            calls.append(_call(each["value"] if tool is None and "value" in each else call, place))
        elif is_answer(part.type):
            answer = next(
                (
                    each[key]
                    for key in ("response", "result", "output", "content", "value")
                    if each.get(key) is not None
                ),
                "",
            )
            identity = part.tool_use_id or part.call_id or part.id
            answers.append(_answer(_plain(answer, place, source), identity))
        else:  # such as a compaction of Anthropic, whose content the model wrote
            said = next((each[key] for key in ("text", "content") if isinstance(each.get(key), str)), None)
            texts.append(said if said is not None else _mark(each, source))
    for number, call in enumerate(given.tool_calls or ()):
        calls.append(_call(call, f"{where}: {name}.tool_calls[{number}]"))
    if given.function_call:
        calls.append(_call(given.function_call, f"{where}: {name}.function_call"))
    if given.refusal and not any(texts):
        texts.append(given.refusal)
    if given.audio and isinstance(said := given.audio.get("transcript"), str) and not any(texts):
        texts.append(said)
    if answers and not (texts or calls or any(thoughts)):
        return answers
    read: Message = {"role": "system" if role == "developer" else role, "content": sound_text("".join(texts))}
    if calls:
        read["tool_calls"] = calls
    if thought := "\n".join(filter(None, thoughts)):
        read["reasoning_content"] = thought
    if role == "tool":
        read |= {"tool_call_id": given.tool_call_id} if given.tool_call_id else {}
    return [*answers, read]


def is_answer(kind: Any) -> bool:
    """Return whether a part or an item of this type is what a tool answered."""
    return isinstance(kind, str) and (kind in ANSWERS or kind.endswith("_call_output"))


def read_items(items: Any, where: str, source: Source) -> list[Message]:
    """Read items of the Responses API; those that the model gave between two inputs are one message of it."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise DataError(f"{where} is {short(items)}, expected a list")
    joined: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise DataError(f"{where}[{number}] is {short(item)}, expected an object")
        kind = item.get("type") or "message"
        if is_answer(kind):
            joined.append({"role": "tool", "parts": [item]})
        elif kind == "message" and item.get("role") not in ("assistant", None):
            joined.append({"role": item["role"], "content": item.get("content")})
        else:
            if not joined or joined[-1]["role"] != "assistant" or "extra" not in joined[-1]:
                joined.append({"role": "assistant", "parts": [], "extra": []})
            content = item.get("content") if kind == "message" else [item]
            joined[-1]["parts"] += content if isinstance(content, list) else [content or ""]
            joined[-1]["extra"].append(item)
    messages: list[Message] = []
    for number, each in enumerate(joined):
        read = read_one(each, where, f"[{number}]", source)
        if "extra" in each:
            read[-1]["extra"] = {"items": each["extra"]}
        messages += read
    return messages


def read_tools(tools: Any, where: str, name: str = "tools") -> list[dict[str, Any]]:
    """Return tools in the form of chat completions; other APIs write them flat, or their schema as `input_schema`.

    Data sets have the list, or each tool, as its JSON.

    Raises:
        DataError: It is not a list of objects.
    """
    tools = _json(tools)
    if not isinstance(tools or [], list):
        raise DataError(f"{where}: {name} is {short(tools)}, expected a list")
    return [_tool(tool, f"{where}: {name}[{number}]") for number, tool in enumerate(tools or ())]


def _json(value: Any) -> Any:
    """Return what a text is the JSON of; cells of data sets have one type."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value) if isinstance(value, str) else value
    return value


def _tool(tool: Any, where: str) -> dict[str, Any]:
    tool = _json(tool)
    if not isinstance(tool, dict):
        raise DataError(f"{where} is {short(tool)}, expected an object")
    if "function" in tool or "name" not in tool:
        return tool
    named = {
        key: value for key, value in tool.items() if key not in ("type", "strict", "input_schema", "cache_control")
    }
    schema = {"parameters": tool["input_schema"]} if "input_schema" in tool else {}
    return {"type": "function", "function": {**named, **schema}}


def _call(call: Any, where: str) -> dict[str, Any]:
    """Read a call; versions of formats write it nested, flat, or as its JSON."""
    call = _json(call)
    if not isinstance(call, dict):
        raise DataError(f"{where} is {short(call)}, expected an object")
    function = call.get("function", call.get("custom", call))
    if isinstance(function, str):  # Inspect
        function = {"name": function, "arguments": call.get("arguments")}
    if isinstance(function, dict) and "input" in function and "arguments" not in function:
        function = {**function, "arguments": function["input"]}
    try:
        read = read_call({"function": function}, where)
    except BadRequest as error:
        raise DataError(error.message) from None
    return {"id": call["id"], **read} if isinstance(call.get("id"), str) else read


def _answer(content: str, identity: str | None) -> Message:
    return {"role": "tool", "content": content, **({"tool_call_id": identity} if identity else {})}


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and ("type" in value or value.keys() == {"text"})


def _plain(answer: Any, where: str, source: Source) -> str:
    """Return what a tool answered as a text."""
    if isinstance(answer, list) and answer and all(map(_is_part, answer)):
        return "".join(read_one({"role": "user", "content": answer}, where, "content", source)[-1]["content"])
    return answer if isinstance(answer, str) else json.dumps(answer)


def _thought(given: Any) -> str:
    """Return reasoning as a text; what is encrypted stays out."""
    if isinstance(given, dict):
        keys = ("thinking", "reasoning", "text", "content", "summary", "value")
        return next(filter(None, (_thought(given.get(key)) for key in keys)), "")
    if isinstance(given, list):
        return "\n".join(filter(None, map(_thought, given)))
    return given if isinstance(given, str) else ""


def _mark(part: dict[str, Any], source: Source) -> str:
    """Return what stands for a part that is not text: equal for equal ones, so that states can be told apart."""
    kind = str(part["type"])[:40]
    source.lack(f"parts of the type {kind}: a mark with their checksum stands in their place")
    digest = hashlib.blake2b(json.dumps(part, sort_keys=True).encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"[{kind} {digest}]"


def text_of(message: Message) -> str:
    """Return what the model said, with reasoning and tool calls in the text form of most chat models."""
    calls = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in message.get("tool_calls", ())]
    thought = message.get("reasoning_content")
    said = "\n".join(filter(None, (message["content"], *calls)))
    return f"<think>\n{thought}\n</think>\n\n{said}" if thought else said


def message_of(text: str, name: str) -> Message:
    """Return a response as a message, the inverse of `text_of`; calls that are not valid stay in its text.

    Args:
        text: The response.
        name: Begins the ids of its calls.
    """
    read = read_response(text)
    if any(call.malformed for call in read.calls):
        return {"role": "assistant", "content": text}
    message: Message = {"role": "assistant", "content": read.content}
    if read.calls:
        message["tool_calls"] = [
            {"id": f"{name}-{number}", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for number, call in enumerate(read.calls)
        ]
    if read.reasoning:
        message["reasoning_content"] = read.reasoning
    return message


def with_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages with an id for each call, and for each answer of a tool that of its call; given ones stay."""
    made = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            waiting = [call.get("id") or f"call-{number}-{place}" for place, call in enumerate(calls)]
            named = [{**call, "id": identity} for identity, call in zip(waiting, calls, strict=True)]
            message = {**message, "tool_calls": named}
        elif message["role"] == "tool":
            identity = message.get("tool_call_id") or (waiting[0] if waiting else f"call-{number}")
            waiting = [each for each in waiting if each != identity]
            message = {**message, "tool_call_id": identity}
        made.append(message)
    return made


def as_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat completions write them: arguments of calls as JSON, calls and answers with their ids."""
    made = []
    for message in with_ids(messages):
        chat = {key: value for key, value in message.items() if key != "extra"}
        if calls := message.get("tool_calls"):
            chat["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": _written(call["function"])} for call in calls
            ]
        made.append(chat)
    return made


def _written(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
