"""Convert responses to OpenEnv actions, and observations to text, by the environment's JSON schemas."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.imports import import_named
from turnwise.environments.tool_calls import read_json, read_tool_calls, without_reasoning

Act = Callable[[str], Mapping[str, Any] | None]
"""Converts a response to an action; None if it is not one."""

Show = Callable[[Mapping[str, Any]], str]
"""Converts an observation to text."""

TAKEN = {"metadata": dict, "valid": bool, "truncated": bool, "state_key": object, "admissible": list, "info": dict}
"""Fields of an observation that the step takes over, if their value has this type.

The policy does not read them: `info` may have the answer.
"""

_KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def choose_action(choice: str, further: Mapping[str, Any], schema: Mapping[str, Any]) -> Act:
    """Make the function that converts responses to actions.

    Args:
        choice: A field, "json", "tool_call", "module:function", or "" for the only field.
        further: Fields of every action.
        schema: JSON schema of an action.

    Raises:
        ConfigError: The field does not exist, or there is more than one to choose from.
    """
    if ":" in choice:
        own = import_named(choice)
        return lambda response: None if (action := own(response)) is None else {**further, **action}
    fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
    if choice in ("json", "tool_call") and choice not in fields:
        read = _read_object if choice == "json" else _read_call
        return lambda response: None if (action := read(without_reasoning(response))) is None else {**further, **action}
    known = (*fields, "json", "tool_call")
    for name in (*further, *([choice] if choice else [])):
        if name not in fields:
            raise ConfigError(f"the environment's actions have no field {name!r}.{did_you_mean(name, known)}")
    if not choice:
        open_fields = [name for name in fields if name not in further]
        required = [name for name in open_fields if name in schema.get("required", ())] or open_fields
        if len(required) != 1:
            raise ConfigError(
                f"the environment's actions have the fields {', '.join(fields) or '(none)'}: set "
                "environment.options.action to the field that a response fills, "
                "or to 'json', 'tool_call' or 'module:function'"
            )
        choice = required[0]
    field = fields[choice]

    def act(response: str) -> Mapping[str, Any] | None:
        value = _value(without_reasoning(response), field)
        return None if value is None else {**further, choice: value}

    return act


def choose_observation(choice: str, schema: Mapping[str, Any]) -> Show:
    """Make the function that converts observations to text; see `choose_action`.

    Raises:
        ConfigError: The field does not exist.
    """
    if ":" in choice:
        return import_named(choice)
    fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
    if not choice:
        texts = [name for name, field in fields.items() if field.get("type") == "string"]
        choice = texts[0] if len(texts) == 1 else "json"
    if choice == "json" and choice not in fields:
        return lambda said: _as_text(
            {
                name: value
                for name, value in said.items()
                if value is not None and not (name in TAKEN and isinstance(value, TAKEN[name]))
            }
        )
    if fields and choice not in fields:
        raise ConfigError(
            f"the environment's observations have no field {choice!r}.{did_you_mean(choice, (*fields, 'json'))}"
        )
    return lambda said: _as_text(said.get(choice, ""))


def _value(response: str, field: Mapping[str, Any]) -> Any:
    """Convert a response to a value of a field; None if it has none."""
    kinds = [option.get("type") for option in field.get("anyOf", (field,))]
    allowed = field.get("enum")
    if "string" in kinds or kinds == [None]:
        return response if allowed is None else response.strip() if response.strip() in allowed else None
    try:
        value = read_json(response)
    except ValueError:
        return None
    fits = any(isinstance(value, _KINDS.get(kind or "", ())) for kind in kinds)
    if (
        not fits
        or (isinstance(value, bool) and "boolean" not in kinds)
        or (allowed is not None and value not in allowed)
    ):
        return None
    return value


def _read_object(response: str) -> Mapping[str, Any] | None:
    try:
        action = read_json(response)
    except ValueError:
        return None
    return action if isinstance(action, dict) else None


def _read_call(response: str) -> Mapping[str, Any] | None:
    _, calls = read_tool_calls(response)
    if len(calls) != 1 or calls[0].malformed:  # the protocol takes one at a time
        return None
    return {"type": "call_tool", "tool_name": calls[0].name, "arguments": json.loads(calls[0].arguments)}


def _as_text(value: Any) -> str:
    """Convert a value to text: strings unchanged, a tool's result to its texts, anything else to JSON."""
    if isinstance(value, dict) and isinstance(value.get("content"), list):  # MCP's form of tool results
        texts = [
            part["text"] for part in value["content"] if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if texts:
            return "\n".join(texts)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
