"""Parse tool calls in the text form of most chat models: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

import dataclasses
import json
import re
from typing import Any

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_MAX_DEPTH = 100


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call.

    Attributes:
        name: Name of the tool; empty if the call is malformed.
        arguments: Arguments as JSON; for a malformed call, its raw text, for error messages.
        malformed: Whether the call lacks a name or an object of arguments.
    """

    name: str
    arguments: str
    malformed: bool = False


def read_tool_calls(response: str) -> tuple[str, list[ToolCall]]:
    """Split a response into its text and its tool calls; the last call may lack its closing tag."""
    return _CALL.sub("", response).strip(), [_read(found.strip()) for found in _CALL.findall(response)]


def read_json(text: str | bytes) -> Any:
    """Parse JSON that a policy or a caller wrote.

    Raises:
        ValueError: It is not valid JSON, or nested too deeply to be written again.
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
    """Describe the tools, one JSON schema per line, and how a response calls them."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    how = 'Call a tool with <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. Tools:'
    return "\n".join([how, *lines])
