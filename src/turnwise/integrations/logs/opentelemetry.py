"""Read and write OpenTelemetry spans of generative AI: OTLP as JSON, one export per line or per file.

The spans follow the semantic conventions `gen_ai.*`, with the messages as attributes or events, which may be records of
logs; `turnwise.integrations.logs.conventions` reads other conventions.
"""

import datetime
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from turnwise.base.errors import DataError
from turnwise.extensions.gateway.messages import Message, short
from turnwise.integrations.logs.conventions import current
from turnwise.integrations.logs.logged import CONTRADICTING, Logged, Names, Response, as_text, check, numbered
from turnwise.integrations.logs.messages import read_history, read_one, read_tools
from turnwise.integrations.logs.source import Source, Undecided

CALLS = ("chat", "generate_content", "text_completion")
"""Values of gen_ai.operation.name that are calls of a model."""
REWARD, SUCCESS, TASK, GROUP = "turnwise.reward", "turnwise.success", "turnwise.task", "turnwise.group"
TRUNCATED, INFO = "turnwise.truncated", "turnwise.info"
"""Attributes of our own, on any span of a trajectory."""
FAILURE, STATE_KEY, VALID = "turnwise.failure", "turnwise.state_key", "turnwise.valid"
"""Further ones, of the last span, and of each."""
EVALUATION = "gen_ai.evaluation"


class _Scope(BaseModel):
    spans: list[Any] = []
    logRecords: list[Any] = []


class _Resource(BaseModel):
    scopeSpans: list[_Scope | None] | None = None
    scopeLogs: list[_Scope | None] | None = None


class _Export(BaseModel):
    resourceSpans: list[_Resource | None] | None = None
    resourceLogs: list[_Resource | None] | None = None


class _Record(BaseModel):
    traceId: str | None = None
    spanId: str | None = None
    timeUnixNano: int | str | None = None
    eventName: str | None = None
    attributes: list[Any] | dict[str, Any] | None = None
    body: Any = None


class _Data(BaseModel):
    name: Any = None
    traceId: str | None = None
    spanId: str | None = None
    parentSpanId: str | None = None
    startTimeUnixNano: int | str | None = None
    attributes: list[Any] | dict[str, Any] | None = None
    events: list[Any] | None = None
    status: dict[str, Any] | str | int | None = None


class _Values(BaseModel):
    values: list[Any] = []


def read_opentelemetry(source: Source) -> Iterator[Logged]:
    """Yield the trajectories of a file.

    Calls with the same gen_ai.conversation.id are a trajectory, else those of the same trace; a span without either is
    one by itself. The reward is the attribute turnwise.reward of any of its spans, or the score of the event
    gen_ai.evaluation.result that `--reward` names. A span counts once, however often it was exported. Records of logs
    are events of their span; those whose span is not in the file are one.
    """
    exported: list[tuple[str, Any]] = []
    records: dict[tuple[str, str], list[_Record]] = defaultdict(list)
    spans: dict[str, list[_Span]] = defaultdict(list)
    conversations: dict[str, str] = {}  # by trace
    seen: set[tuple[str, str]] = set()
    for where, data in source.records():
        with source.record(where):
            exported += _members(data, where, "Spans", "spans")
            for place, given in _members(data, where, "Logs", "logRecords"):
                with source.record(place):
                    record = check(_Record, given, place)
                    records[record.traceId or "", record.spanId or f"at {place}"].append(record)
    for place, given in itertools.chain(exported, _lone(records, source)):
        with source.record(place):
            data = check(_Data, given, place)
            span = _Span(data, place, records.pop((data.traceId or "", data.spanId or ""), ()))
            if span.id and (span.trace, span.id) in seen:
                source.repeated += 1
                continue
            seen.add((span.trace, span.id))
            spans[span.trace].append(span)
            if conversation := span.attributes.get("gen_ai.conversation.id"):
                conversations.setdefault(span.trace, str(conversation))
    together: dict[str, list[_Span]] = defaultdict(list)
    names = Names()
    for trace, members in spans.items():
        by_name: dict[str, list[_Span]] = defaultdict(list)
        for span in members:
            by_name[str(span.attributes.get("gen_ai.conversation.id") or conversations.get(trace, trace))].append(span)
        for name, own in by_name.items():
            said = {key: value for span in reversed(own) for key, value in span.attributes.items()}
            number = names.number(name, {key: said.get(key) for key in (TASK, GROUP)})
            together[numbered(name, number)] += own
    every = [span for members in spans.values() for span in members]
    if every and not source.left_out and not any(span.is_call or REWARD in span.attributes for span in every):
        operations = sorted({short(span.attributes.get("gen_ai.operation.name")) for span in every})
        what = "spans or records of logs" if len(every) > len(exported) else "spans"
        raise DataError(
            f"{source.path} has {len(every)} {what}, none of them a call of a model: expected gen_ai.operation.name "
            f"{', '.join(CALLS)}, or spans of OpenInference or OpenLLMetry, got {', '.join(operations)[:200]}"
        )
    for name, members in together.items():
        with source.record(members[0].where):
            members.sort(key=lambda span: span.begun)
            logged = _trajectory(name, members, source)
            if logged.responses or logged.outcome:
                yield logged


