"""Define the internal request of all dialects, and the response to it."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from turnwise.base.errors import did_you_mean
from turnwise.engines.base import Generation
from turnwise.environments.plain import sound
from turnwise.environments.tool_calls import read_json, read_response
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message, read_call, short

MAX_CHOICES, MAX_STOPS, MAX_STOP = 64, 16, 500
MIN_TEMPERATURE, MIN_TOP_P = 1e-5, 1e-6
"""Far smaller values are zero or give infinities in float32, so smaller ones ask for the most likely token."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request for responses."""

    messages: list[Message]  # the conversation, as `read_message` makes it
    # Tools that the model may call, in the form of chat completions
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    n: int = 1  # number of responses
    max_tokens: int | None = None  # maximum response length (tokens); None: the gateway's limit
    temperature: float | None = None  # sampling temperature; None: the gateway's
    top_p: float | None = None  # probability mass to sample from; None: the gateway's
    seed: int | None = None  # seed of the sampling; None: the gateway's
    stop: tuple[str, ...] = ()  # texts that end a response, which leaves them out
    schema: Mapping[str, Any] | None = None  # JSON schema that the response must follow; None: it is free
    logprobs: bool = False  # whether the answer holds log-probabilities
    stream: bool = False  # whether the answer is server-sent events
    usage: bool = False  # whether a stream of chat completions ends with the counts of tokens
    num_instructions: int = 0  # first messages that a conversation continued by its id leaves out
    previous: str | None = None  # id of the answer that the request continues, if it names one
    state_key: str | None = None  # name of the state; None: as the gateway names it


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """One response as the dialects have it."""

    message: Message  # the assistant's message, in the form of `read_message`
    calls: list[dict[str, Any]]  # its tool calls with their ids, as chat completions have them
    generation: Generation  # what the engine sampled
    finish: str  # "stop", "length" or "tool_calls"
    valid: bool = True  # whether its tool calls are well-formed
    stopped_by: str | None = None  # the stop text that ended it, if any
    reasoning: str = ""  # its reasoning before it speaks; not part of any message


def make_reply(generation: Generation, text: str, call: Call, *, opened: bool = False, name: bytes = b"") -> Reply:
    """Cut off a response's stop text, remove its reasoning, and read its tool calls.

    Args:
        generation: What the engine sampled.
        text: Its text, as it was decoded: a stop text may begin or end with white space.
        call: The request.
        opened: Whether the prompt began the reasoning.
        name: Names the response within its trajectory. The ids of its calls depend on it and the text alone, since some
            agents write ids into their prompts, which a replay must reproduce.
    """
    ends = {stop: text.find(stop) for stop in call.stop if stop in text}
    stopped_by = min(ends, key=lambda stop: ends[stop]) if ends else None
    text = (text[: ends[stopped_by]] if stopped_by is not None else text).strip()
    read = read_response(text, opened=opened)
    valid = not call.tools or not any(one.malformed for one in read.calls)
    # a text without reasoning is passed on unchanged
    plain = read.text if read.reasoning else text
    content, found = (read.content, read.calls) if call.tools and valid else (plain, [])
    message: Message = {"role": "assistant", "content": content}
    functions = [{"name": one.name, "arguments": one.arguments} for one in found]
    if found:
        message["tool_calls"] = [read_call({"function": function}, "") for function in functions]
    calls = [
        {"id": f"call_{_call_id(name, text, place)}", "type": "function", "function": each}
        for place, each in enumerate(functions)
    ]
    finish = "tool_calls" if calls else "length" if generation.truncated else "stop"
    return Reply(message, calls, generation, finish, valid, stopped_by, read.reasoning)


def _call_id(name: bytes, text: str, place: int) -> str:
    return hashlib.blake2b(name + f" {place} {text}".encode(errors="surrogatepass"), digest_size=8).hexdigest()


def read_object(body: bytes) -> dict[str, Any]:
    """Read the body of a request.

    Raises:
        BadRequest: It is not a JSON object, or nested too deeply.
    """
    try:
        data = read_json(body)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    # else no text can need it: UTF-16 and UTF-32 have zeros
    return sound(data) if b"\\u" in body or b"\xed" in body or b"\0" in body else data


