"""Read spans of OpenInference, OpenLLMetry and earlier conventions as those of the current `gen_ai.*` conventions."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DETAILS = "gen_ai.client.inference.operation.details"
"""Event of a span that may have the messages in place of the span."""
NO_CALLS = ("execute_tool", "execute_task", "invoke_agent", "create_agent", "invoke_workflow", "embeddings")
"""Values of gen_ai.operation.name that are not calls of a model, whatever else the span has."""
ASKED = ("llm.input_messages", "gen_ai.prompt")
ANSWERED = ("llm.output_messages", "gen_ai.completion")
TOOLS = ("llm.tools", "llm.request.functions")
ALSO = {
    "gen_ai.request.model": "llm.model_name",
    "gen_ai.conversation.id": "session.id",
    "gen_ai.agent.name": "agent.name",
}


def current(attributes: dict[str, Any], events: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the attributes of a span with those of the current conventions, where other ones or events say the same.

    Args:
        attributes: Attributes of the span.
        events: Name and attributes of its events.
    """
    found = {key: value for name, body in events if name == DETAILS for key, value in body.items()} | attributes
    kind = found.get("openinference.span.kind")
    if "gen_ai.output.messages" in found or kind not in (None, "LLM"):
        return found
    if found.get("gen_ai.operation.name") in NO_CALLS:
        return found
    asked, answered = (_messages(found, names, role) for names, role in ((ASKED, "user"), (ANSWERED, "assistant")))
    if not answered:
        asked, answered = _told(events)
    if not answered:
        return found
    found |= {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked}
    found["gen_ai.output.messages"] = [each for each in answered if each.get("content") or each.get("tool_calls")]
    if tools := [_loaded(each.get("tool.json_schema", each)) for name in TOOLS for each in _numbered(found, name)]:
        found["gen_ai.tool.definitions"] = [_tool(each) for each in tools]
    return {new: found[old] for new, old in ALSO.items() if old in found} | found


def _told(events: Sequence[tuple[str, dict[str, Any]]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what was asked and answered by events up to version 1.36 of the conventions, each of one message."""
    asked, answered = [], []
    for name, given in events:
        body = _loaded(given.get("gen_ai.event.content", given))
        role = name.removeprefix("gen_ai.").removesuffix(".message")
        if not isinstance(body, dict):
            continue
        if name == "gen_ai.choice":
            message = _loaded(body.get("message", body))
            kept = {"finish_reason": body["finish_reason"]} if "finish_reason" in body else {}
            answered.append({**(message if isinstance(message, dict) else {}), "role": "assistant", **kept})
        elif name == f"gen_ai.{role}.message":
            asked.append({"role": role, **body, **({"tool_call_id": body.get("id")} if role == "tool" else {})})
    return asked, answered


def _messages(found: Mapping[str, Any], names: Sequence[str], role: str) -> list[dict[str, Any]]:
    """Return the messages of numbered attributes, or of one text."""
    for name in names:
        if messages := [_message(_without(each, "message."), role) for each in _numbered(found, name)]:
            return _joined(messages) if name.startswith("llm.") else messages  # of OpenLLMetry they are choices
        if isinstance(found.get(name), str):
            return [{"role": role, "content": found[name]}]
    return []


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with those of the assistant that follow each other as one: OpenInference writes one per item."""
    joined: list[dict[str, Any]] = []
    for each in messages:
        if not joined or each["role"] != "assistant" or joined[-1]["role"] != "assistant":
            joined.append(each)
            continue
        last, parts = joined[-1], []
        for content in (last["content"], each["content"]):
            parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
        calls = [*last.get("tool_calls", ()), *each.get("tool_calls", ())]
        joined[-1] = {**last, **each, "content": parts, **({"tool_calls": calls} if calls else {})}
    return joined


def _message(given: dict[str, Any], role: str) -> dict[str, Any]:
    """Return a message of flat attributes: `content` or `contents.0...`, `tool_calls.0...`."""
    parts = [_without(each, "message_content.") for each in _numbered(given, "contents")]
    content = given.get("content", parts)
    if isinstance(content, str) and content.startswith("[{"):  # parts as their JSON
        content = _loaded(content)
    message = {"role": given.get("role") or role, "content": content}
    calls = []
    for each in _numbered(given, "tool_calls"):
        call = _without(_without(each, "tool_call."), "function.")
        calls.append({"id": call.get("id"), "function": {key: call.get(key) for key in ("name", "arguments")}})
    message |= {"tool_calls": calls} if calls else {}
    return message | {key: given[key] for key in ("tool_call_id", "finish_reason") if key in given}


def _tool(given: Any) -> Any:
    if isinstance(given, dict) and "name" in given and "function" not in given:
        return {**given, "parameters": _loaded(given.get("parameters", {}))}
    return given


def _numbered(found: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the attributes `name.0.*`, `name.1.*` and so on, without the part before the star."""
    members: dict[int, dict[str, Any]] = {}
    for key, value in found.items():
        number, _, rest = key.removeprefix(f"{name}.").partition(".") if key.startswith(f"{name}.") else ("", "", "")
        if number.isdecimal() and len(number) < 9 and rest:
            members.setdefault(int(number), {})[rest] = value
    yield from (members[number] for number in sorted(members))


def _without(given: dict[str, Any], start: str) -> dict[str, Any]:
    return {key.removeprefix(start): value for key, value in given.items()}


def _loaded(value: Any) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value) if isinstance(value, str) else value
    return value
