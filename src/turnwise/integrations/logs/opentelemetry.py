"""Read OpenTelemetry spans of generative AI: OTLP as JSON, one export per line or per file.

The spans follow the semantic conventions `gen_ai.*`, with the messages as attributes (version 1.37 or later).
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError
from turnwise.base.jsonl import UNREADABLE, open_text, read_objects
from turnwise.extensions.gateway.messages import Message, short
from turnwise.integrations.logs.logged import Logged, Response, member, read_history, read_outcome, typed

CALLS = ("chat", "generate_content", "text_completion")
"""Values of gen_ai.operation.name that are calls of a model."""
REWARD, SUCCESS, TASK = "turnwise.reward", "turnwise.success", "turnwise.task"
"""Attributes of our own, on any span of a trajectory."""
EVALUATION = "gen_ai.evaluation"
WHOLE = re.compile(r"-?[0-9]{1,30}")


def read_opentelemetry(path: Path, *, reward: str | None = None) -> Iterator[Logged]:
    """Yield the trajectories of a file; see `ReadLog`.

    Calls with the same gen_ai.conversation.id are a trajectory, else those of the same trace. The reward is the
    attribute turnwise.reward of any of its spans, or the score of the event gen_ai.evaluation.result that `reward`
    names.
    """
    spans: dict[str, list[_Span]] = defaultdict(list)
    conversations: dict[str, str] = {}  # by trace
    for where, data in _exports(path):
        for span in _spans(data, where):
            spans[span.trace].append(span)
            if conversation := span.attributes.get("gen_ai.conversation.id"):
                conversations.setdefault(span.trace, str(conversation))
    together: dict[str, list[_Span]] = defaultdict(list)
    for trace, members in spans.items():
        for span in members:
            together[str(span.attributes.get("gen_ai.conversation.id") or conversations.get(trace, trace))].append(span)
    for name, members in together.items():
        members.sort(key=lambda span: span.begun)
        logged = _trajectory(name, members, reward)
        if logged.responses or logged.outcome:
            yield logged


class _Span:
    """One span, with plain attributes."""

    def __init__(self, data: Mapping[str, Any], where: str):
        self.where = f"{where}, span {short(data.get('name'))}"
        self.trace = str(data.get("traceId") or "")
        self.begun = _whole(data.get("startTimeUnixNano") or 0, f"{self.where}: startTimeUnixNano")
        self.attributes = _attributes(data, self.where)
        self.evaluations = [
            _attributes(event, self.where)
            for event in member(data, "events", list, self.where)
            if isinstance(event, dict) and str(event.get("name", "")).startswith(EVALUATION)
        ]
        self.failed = member(data, "status", dict, self.where).get("code") in (2, "STATUS_CODE_ERROR")


def _exports(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with open_text(path) as file:
            whole = json.loads(file.read())
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (*UNREADABLE, RecursionError):  # one export per line
        for number, line in read_objects(path):
            yield f"{path}, line {number}", line
        return
    for number, part in enumerate(whole if isinstance(whole, list) else [whole]):
        yield f"{path}, export {number}" if isinstance(whole, list) else str(path), part


def _spans(data: Any, where: str) -> Iterator[_Span]:
    if not isinstance(data, dict) or not ({"resourceSpans", "resourceLogs"} & data.keys()):
        raise DataError(f"{where}: expected an export of OTLP with the key 'resourceSpans'")
    for resource in _objects(data, "resourceSpans", where):
        for scope in _objects(resource, "scopeSpans", where):
            for span in _objects(scope, "spans", where):
                yield _Span(span, where)


def _objects(data: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    return [typed(each, dict, f"{where}: a value in {key}") for each in member(data, key, list, where)]


def _attributes(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    if isinstance(given := data.get("attributes"), dict):
        return given
    return _pairs(member(data, "attributes", list, where), f"{where}: attributes")


def _pairs(given: list[Any], where: str) -> dict[str, Any]:
    """Return KeyValues of OTLP as plain data."""
    pairs = [pair for pair in given if isinstance(pair, dict) and "key" in pair]
    return {typed(pair["key"], str, f"{where}: a key"): _value(pair.get("value"), where) for pair in pairs}


def _value(value: Any, where: str) -> Any:
    """Return an AnyValue of OTLP as plain data."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind in ("arrayValue", "kvlistValue"):
        values = member(typed(inner, dict, f"{where}: {kind}"), "values", list, where)
        return [_value(each, where) for each in values] if kind == "arrayValue" else _pairs(values, where)
    return _whole(inner, f"{where}: intValue") if kind == "intValue" else inner