def check_names(data: Mapping[str, Any], read: Iterable[str], only: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse parameters that are unknown, or ask for what the engine does not support.

    Args:
        data: The request.
        read: Names of parameters that are read, or known to have no effect.
        only: Values that change nothing, by the names of unsupported parameters.

    Raises:
        BadRequest: There is such a parameter.
    """
    known = {*read, *only}
    for name, value in data.items():
        if name in only and value not in only[name]:
            raise BadRequest(f"{name}={short(value)} is not supported; leave it out", param=name)
        if name not in known:
            shown = name[:80]  # a name may have megabytes
            raise BadRequest(
                f"unknown parameter {shown!r}.{did_you_mean(shown, known)}", param=shown, code="unknown_parameter"
            )


def number(data: Mapping[str, Any], name: str, low: float, high: float, *, above: bool = False) -> float | None:
    """Read a number from `low` to `high`, or above `low`; None if it is absent.

    Raises:
        BadRequest: It is something else.
    """
    return _number(data, name, low, high, kinds=(int, float), what="a number", above=above)


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "length_penalty": (1, None),
    "min_p": (0, None),
    "top_k": (-1, 0, None),
    "best_of": (1, None),
    "use_beam_search": (False, None),
    "ignore_eos": (False, None),
    "min_tokens": (0, None),
    "logit_bias": ({}, None),
    "top_logprobs": (0, None),
}
"""Sampling settings that no engine here has, with the values that leave the distribution unchanged."""


class SamplingOptions(TypedDict):
    """A request's sampling settings."""

    temperature: float | None
    top_p: float | None


def sampling(data: Mapping[str, Any]) -> SamplingOptions:
    """Read `temperature` and `top_p`, each None if it is absent.

    Raises:
        BadRequest: One is not a number in its range.
    """
    temperature, top_p = number(data, "temperature", 0, 100), number(data, "top_p", 0, 1, above=True)
    return {
        "temperature": 0.0 if temperature is not None and temperature < MIN_TEMPERATURE else temperature,
        "top_p": None if top_p is None else max(top_p, MIN_TOP_P),
    }


def whole(data: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """Read a whole number; see `number`."""
    return _number(data, name, low, high, kinds=(int,), what="a whole number", above=False)


def _number(
    data: Mapping[str, Any], name: str, low: float, high: float, *, kinds: tuple[type, ...], what: str, above: bool
) -> Any:
    value = data.get(name)
    if value is None:
        return None
    # the comparisons refuse nan and infinities; math.isfinite fails for whole numbers that no float holds
    right = isinstance(value, kinds) and not isinstance(value, bool)
    if not right or not low <= value <= high or (above and value == low):
        bounds = f"above {low:g}, at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise BadRequest(f"{name}={short(value)}: expected {what} {bounds}", param=name)
    return value


def stops(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Read the texts that end a response.

    Raises:
        BadRequest: They are not texts, or too many.
    """
    stop = data.get(name) or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not (isinstance(stop, list | tuple) and all(isinstance(text, str) and text for text in stop)):
        raise BadRequest(f"{name}={short(stop)}: expected a text or a list of texts", param=name)
    if len(stop) > MAX_STOPS:
        raise BadRequest(f"{name} has {len(stop)} texts, expected at most {MAX_STOPS}", param=name)
    if (longest := max(map(len, stop), default=0)) > MAX_STOP:
        raise BadRequest(f"{name} has a text of {longest} characters, expected at most {MAX_STOP}", param=name)
    return tuple(stop)


def schema_of(format_: Any, name: str) -> Mapping[str, Any] | None:
    """Read the JSON schema of a response's format: `text`, `json_object` or `json_schema`.

    Raises:
        BadRequest: It is none of these.
    """
    kind = format_.get("type") if isinstance(format_, dict) else None
    if format_ is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    inner = format_.get("json_schema", format_) if isinstance(format_, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise BadRequest(f"{name}={short(format_)}: expected the type text, json_object or json_schema", param=name)
    return schema


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """Validate tools in the form of chat completions.

    Raises:
        BadRequest: One is not a function with a name.
    """
    for index, tool in enumerate(tools if isinstance(tools, list) else [None]):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            where = f"tools[{index}]"
            raise BadRequest(f'{where}: expected {{"type": "function", "function": {{"name": ...}}}}', param=where)
    return tools
