"""Read requests of OpenAI's Responses API, and write their answers."""

import json
import secrets
import time
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
    schema_of,
    whole,
)
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message, read_messages, read_text, short
from turnwise.models.spelling import Spell

READ = (
    *("input", "instructions", "previous_response_id", "tools", "max_output_tokens", "temperature", "top_p", "stream"),
    "text",
)
WITHOUT_EFFECT = (
    *("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "include"),
    *("tool_choice", "parallel_tool_calls", "reasoning", "truncation", "max_tool_calls", "stream_options"),
    *("prompt_cache_options", "prompt_cache_retention"),
)
"""Known parameters that the engine does not need, or cannot enforce."""
ONLY = {
    **NEUTRAL,
    "background": (False, None),
    **dict.fromkeys(("conversation", "prompt", "access_programs", "background_options", "context_management"), (None,)),
    **dict.fromkeys(("image", "moderation"), (None,)),
}
"""Parameters that are not supported, with the values that ask for nothing."""
TEXTS = ("input_text", "output_text", "text")


def read(body: bytes, remembered: Mapping[str, list[Message]]) -> Call:
    """Read a request.

    Args:
        body: The request.
        remembered: Conversations that it may continue, by the id of their last answer.

    Raises:
        BadRequest: It is not valid, or asks for what the engine does not support.
    """
    data = read_object(body)
    check_names(data, (*READ, *WITHOUT_EFFECT), ONLY)
    previous, instructions, text = data.get("previous_response_id"), data.get("instructions"), data.get("text") or {}
    if previous is not None and not (isinstance(previous, str) and previous in remembered):
        raise BadRequest(
            f"previous_response_id={short(previous)}: this session has no such response",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    begin = [{"role": "system", "content": read_text(instructions, "instructions")}] if instructions else []
    earlier = remembered[previous] if previous is not None else []
    return Call(
        messages=read_messages([*begin, *earlier, *_messages(data.get("input"))]),
        tools=_tools(data.get("tools") or []) if data.get("tool_choice") != "none" else [],
        max_tokens=whole(data, "max_output_tokens", 1, 2**31),
        **sampling(data),
        schema=schema_of(text.get("format") if isinstance(text, dict) else text, "text.format"),
        stream=bool(data.get("stream")),
        num_instructions=len(begin),
        previous=previous,
    )


def _tools(tools: Any) -> list[dict[str, Any]]:
    nested = []
    for index, tool in enumerate(tools if isinstance(tools, list) else [None]):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            where = f"tools[{index}]"
            raise BadRequest(
                f'{where}: expected {{"type": "function", "name": ...}}; other tools run elsewhere', param=where
            )
        function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        nested.append({"type": "function", "function": function})
    return check_tools(nested)


def _messages(given: Any) -> list[Message]:
    """Turn items into messages; what the assistant said and called in a row is one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRequest("input: expected a text or a list of items", param="input")
    messages: list[Message] = []
    for index, item in enumerate(given):
        where = f"input[{index}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call_output":
            content = _text(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "message" and item.get("role") != "assistant":
            messages.append({"role": item.get("role"), "content": _text(item.get("content"), f"{where}.content")})
        elif kind in ("message", "function_call"):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": "", "tool_calls": []})
            if kind == "message":
                messages[-1]["content"] += _text(item.get("content"), f"{where}.content")
            else:
                function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
                messages[-1]["tool_calls"].append({"id": item.get("call_id"), "function": function})
        elif kind != "reasoning":  # the policy reasons in its text
            raise BadRequest(f"{where}.type={short(kind)} is not supported; expected a message or a call", param=where)
    return messages


def _text(content: Any, where: str) -> str:
    if isinstance(content, list):
        content = [
            {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in TEXTS else part
            for part in content
        ]
    return read_text(content, where)


def write(call: Call, replies: Sequence[Reply], prompt_tokens: int, *, model: str, spell: Spell) -> dict[str, Any]:
    """Return the answer to a request as a JSON object."""
    (reply,) = replies
    output: list[dict[str, Any]] = []
    if reply.message["content"] or not reply.calls:
        part = {"type": "output_text", "text": reply.message["content"], "annotations": [], "logprobs": []}
        output.append({"type": "message", "id": _id("msg"), "role": "assistant", "content": [part]})
    for each in reply.calls:
        output.append({"type": "function_call", "id": _id("fc"), "call_id": each["id"], **each["function"]})
    num_tokens = len(reply.generation.token_ids)
    cut = reply.finish == "length"
    begin = call.messages[: call.num_instructions]
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": begin[0]["content"] if begin else None,
        "max_output_tokens": call.max_tokens,
        "model": model,
        "output": [{**item, "status": "completed"} for item in output],
        "parallel_tool_calls": True,
        "previous_response_id": call.previous,
        "temperature": call.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [{"type": "function", "strict": False, "parameters": None, **each["function"]} for each in call.tools],
        "top_p": call.top_p,
        "truncation": "disabled",
        "metadata": {},
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": num_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + num_tokens,
        },
    }


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def events(call: Call, answer: Mapping[str, Any]) -> list[str]:
    """Return the same answer as server-sent events; each item comes as a whole."""
    begun = {**answer, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    found: list[dict[str, Any]] = [
        {"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")
    ]
    for place, item in enumerate(answer["output"]):
        at = {"item_id": item["id"], "output_index": place}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
        started = {**item, **empty, "status": "in_progress"}
        found.append({"type": "response.output_item.added", "output_index": place, "item": started})
        if item["type"] == "message":
            (part,) = item["content"]
            at["content_index"] = 0
            blank = {**part, "text": ""}
            found += [
                {"type": "response.content_part.added", **at, "part": blank},
                {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **at, "part": part},
            ]
        else:
            name, arguments = item["name"], item["arguments"]
            found += [
                {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
                {"type": "response.function_call_arguments.done", **at, "name": name, "arguments": arguments},
            ]
        found.append({"type": "response.output_item.done", "output_index": place, "item": item})
    found.append({"type": f"response.{answer['status']}", "response": answer})
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}"
        for number, event in enumerate(found)
    ]