def _whole(value: Any, what: str) -> int:
    """Return a whole number, which OTLP writes as text."""
    if isinstance(value, str) and WHOLE.fullmatch(value):
        return int(value)
    if not isinstance(value, int):
        raise DataError(f"{what} is {short(value)}, expected a whole number")
    return value


def _trajectory(name: str, spans: list[_Span], reward: str | None) -> Logged:
    calls = [span for span in spans if span.attributes.get("gen_ai.operation.name") in CALLS]
    told = {key: value for span in spans for key, value in span.attributes.items()}
    where = calls[0].where if calls else spans[0].where
    scores = {
        str(each.get(f"{EVALUATION}.name")): each.get(f"{EVALUATION}.score.value")
        for span in spans
        for each in (*span.evaluations, span.attributes)
        if each.get(f"{EVALUATION}.score.value") is not None
    }
    if reward is not None and reward not in told and scores and reward not in scores:
        raise DataError(f"{where}: the trajectory {name} has the evaluations {', '.join(scores)}, not {reward!r}")
    if reward is None and REWARD not in told and len(scores) > 1:
        raise DataError(f"{where}: the trajectory {name} has the evaluations {', '.join(scores)}; choose with --reward")
    value = told.get(reward, scores.get(reward)) if reward else told.get(REWARD, next(iter(scores.values()), None))
    return Logged(
        where,
        [response for span in calls for response in _responses(span)],
        task=str(told.get(TASK) or ""),
        outcome=read_outcome(value, told.get(SUCCESS), {"conversation": name}, where),
        failure="its last call of the model failed" if calls and calls[-1].failed else None,
        model=str(next((span.attributes.get("gen_ai.request.model") for span in calls), "") or ""),
    )


def _responses(span: _Span) -> Iterator[Response]:
    """Yield the responses of a call. Many exporters leave out the messages, and then there is nothing to learn."""
    asked, answered = (_json(span, f"gen_ai.{side}.messages") for side in ("input", "output"))
    if span.failed and not answered:
        return
    if not answered:
        raise DataError(
            f"{span.where}: no attribute gen_ai.output.messages; have the instrumentation capture message content "
            "(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_only)"
        )
    system = _json(span, "gen_ai.system_instructions")
    begin = [{"role": "system", "parts": system}] if system else []
    history = read_history(
        [each for message in [*begin, *asked] for each in _messages(message, span.where)], span.where
    )
    tools = [_tool(tool) for tool in _json(span, "gen_ai.tool.definitions")]
    for message in answered:
        read = read_history(_messages({"role": "assistant", **message}, span.where), span.where)
        if len(read) != 1:
            raise DataError(f"{span.where}: gen_ai.output.messages has answers of tools in a message of the model")
        truncated = message.get("finish_reason") == "length"
        actor = str(span.attributes.get("gen_ai.agent.name") or "")
        yield Response(history, read[0], tools, truncated=truncated, actor=actor)


def _json(span: _Span, name: str) -> list[Any]:
    """Return an attribute that is a list, or its JSON."""
    value = span.attributes.get(name) or []
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise DataError(f"{span.where}: {name} is not valid JSON: {value[:60]!r}") from None
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DataError(f"{span.where}: {name} is {short(value)}, expected a list of objects")
    return value


def _messages(message: dict[str, Any], where: str) -> list[Message]:
    """Turn a message of parts into those of chat completions; what tools answered are messages of their own."""
    if "parts" not in message:
        return [message]
    given = member(message, "parts", list, where)
    parts = [part if isinstance(part, dict) else {"type": "text", "content": part} for part in given]
    texts = [str(part.get("content") or "") for part in parts if part.get("type") == "text"]
    calls = [
        {"function": {"name": part.get("name"), "arguments": part.get("arguments") or {}}}
        for part in parts
        if part.get("type") == "tool_call"
    ]
    answers = [part for part in parts if part.get("type") == "tool_call_response"]
    made: list[Message] = [{"role": "tool", "content": _plain(part)} for part in answers]
    if texts or calls or not answers:
        said = {"role": message.get("role"), "content": "".join(texts)}
        made.append({**said, "tool_calls": calls} if calls else said)
    return made


def _plain(part: Mapping[str, Any]) -> str:
    given = part.get("response", part.get("result"))
    return given if isinstance(given, str) else json.dumps(given)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return tool if "function" in tool else {"type": "function", "function": {**tool}}
