"""Read the results.jsonl that `vf-eval` of verifiers saves."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.base.jsonl import read_objects
from turnwise.integrations.logs.logged import Logged, member, read_history, read_outcome, read_responses, reward_of

NEEDED = ("example_id", "prompt", "completion")


def read_verifiers(path: Path, *, reward: str | None = None) -> Iterator[Logged]:
    """Yield the trajectories of a file; see `ReadLog`. Rollouts of an example are a group."""
    for number, line in read_objects(path, NEEDED):
        where = f"{path}, line {number}"
        prompt, completion = _messages(line, "prompt", "user", where), _messages(line, "completion", "assistant", where)
        messages = read_history([*prompt, *completion], where)
        tools = [_tool(tool) for tool in member(line, "tool_defs", list, where)]
        responses = [each for each in read_responses(messages, tools) if len(each.history) >= len(prompt)]
        error = line.get("error")
        metrics = line.get("metrics") if isinstance(line.get("metrics"), dict) else {}
        yield Logged(
            where,
            responses,
            task=" ".join(str(part) for part in (line.get("task"), line["example_id"]) if part is not None),
            outcome=read_outcome(reward_of(line, reward, where), None, metrics, where),
            truncated=bool(line.get("is_truncated")),
            failure=None if error is None else _cause(error),
            model=str(line.get("model") or ""),
        )


def _cause(error: Any) -> str:
    return str(error.get("error_chain_str") or error.get("error") or error) if isinstance(error, dict) else str(error)


def _messages(line: dict[str, Any], key: str, role: str, where: str) -> list[Any]:
    """Return messages in the form of chat completions; a text is one message."""
    if isinstance(given := line[key], str):
        return [{"role": role, "content": given}]
    return [_message(message, f"{where}: {key}[{n}]") for n, message in enumerate(member(line, key, list, where))]


def _message(message: Any, where: str) -> Any:
    if not isinstance(message, dict) or not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_call(call) for call in member(message, "tool_calls", list, where)]}


def _call(call: Any) -> Any:
    """Return a tool call in the form of chat completions; versions write it as an object, flat, or as its JSON."""
    with contextlib.suppress(ValueError):
        call = json.loads(call) if isinstance(call, str) else call
    return {"function": call} if isinstance(call, dict) and "function" not in call else call


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        return {"type": "function", "function": {key: value for key, value in tool.items() if key != "strict"}}
    return tool