class _Span:
    """One span, with plain attributes."""

    def __init__(self, data: _Data, where: str, records: Sequence[_Record] = ()):
        self.where = f"{where}, span {short(data.name)}"
        self.id = data.spanId or ""
        self.parent = data.parentSpanId or ""
        self.trace = data.traceId or f"span {self.id} at {where}"
        self.begun = _time(data.startTimeUnixNano, f"{self.where}: startTimeUnixNano")
        events = [
            (str(event.get("name", "")), _attributes(event.get("attributes"), self.where))
            for event in data.events or ()
            if isinstance(event, dict)
        ] + [_event(record, self.where) for record in records]
        self.attributes = current(_attributes(data.attributes, self.where), events)
        self.evaluations = [body for name, body in events if name.startswith(EVALUATION)]
        code = data.status.get("code") if isinstance(data.status, dict) else data.status
        said = data.status.get("message") if isinstance(data.status, dict) else None
        failed = code in (2, "2", "STATUS_CODE_ERROR", "ERROR", "Error", "error")
        self.failed = f"its last call of the model failed{f': {said}' if said else ''}" if failed else ""
        self.is_call = self.attributes.get("gen_ai.operation.name") in CALLS


def _members(data: Any, where: str, kind: str, name: str) -> list[tuple[str, Any]]:
    """Return the spans or the records of logs of an export, with their places."""
    if not isinstance(data, dict) or not ({"resourceSpans", "resourceLogs"} & data.keys()):
        raise DataError(f"{where}: expected an export of OTLP with the key 'resourceSpans' or 'resourceLogs'")
    resources = getattr(check(_Export, data, where), f"resource{kind}") or ()
    scopes = [scope for each in resources if each for scope in getattr(each, f"scope{kind}") or () if scope]
    members = [member for scope in scopes for member in getattr(scope, name)]
    return [
        (f"{where}, {'span' if kind == 'Spans' else 'record'} {n}", each) for n, each in enumerate(members, start=1)
    ]


def _lone(records: dict[tuple[str, str], list[_Record]], source: Source) -> Iterator[tuple[str, Any]]:
    """Yield a span for the records of each that is not in the file."""
    for (trace, span), first in [(key, each[0]) for key, each in records.items()]:
        given = {"traceId": trace or None, "spanId": span, "name": "records", "startTimeUnixNano": first.timeUnixNano}
        yield f"{source.path}, records of span {span}", given


