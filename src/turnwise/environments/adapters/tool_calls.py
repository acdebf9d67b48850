"""Calls of tools as text, in the form that most chat models learn: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

import dataclasses
import json
import re
from typing import Any

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_MAX_DEPTH = 100


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: Of the tool; empty where the call is malformed.
        arguments: As JSON; of a malformed call its text as it stands, so that who runs the tools can say what is wrong.
        malformed: No object with a name and an object of arguments.
    """

    name: str
    arguments: str
    malformed: bool = False


def read_tool_calls(response: str) -> tuple[str, list[ToolCall]]:
    """Split a response into what is said beside the calls and the calls; a last call may lack its closing tag."""
    return _CALL.sub("", response).strip(), [_read(found.strip()) for found in _CALL.findall(response)]


def read_json(text: str) -> Any:
    """Read JSON that a policy wrote.

    Raises:
        ValueError: It is none, or nested so deeply that it could not be written again.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
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


def _read(text: str) -> ToolCall:
    try:
        call = read_json(text)
    except ValueError:
        return ToolCall("", text, malformed=True)
    arguments: Any = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(arguments, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return ToolCall("", text, malformed=True)
    return ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False))


def describe_tools(tools: list[dict[str, Any]]) -> str:
    """Say which tools there are, one JSON schema a line, and how a response calls them."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    how = 'Call a tool with <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. Tools:'
    return "\n".join([how, *lines])
