"""Read requests of OpenAI's chat completions, and write their answers."""

import contextlib
import dataclasses
import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.environments.adapters.tool_calls import read_tool_calls
from turnwise.environments.base import sound_text
from turnwise.errors import did_you_mean
from turnwise.gateway.errors import BadRequest
from turnwise.gateway.messages import Message
from turnwise.rollout.engine import Decode, Generation

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_CHOICES, MAX_STOPS = 64, 16
WITHOUT_EFFECT = frozenset(
    [
        *("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prediction"),
        *("tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity", "modalities", "stream_options"),
    ]
)
"""Known parameters that the engine does not need, or cannot enforce."""
ONLY = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": ({}, None),
    "top_logprobs": (0, None),
    "response_format": ({"type": "text"}, None),
    "functions": ([], None),
    "function_call": (None, "none", "auto"),
    "audio": (None,),
}
"""Parameters that the engine does not support, with the values that ask for nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request for responses.

    Attributes:
        messages: The conversation.
        tools: Tools that the model may call.
        n: Number of responses.
        max_tokens: Longest response (tokens); None: the gateway's limit.
        temperature: Sampling temperature; None: the gateway's.
        top_p: Probability mass to sample from; None: the gateway's.
        seed: Seed of the sampling; None: the gateway's.
        stop: Texts that end a response, which leaves them out.
        logprobs: Whether the answer holds log-probabilities.
        stream: Whether the answer is server-sent events.
        usage: Whether a stream ends with the counts of tokens.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    n: int
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    seed: int | None
    stop: tuple[str, ...]
    logprobs: bool
    stream: bool
    usage: bool


def read_call(body: bytes) -> Call:
    """Read a request.

    Raises:
        BadRequest: It is not valid, or asks for what the engine does not support.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not valid JSON") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    fields = {field.name for field in dataclasses.fields(Call)} - {"usage"} | {"max_completion_tokens"}
    for name, value in data.items():
        if name in ONLY and value not in ONLY[name]:
            raise BadRequest(f"{name}={_short(value)} is not supported; leave it out", param=name)
        if name not in fields | WITHOUT_EFFECT | ONLY.keys():
            known = did_you_mean(name, fields | WITHOUT_EFFECT | ONLY.keys())
            raise BadRequest(f"unknown parameter {name!r}.{known}", param=name, code="unknown_parameter")
    options = data.get("stream_options") or {}
    longest = "max_completion_tokens" if data.get("max_completion_tokens") is not None else "max_tokens"
    stop = data.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not (isinstance(stop, list | tuple) and all(isinstance(text, str) and text for text in stop)):
        raise BadRequest(f"stop={_short(stop)}: expected a text or a list of texts", param="stop")
    if len(stop) > MAX_STOPS:
        raise BadRequest(f"stop has {len(stop)} texts, expected at most {MAX_STOPS}", param="stop")
    n = _number(data, "n", 1, MAX_CHOICES, whole=True)
    return Call(
        messages=read_messages(data.get("messages")),
        tools=_tools(data.get("tools") or []) if data.get("tool_choice") != "none" else [],
        n=1 if n is None else int(n),
        max_tokens=_whole(_number(data, longest, 1, 2**31, whole=True)),
        temperature=_number(data, "temperature", 0, 100),
        top_p=_number(data, "top_p", 0, 1, above=True),
        seed=_whole(_number(data, "seed", -(2**63), 2**63 - 1, whole=True)),
        stop=tuple(stop),
        logprobs=bool(data.get("logprobs")),
        stream=bool(data.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _number(
    data: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False, above: bool = False
) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not right or not low <= value <= high or (above and value == low):
        kind = "a whole number" if whole else "a number"
        bounds = f"above {low:g}, at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise BadRequest(f"{name}={_short(value)}: expected {kind} {bounds}", param=name)
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _tools(value: Any) -> list[dict[str, Any]]:
    for number, tool in enumerate(value if isinstance(value, list) else [None]):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            where = f"tools[{number}]"
            raise BadRequest(f'{where}: expected {{"type": "function", "function": {{"name": ...}}}}', param=where)
    return value


def read_messages(value: Any) -> list[Message]:
    """Validate messages, and give them one form: `content` is text, arguments of tool calls are objects.

    Raises:
        BadRequest: One is not valid, or the last is the assistant's.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest("messages: expected a list with at least one message", param="messages")
    messages = [_message(message, f"messages[{number}]") for number, message in enumerate(value)]
    if messages[-1]["role"] == "assistant":
        raise BadRequest("the last message is the assistant's; a response cannot be continued", param="messages")
    return messages


def _message(message: Any, where: str) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise BadRequest(f"{where}.role={_short(role)}: expected one of {', '.join(ROLES)}", param=f"{where}.role")
    read: Message = {
        "role": "system" if role == "developer" else role,
        "content": _text(message.get("content"), f"{where}.content"),
    }
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRequest(f"{where}.tool_calls: expected a list", param=f"{where}.tool_calls")
    if calls:
        read["tool_calls"] = [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return read


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return sound_text(content)
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRequest(f'{where}[{number}]: expected text, or {{"type": "text", "text": ...}}', param=where)
    return sound_text("".join(part["text"] for part in content))


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{where}.function: expected a name and arguments", param=where)
    arguments = function.get("arguments", {})
    with contextlib.suppress(ValueError, RecursionError):  # a harness may pass on what a model wrote wrongly
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"function": {"name": function["name"], "arguments": arguments}}


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """One response as the API has it.

    Attributes:
        message: The assistant's message, in the form of `read_messages`.
        calls: Its tool calls with their ids, as the answer holds them.
        generation: What the engine sampled.
        finish: "stop", "length" or "tool_calls".
        valid: Whether its tool calls are well-formed.
    """

    message: Message
    calls: list[dict[str, Any]]
    generation: Generation
    finish: str
    valid: bool = True


def make_reply(generation: Generation, text: str, call: Call) -> Reply:
    """Make the answer of a response: cut the stop text, and read the tool calls.

    Args:
        generation: What the engine sampled.
        text: Its text.
        call: The request.
    """
    ends = [text.find(stop) for stop in call.stop if stop in text]
    text = text[: min(ends)] if ends else text
    content, found = read_tool_calls(text) if call.tools else (text, [])
    valid = not any(one.malformed for one in found)
    content, found = (content, found) if valid else (text, [])
    message: Message = {"role": "assistant", "content": content}
    functions = [{"name": one.name, "arguments": one.arguments} for one in found]
    if found:
        message["tool_calls"] = [_call({"function": function}, "") for function in functions]
    calls = [{"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": each} for each in functions]
    finish = "tool_calls" if calls else "length" if generation.truncated else "stop"
    return Reply(message, calls, generation, finish, valid)


def completion(
    call: Call, replies: Sequence[Reply], prompt_tokens: int, *, model: str, decode: Decode
) -> dict[str, Any]:
    """Return the answer to a request as a JSON object."""
    num_tokens = sum(len(reply.generation.token_ids) for reply in replies)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": reply.message["content"] or (None if reply.calls else ""),
                    "refusal": None,
                    **({"tool_calls": reply.calls} if reply.calls else {}),
                },
                "logprobs": _logprobs(reply.generation, decode) if call.logprobs else None,
                "finish_reason": reply.finish,
            }
            for index, reply in enumerate(replies)
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": prompt_tokens + num_tokens,
        },
    }


def _logprobs(generation: Generation, decode: Decode) -> dict[str, Any]:
    texts = [decode([token]) for token in generation.token_ids]
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, generation.logprobs, strict=True)
        ],
        "refusal": None,
    }


def as_events(answer: Mapping[str, Any], *, usage: bool) -> list[str]:
    """Return the same answer as the data of server-sent events: the whole response, its end, and counts if wanted."""
    base = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = []
    for choice in answer["choices"]:
        message = choice["message"]
        delta = {"role": "assistant", "content": message["content"] or ""}
        if "tool_calls" in message:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
        begin = {"index": choice["index"], "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
        end = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        chunks += [{**base, "choices": [begin]}, {**base, "choices": [end]}]
    if usage:
        chunks.append({**base, "choices": [], "usage": answer["usage"]})
    return [*map(json.dumps, chunks), "[DONE]"]