def _event(record: _Record, where: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a record of a log, and what it says."""
    attributes, body = _attributes(record.attributes, where), _value(record.body, where)
    name = str(record.eventName or attributes.get("event.name") or "")
    return name, attributes | (body if isinstance(body, dict) else {})


def _time(value: int | str | None, what: str) -> int:
    """Return a time in nanoseconds, which OTLP writes as text, and some exporters as a date."""
    if value is None or isinstance(value, int):
        return value or 0
    try:
        if value.isdecimal() and len(value) < 30:
            return int(value)
        return int(datetime.datetime.fromisoformat(value).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise DataError(f"{what} is {short(value)}, expected a whole number of nanoseconds, or a date") from None


def _attributes(given: Any, where: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    return _pairs(check(_Values, {"values": given or []}, f"{where}: attributes").values, f"{where}: attributes")


def _pairs(given: list[Any], where: str) -> dict[str, Any]:
    """Return KeyValues of OTLP as plain data."""
    pairs = [pair for pair in given if isinstance(pair, dict) and "key" in pair]
    for pair in pairs:
        if not isinstance(pair["key"], str):
            raise DataError(f"{where}: a key is {short(pair['key'])}, expected a text")
    return {str(pair["key"]): _value(pair.get("value"), where) for pair in pairs}


def _value(value: Any, where: str) -> Any:
    """Return an AnyValue of OTLP as plain data."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind in ("arrayValue", "kvlistValue"):
        values = check(_Values, inner, f"{where}: {kind}").values
        return [_value(each, where) for each in values] if kind == "arrayValue" else _pairs(values, where)
    if kind == "intValue" and isinstance(inner, str) and inner.lstrip("-").isdecimal() and len(inner) < 30:
        return int(inner)
    if kind == "intValue" and not isinstance(inner, int):
        raise DataError(f"{where}: intValue is {short(inner)}, expected a whole number")
    return inner


def _trajectory(name: str, spans: list[_Span], source: Source) -> Logged:
    calls = _once([span for span in spans if span.is_call], spans, source)
    facts = {key: value for span in spans for key, value in span.attributes.items()}
    where, reward = calls[0].where if calls else spans[0].where, source.reward
    scores: dict[str, list[Any]] = defaultdict(list)
    for each in (each for span in spans for each in (*span.evaluations, span.attributes)):
        if (value := each.get(f"{EVALUATION}.score.value")) is not None:
            scores[str(each.get(f"{EVALUATION}.name"))].append(value)
    if reward is not None and reward not in facts and scores and reward not in scores:
        raise DataError(f"{where}: the trajectory {name} has the evaluations {', '.join(scores)}, not {reward!r}")
    if reward is None and REWARD not in facts and len(scores) > 1:
        raise Undecided(f"{where}: the trajectory {name} has the evaluations {', '.join(scores)}; choose with --reward")
    given = [span.attributes[reward or REWARD] for span in spans if (reward or REWARD) in span.attributes]
    given = given or (scores.get(reward, []) if reward else next(iter(scores.values()), []))
    source.lack(CONTRADICTING, sum(one != other for one, other in itertools.pairwise(given)))
    return Logged(
        where,
        [response for span in calls for response in _responses(span, source)],
        task=as_text(facts.get(TASK)),
        group=as_text(facts.get(GROUP)),
        outcome=source.outcome(
            given[-1] if given else None, facts.get(SUCCESS), {**_info(facts, where), "conversation": name}, where
        ),
        truncated=facts.get(TRUNCATED) is True,
        failure=as_text(facts.get(FAILURE)) or (calls[-1].failed if calls else "") or None,
        model=as_text(next((span.attributes.get("gen_ai.request.model") for span in calls), "")),
    )


def _info(facts: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        found = json.loads(facts.get(INFO, "{}"))
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{where}: {INFO} is {short(facts[INFO])}, expected an object as JSON")
    return found


def _once(calls: list[_Span], spans: list[_Span], source: Source) -> list[_Span]:
    """Leave out a call that an outer span, of another library, tells as well: the same answer, around it."""
    by_id = {span.id: span for span in spans if span.id}
    kept = []
    for span in calls:
        above, seen = by_id.get(span.parent), {span.id}
        while above and above.id not in seen and not (above.is_call and _said(above) == _said(span)):
            seen.add(above.id)
            above = by_id.get(above.parent)
        if not above or above.id in seen:
            kept.append(span)
        else:
            source.repeated += 1
    return kept


def _said(span: _Span) -> Any:
    return span.attributes.get("gen_ai.output.messages")


def _responses(span: _Span, source: Source) -> Iterator[Response]:
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
    history = read_history([*begin, *asked], span.where, source)
    tools = read_tools(_json(span, "gen_ai.tool.definitions"), span.where)
    for message in answered:
        read = read_one({"role": "assistant", **message}, span.where, "gen_ai.output.messages", source)
        if len(read) != 1 or read[0]["role"] != "assistant":
            raise DataError(f"{span.where}: gen_ai.output.messages has answers of tools in a message of the model")
        truncated = message.get("finish_reason") == "length"
        yield Response(
            history,
            read[0],
            tools,
            valid=span.attributes.get(VALID) is not False,
            truncated=truncated,
            state_key=None if (key := span.attributes.get(STATE_KEY)) is None else as_text(key),
            actor=as_text(span.attributes.get("gen_ai.agent.name")),
        )


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


def write_opentelemetry(logged: Sequence[Logged], method: str) -> Iterator[dict[str, Any]]:
    """Yield an export per trajectory, a span per response."""
    names: Counter[str] = Counter()
    for number, each in enumerate(logged):
        spans, name = [], each.id or each.where
        names[name] += 1  # batches may have trajectories of the same name, and spans have no batch
        name = numbered(name, names[name] - 1)
        for place, response in enumerate(each.responses):
            own: dict[str, Any] = {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": each.model,
                "gen_ai.conversation.id": name,
                "gen_ai.agent.name": response.actor,
                "gen_ai.input.messages": json.dumps([_parts(message) for message in response.history]),
                "gen_ai.output.messages": json.dumps(
                    [{**_parts(response.message), "finish_reason": "length" if response.truncated else "stop"}]
                ),
                "gen_ai.tool.definitions": json.dumps(response.tools) if response.tools else "",
                TASK: each.task,
                GROUP: each.group,
            }
            if response.state_key is not None:
                own[STATE_KEY] = response.state_key
            if not response.valid:
                own[VALID] = False
            if response.advantage is not None:
                own |= {"turnwise.advantage": response.advantage, "turnwise.method": method}
            last = response is each.responses[-1]
            if last and each.rewarded:
                own |= {REWARD: each.total, SUCCESS: each.outcome.success if each.outcome else each.total > 0}
            if last and each.truncated:
                own[TRUNCATED] = True
            if last and each.outcome and each.outcome.info:
                own[INFO] = json.dumps(each.outcome.info)
            if failed := last and bool(each.failure):
                own[FAILURE] = each.failure
            spans.append(
                {
                    "traceId": f"{number + 1:032x}",
                    "spanId": f"{place + 1:016x}",
                    "name": f"chat {each.model}".strip(),
                    "kind": 3,
                    "startTimeUnixNano": str(place + 1),
                    "endTimeUnixNano": str(place + 2),
                    "attributes": [{"key": key, "value": _any(value)} for key, value in own.items() if value != ""],
                    **({"status": {"code": 2, "message": each.failure}} if failed else {}),
                }
            )
        yield {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "turnwise"}, "spans": spans}]}]}


def _any(value: Any) -> dict[str, Any]:
    kind = (
        "boolValue" if isinstance(value, bool) else "doubleValue" if isinstance(value, int | float) else "stringValue"
    )
    return {kind: value}


def _parts(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if "reasoning_content" in message:
        parts.append({"type": "reasoning", "content": message["reasoning_content"]})
    if message["role"] == "tool":
        parts.append({"type": "tool_call_response", "response": message["content"], "id": message.get("tool_call_id")})
    elif message["content"] or not message.get("tool_calls"):
        parts.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        parts.append({"type": "tool_call", "id": call.get("id"), **call["function"]})
    return {"role": message["role"], "parts": parts}
