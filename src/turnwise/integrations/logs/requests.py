"""Read logs of requests and responses: OpenAI's two APIs and Anthropic's, one call per record.

A call whose messages continue those of an earlier one and its answer belongs to the same trajectory, unless an id in
the record, or in the metadata of its request, says otherwise.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from turnwise.base.errors import DataError
from turnwise.environments.tool_calls import without_reasoning
from turnwise.extensions.gateway.messages import Message, history_keys, short
from turnwise.integrations.logs.logged import (
    CONTRADICTING,
    BatchNumber,
    Logged,
    Names,
    Response,
    as_text,
    check,
    numbered,
)
from turnwise.integrations.logs.messages import read_history, read_items, read_one, read_tools
from turnwise.integrations.logs.source import Source

TOGETHER = ("trajectory", "trajectory_id", "conversation_id", "session_id", "trace_id", "episode_id")
"""Keys that the calls of a trajectory share."""
OF_TRAJECTORY = ("task", "group", "success", "info", "step")
CUT = ("length", "max_tokens", "max_output_tokens")


class _Pair(BaseModel):
    request: dict[str, Any]
    response: dict[str, Any] | None


@dataclasses.dataclass
class _Trajectory:
    where: str
    responses: list[Response]
    facts: dict[str, Any]
    failure: str | None = None
    model: str = ""


def read_requests(source: Source) -> Iterator[Logged]:
    """Yield the trajectories of a file; the reward is that of any of its records."""
    found: dict[str, _Trajectory] = {}
    ends: dict[bytes, list[str]] = {}  # the trajectories that a conversation is the beginning of
    newest: dict[str, bytes] = {}  # the whole conversation of each trajectory
    answers: dict[str, list[Message]] = {}  # conversations by the id of their last answer
    calls: dict[bytes, str] = {}  # the trajectory of each call that has an id
    rewarded, names = False, Names()
    for where, record in source.records():
        with source.record(where):
            pair = check(_Pair, record, where)
            request, answer = (_body(each or {}) for each in (pair.request, pair.response))
            identity = as_text(answer.get("id"))
            metadata = request["metadata"] if isinstance(request.get("metadata"), dict) else {}
            facts = {**metadata, **record}
            check(BatchNumber, {"step": 1 if facts.get("step") is None else facts["step"]}, where)
            call = _digest([request, answer]) if identity else b""  # ids may be equal by chance
            tools = read_tools(request.get("tools"), f"{where}: request")
            history = _history(request, answers, f"{where}: request", source)
            name = next((as_text(facts[key]) for key in TOGETHER if facts.get(key) is not None), "")
            if name:
                own = {key: facts.get(key) for key in ("step", "task", "group")}
                name = numbered(name, names.number(name, own))
            keys = _keys(history)
            if not name:
                key = next((key for key in reversed(keys) if key in ends), b"")
                open_ones = (each for each in ends.get(key, ()) if newest[each] == key)  # not continued otherwise
                name = next(open_ones, ends[key][-1] if key else where)
            failure, message, reason = _failure(pair.response, answer), {}, None
            if failure is None:
                message, reason = _answer(answer, f"{where}: response", source)
            if repeated := call in calls:
                source.repeated, name = source.repeated + 1, calls[call]
            elif call and failure is None:
                calls[call] = name
            each = found.setdefault(name, _Trajectory(where, [], {}))
            each.facts |= {key: facts[key] for key in OF_TRAJECTORY if facts.get(key) is not None}
            if (reward := facts.get(source.reward or "reward")) is not None:
                source.lack(CONTRADICTING, each.facts.get("reward", reward) != reward)
                each.facts["reward"], rewarded = reward, True
            if repeated:
                continue
            each.failure = failure
            if failure is None:
                each.responses.append(
                    Response(history, message, tools, truncated=reason in CUT, actor=as_text(facts.get("actor")))
                )
                newest[name] = _keys([*history, message])[-1]
                ends.setdefault(newest[name], []).append(name)
                each.model = as_text(answer.get("model") or request.get("model"))
                if identity:
                    answers[identity] = [*history, message]
    if source.reward is not None and found and not rewarded:
        raise DataError(f"{source.path}: no record has the key {source.reward!r}, which --reward names")
    for name, each in found.items():
        facts = each.facts
        yield Logged(
            each.where,
            each.responses,
            task=as_text(facts.get("task")),
            group=as_text(facts.get("group")),
            outcome=source.outcome(facts.get("reward"), facts.get("success"), facts.get("info"), each.where),
            failure=each.failure and f"its last call failed: {each.failure}",
            model=each.model,
            step=facts.get("step", 1),
            id=name,
        )


def _keys(messages: Sequence[Message]) -> list[bytes]:
    """Name a conversation up to each message, whether or not reasoning and tools are sent again."""
    said = [{**each, "content": without_reasoning(each["content"]).strip()} for each in messages]
    return history_keys(said)


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(errors="surrogatepass"), digest_size=16).digest()


def _body(given: dict[str, Any]) -> dict[str, Any]:
    return given["body"] if isinstance(given.get("body"), dict) else given


def _failure(given: dict[str, Any] | None, answer: dict[str, Any]) -> str | None:
    if given is None:
        return "it has no response"
    status = given.get("status_code", given.get("status"))
    error = answer.get("error")
    if error or (isinstance(status, int) and status >= 400):
        return short(error.get("message", error) if isinstance(error, dict) else error or status)
    return None


def _history(request: dict[str, Any], answers: dict[str, list[Message]], where: str, source: Source) -> list[Message]:
    begin = request.get("system") or request.get("instructions")
    system = read_history([{"role": "system", "content": begin}], where, source) if begin else []
    if "messages" in request:
        return [*system, *read_history(request["messages"], where, source)]
    if "input" not in request:
        raise DataError(f"{where}: expected messages (chat completions, Anthropic) or input (the Responses API)")
    earlier = answers.get(as_text(request.get("previous_response_id")), [])
    kept = [message for message in earlier if message["role"] != "system"]  # instructions are not carried over
    return [*system, *kept, *read_items(request["input"], f"{where}: input", source)]


def _answer(answer: dict[str, Any], where: str, source: Source) -> tuple[Message, Any]:
    """Return the message of an answer, and why it ended."""
    choices, content, output = (answer.get(key) for key in ("choices", "content", "output"))
    reason: Any = None
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        source.lack("further choices of a request; the first one is read", len(choices) - 1)
        given, reason = choices[0].get("message"), choices[0].get("finish_reason")
        messages = read_one(given, where, "choices[0].message", source)
    elif content is not None:
        reason = answer.get("stop_reason")
        messages = read_one({"role": "assistant", "content": content}, where, "message", source)
    elif output is not None:
        details = answer.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        messages = read_items(output, f"{where}: output", source)
    else:
        raise DataError(f"{where}: expected choices, content or output, the answers of the known APIs")
    if not messages or messages[-1]["role"] != "assistant":
        raise DataError(f"{where}: it holds no message of the model")
    if len(messages) > 1:
        source.lack("parts of a response around what its own server's tools answered", len(messages) - 1)
    return messages[-1], reason
