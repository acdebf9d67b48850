"""Read requests of OpenAI's chat completions, and write their answers."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.engines.base import Generation
from turnwise.extensions.gateway.call import (
    MAX_CHOICES,
    NEUTRAL,
    Call,
    Reply,
    check_names,
    check_tools,
    read_object,
    sampling,
    schema_of,
    stops,
    whole,
)
from turnwise.extensions.gateway.messages import read_messages
from turnwise.models.spelling import Spell

READ = (
    *("messages", "tools", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
    *("logprobs", "stream", "stream_options", "response_format"),
)
WITHOUT_EFFECT = (
    *("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prediction"),
    *("tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity", "modalities"),
    *("prompt_cache_options", "prompt_cache_retention"),
)
"""Known parameters that the engine does not need, or cannot enforce."""
ONLY = {
    **NEUTRAL,
    "functions": ([], None),
    "function_call": (None, "none", "auto"),
    "audio": (None,),
    "moderation": (None,),
    "web_search_options": (None,),
}
"""Parameters that the engine does not support, with the values that ask for nothing."""


def read(body: bytes) -> Call:
    """Read a request.

    Raises:
        BadRequest: It is not valid, or asks for what the engine does not support.
    """
    data = read_object(body)
    check_names(data, (*READ, *WITHOUT_EFFECT), ONLY)
    options = data.get("stream_options") or {}
    longest = "max_completion_tokens" if data.get("max_completion_tokens") is not None else "max_tokens"
    return Call(
        messages=read_messages(data.get("messages")),
        tools=check_tools(data.get("tools") or []) if data.get("tool_choice") != "none" else [],
        n=whole(data, "n", 1, MAX_CHOICES) or 1,
        max_tokens=whole(data, longest, 1, 2**31),
        **sampling(data),
        seed=whole(data, "seed", -(2**63), 2**63 - 1),
        stop=stops(data, "stop"),
        schema=schema_of(data.get("response_format"), "response_format"),
        logprobs=bool(data.get("logprobs")),
        stream=bool(data.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def write(call: Call, replies: Sequence[Reply], prompt_tokens: int, *, model: str, spell: Spell) -> dict[str, Any]:
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
                    **({"reasoning_content": reply.reasoning} if reply.reasoning else {}),
                    **({"tool_calls": reply.calls} if reply.calls else {}),
                },
                "logprobs": _logprobs(reply.generation, spell) if call.logprobs else None,
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


def _logprobs(generation: Generation, spell: Spell) -> dict[str, Any]:
    spelled = map(spell, generation.token_ids)
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(own), "top_logprobs": []}
            for (text, own), logprob in zip(spelled, generation.logprobs, strict=True)
        ],
        "refusal": None,
    }


def events(call: Call, answer: Mapping[str, Any]) -> list[str]:
    """Return the same answer as server-sent events: the whole response, its end, and counts if wanted."""
    base = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = []
    for choice in answer["choices"]:
        message = choice["message"]
        delta = {"role": "assistant", "content": message["content"] or ""}
        if "reasoning_content" in message:
            delta["reasoning_content"] = message["reasoning_content"]
        if "tool_calls" in message:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
        begin = {"index": choice["index"], "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
        end = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        chunks += [{**base, "choices": [begin]}, {**base, "choices": [end]}]
    if call.usage:
        chunks.append({**base, "choices": [], "usage": answer["usage"]})
    return [f"data: {data}" for data in (*map(json.dumps, chunks), "[DONE]")]
