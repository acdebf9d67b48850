"""Read requests of Anthropic's messages, and write their answers."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.extensions.gateway.call import (
    NEUTRAL,
    Call,
    Reply,
    check_names,
    check_tools,
    read_object,
    sampling,
    stops,
    whole,
)
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message, read_messages, read_text, short
from turnwise.models.spelling import Spell

READ = ("messages", "system", "tools", "max_tokens", "temperature", "top_p", "stop_sequences", "stream")
WITHOUT_EFFECT = ("model", "metadata", "service_tier", "tool_choice", "thinking", "top_k", "cache_control")
"""Known parameters that the engine does not need, or cannot enforce."""
ONLY = {
    **{name: values for name, values in NEUTRAL.items() if name not in WITHOUT_EFFECT},
    "mcp_servers": ([], None),
    "container": (None,),
    "context_management": (None,),
    "output_config": (None, {}),
}
"""Parameters that are not supported, with the values that ask for nothing."""
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: bytes) -> Call:
    """Read a request.

    Raises:
        BadRequest: It is not valid, or asks for what the engine does not support.
    """
    data = read_object(body)
    check_names(data, (*READ, *WITHOUT_EFFECT), ONLY)
    given = data.get("messages")
    if not isinstance(given, list) or not given:
        raise BadRequest("messages: expected a list with at least one message", param="messages")
    system = read_text(_texts(data.get("system")), "system")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for index, message in enumerate(given):
        messages += _messages(message, f"messages[{index}]")
    choice = data.get("tool_choice")
    none = isinstance(choice, dict) and choice.get("type") == "none"
    max_tokens = whole(data, "max_tokens", 1, 2**31)
    if max_tokens is None:
        raise BadRequest("max_tokens: expected a whole number from 1; this API requires it", param="max_tokens")
    return Call(
        messages=read_messages(messages),
        tools=[] if none else _tools(data.get("tools") or []),
        max_tokens=max_tokens,
        **sampling(data),
        stop=stops(data, "stop_sequences"),
        stream=bool(data.get("stream")),
    )


def _texts(content: Any) -> Any:
    """Leave out of text blocks what says how to cache them."""
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": block["text"]} if _is(block, "text") else block for block in content]


def _is(block: Any, kind: str) -> bool:
    return isinstance(block, dict) and block.get("type") == kind and (kind != "text" or "text" in block)


def _messages(message: Any, where: str) -> list[Message]:
    """Turn a message into those of chat completions: tool results get separate messages."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise BadRequest(f"{where}.role={short(role)}: expected user or assistant", param=f"{where}.role")
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    results: list[Message] = []
    texts, calls = [], []
    for index, block in enumerate(blocks):
        place = f"{where}.content[{index}]"
        if role == "assistant" and _is(block, "tool_use"):
            function = {"name": block.get("name"), "arguments": block.get("input", {})}
            calls.append({"id": block.get("id"), "function": function})
        elif role == "user" and _is(block, "tool_result"):
            content = read_text(_texts(block.get("content")), f"{place}.content")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
        elif not (role == "assistant" and (_is(block, "thinking") or _is(block, "redacted_thinking"))):
            texts.append(read_text(_texts([block]), place))
    if role == "assistant":
        return [{"role": role, "content": "".join(texts), "tool_calls": calls}]
    return [*results, *([{"role": role, "content": "".join(texts)}] if texts or not results else [])]


def _tools(tools: Any) -> list[dict[str, Any]]:
    nested = []
    for index, tool in enumerate(tools if isinstance(tools, list) else [None]):
        if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
            where = f"tools[{index}]"
            raise BadRequest(f"{where}: expected a name and an input_schema; other tools run elsewhere", param=where)
        function = {"name": tool.get("name"), "description": tool.get("description")}
        shown = {name: value for name, value in function.items() if value is not None}
        nested.append({"type": "function", "function": {**shown, "parameters": tool.get("input_schema") or {}}})
    return check_tools(nested)


def write(call: Call, replies: Sequence[Reply], prompt_tokens: int, *, model: str, spell: Spell) -> dict[str, Any]:
    """Return the answer to a request as a JSON object."""
    (reply,) = replies
    text = reply.message["content"]
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for each in reply.calls:
        function = each["function"]
        made = {"id": f"toolu_{each['id'].removeprefix('call_')}", "name": function["name"]}
        content.append({"type": "tool_use", **made, "input": json.loads(function["arguments"])})
    stopped = reply.stopped_by is not None and not reply.calls
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "stop_sequence" if stopped else REASONS[reply.finish],
        "stop_sequence": reply.stopped_by if stopped else None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": len(reply.generation.token_ids)},
    }


def events(call: Call, answer: Mapping[str, Any]) -> list[str]:
    """Return the same answer as server-sent events; each block comes as a whole."""
    usage, ended = answer["usage"], {name: answer[name] for name in ("stop_reason", "stop_sequence")}
    begun = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    found: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 0}}}
    ]
    for index, block in enumerate(answer["content"]):
        if block["type"] == "text":
            empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        found += [
            {"type": "content_block_start", "index": index, "content_block": {**block, **empty}},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    found.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}})
    found.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}" for event in found]


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error as Anthropic's API has it."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
