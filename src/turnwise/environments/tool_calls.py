"""Parse responses in the text format of most chat models.

Reasoning is between `<think>` and `</think>`, a call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from typing import Any

THINK, THOUGHT = "<think>", "</think>"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
MARKUP = (THINK, THOUGHT, _CALL, _CALLED)
"""What responses are written in."""
_MARK = re.compile(f"{THINK}|{THOUGHT}|{_CALL}")
_END = re.compile(rf"\s*(?:{_CALLED}|\Z)")
_BLANK = re.compile(r"\s*")
_MAX_DEPTH = 100


def tagged(text: str, name: str, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where the content of each `<name>...</name>` begins and ends; one that is not closed has none.

    As `re.finditer("<name>(.*?)</name>", text)`, which takes quadratic time where many are not closed.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    while (start := text.find(opening, begin)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        yield start + len(opening), end
        begin = end + len(closing)


def last_tagged(text: str, name: str) -> str | None:
    """Return the content of the last `<name>...</name>` without white space around it, None if there is none."""
    content = None
    for begin, end in tagged(text, name):
        content = text[begin:end].strip()
    return content


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedCall:
    """One tool call."""

    name: str  # name of the tool; empty if the call is malformed
    arguments: str  # arguments as JSON; for a malformed call, its raw text, for error messages
    malformed: bool = False  # whether the call lacks a name or an object of arguments


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The parts of a response."""

    reasoning: str  # what it thinks, between its tags. Nothing in it is a call or an action.
    text: str  # what it says, with its tool calls
    content: str  # what it says without them
    calls: list[ParsedCall]  # its tool calls


def read_response(response: str, *, opened: bool = False) -> ParsedResponse:
    """Split a response into reasoning, text and tool calls; the last call may lack its closing tag.

    The JSON of a call decides where it ends, so that its texts may hold any tag. A closing tag of reasoning without an
    opening one ends reasoning that the prompt began.

    Args:
        response: The response.
        opened: Whether the prompt began the reasoning. Then a response without its closing tag is only reasoning.
    """
    thought: list[tuple[int, int]] = []
    said: list[tuple[int, int, bool]] = []  # from, to, and whether it is a call
    calls: list[ParsedCall] = []
    place = 0
    if opened and not response.lstrip().startswith(THINK):
        place = _after(response, THOUGHT, 0)
        thought.append((0, place))
    while mark := _MARK.search(response, place):
        if mark[0] == THOUGHT:
            thought, said, calls = [(0, mark.start())], [], []
            place = mark.end()
            continue
        said.append((place, mark.start(), False))
        if mark[0] == THINK:
            place = _after(response, THOUGHT, mark.end())
            thought.append((mark.end(), place))
        else:
            call, place = _read_call(response, mark.end())
            calls.append(call)
            said.append((mark.start(), place, True))
    said.append((place, len(response), False))
    return ParsedResponse(
        "".join(response[begin:end].removesuffix(THOUGHT) for begin, end in thought).strip(),
        "".join(response[begin:end] for begin, end, _ in said).strip(),
        "".join(response[begin:end] for begin, end, is_call in said if not is_call).strip(),
        calls,
    )


def read_tool_calls(response: str) -> tuple[str, list[ParsedCall]]:
    """Split a response into its text and its tool calls, without its reasoning; see `read_response`."""
    read = read_response(response)
    return read.content, read.calls


def without_reasoning(response: str, *, opened: bool = False) -> str:
    """Return the unchanged text of a response after its reasoning; see `read_response`."""
    if not opened and THINK not in response and THOUGHT not in response:
        return response
    return read_response(response, opened=opened).text


def _after(text: str, tag: str, begin: int) -> int:
    """Return the position after the next tag; the end of the text if there is none."""
    place = text.find(tag, begin)
    return len(text) if place < 0 else place + len(tag)


def _read_call(response: str, begin: int) -> tuple[ParsedCall, int]:
    """Read the call that begins at a position, after its tag; also return the position after it."""
    start = _BLANK.match(response, begin).end()  # pyright: ignore[reportOptionalMemberAccess] (it may be empty)
    try:
        value, end = _DECODER.raw_decode(response, start)
        if found := _END.match(response, end):
            return _as_call(_checked_depth(value), response[start:end]), found.end()
    except (ValueError, RecursionError):
        pass
    end = _after(response, _CALLED, begin)
    thought = response.find(THOUGHT, begin, end)  # a draft that breaks off
    end = end if thought < 0 else thought
    return ParsedCall("", response[begin:end].removesuffix(_CALLED).strip(), malformed=True), end


def read_json(text: str | bytes) -> Any:
    """Parse JSON that a policy or a caller wrote.

    Raises:
        ValueError: It is not valid JSON, such as NaN, or nested too deeply to be written again.
    """
    try:
        return _checked_depth(json.loads(text, **_STRICT))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _checked_depth(value: Any) -> Any:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"the number {text[:20]} is out of range")
    return value


_STRICT: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _finite}
_DECODER = json.JSONDecoder(**_STRICT)


def _as_call(call: Any, text: str) -> ParsedCall:
    """Return a call; malformed without a name, or with other fields but without an object of arguments."""
    if isinstance(call, dict) and isinstance(call.get("name"), str) and call["name"]:
        arguments: Any = call.get("arguments", {} if len(call) == 1 else None)
        if isinstance(arguments, dict):
            return ParsedCall(call["name"], json.dumps(arguments, ensure_ascii=False))
    return ParsedCall("", text, malformed=True)


def describe_tools(tools: list[dict[str, Any]]) -> str:
    """Describe the tools, one JSON schema per line, and how a response calls them."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    how = 'Call a tool with <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. Tools:'
    return "\n".join([how, *lines])
