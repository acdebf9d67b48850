"""Read ATIF, the Agent Trajectory Interchange Format (1.0 to 1.8), and Harbor's folders; `atif_write` writes it.

What our fields do not hold of a document is kept as it is, so that it is written again. What ATIF has no field for is
in `extra`, with names that begin with `turnwise.`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from turnwise.base.errors import DataError, did_you_mean
from turnwise.extensions.gateway.messages import Message
from turnwise.integrations.logs.logged import (
    BatchNumber,
    Logged,
    Response,
    as_text,
    check,
    checked_ids,
)
from turnwise.integrations.logs.messages import read_one, read_tools
from turnwise.integrations.logs.source import Source, Undecided

NAME = "turnwise"
"""Names an agent in documents, if the log does not name it."""
OURS = f"{NAME}."
"""Begins the names of what ATIF has no field for."""
OF_RESPONSE = ("reward", "valid", "truncated", "state_key", "actor", "version", "entropies")
ROLES = {"system": "system", "user": "user", "agent": "assistant"}
CALLS, ANSWERS = f"{OURS}tool_calls", f"{OURS}tool_call_id"
"""Calls of somebody else than the agent; which call a result answers that has none in its step."""
WHOLE, PART = "trajectory.json", "trajectory."
"""Name of a trial's document in a folder, and how names of further ones begin: continuations and sub-agents."""
TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")


class _Call(BaseModel):
    tool_call_id: str
    function_name: str
    arguments: Any
    extra: dict[str, Any] | None = None


class _Reference(BaseModel, extra="allow"):
    trajectory_id: str | None = None
    trajectory_path: str | None = None


class _Result(BaseModel, extra="allow"):  # kept, to be written again
    source_call_id: str | None = None
    content: str | list[Any] | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectory_ref: list[_Reference] | _Reference | None = None


class _Observation(BaseModel):
    results: list[_Result]


class _Metrics(BaseModel, strict=True):
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class _Step(BaseModel):
    source: str
    message: str | list[Any]
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    extra: dict[str, Any] | None = None
    llm_call_count: int | None = None
    is_copied_context: bool | None = None


class _Agent(BaseModel):
    name: str
    model_name: str | None = None
    tool_definitions: list[Any] | None = None


class _Document(BaseModel):
    schema_version: str = Field(pattern=r"^ATIF-v1\.")
    agent: _Agent = _Agent(name="")
    steps: list[Any]
    session_id: str | None = None
    trajectory_id: str | None = None
    final_metrics: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[Any] | None = None
    continued_trajectory_ref: str | None = None


def read_atif(source: Source) -> Iterator[Logged]:
    """Yield the trajectories of a file, or of a folder such as Harbor writes; sub-agents are part of their parent's."""
    for where, record, result, parts in _documents(source):
        with source.record(where):
            document = check(_Document, record, where)
            tools = read_tools(document.agent.tool_definitions, where)
            left_out = ["steps", *(["continued_trajectory_ref"] if parts else [])]  # its responses are read here
            reader = _Reader(source, tools, where, parts=parts)
            responses, after = reader.read(record, document)
            responses += reader.rest()
            extra = document.extra or {}
            ours = {key.removeprefix(OURS): value for key, value in extra.items() if key.startswith(OURS)}
            trial = f"{result.get('trial_name') or ''}"
            yield Logged(
                where,
                responses,
                task=as_text(ours.get("task") or result.get("task_name") or extra.get("task")),
                group=as_text(ours.get("group")),
                outcome=source.outcome(
                    _reward(document, ours, result, source.reward, where), ours.get("success"), ours.get("info"), where
                ),
                truncated=bool(ours.get("truncated")),
                failure=as_text(ours.get("failure") or _exception(result)) or None,
                model=document.agent.model_name or "",
                step=check(BatchNumber, ours, where).step,
                id=document.trajectory_id or trial,
                after=after,
                extra={"atif": {key: value for key, value in record.items() if key not in left_out}},
            )


def _documents(source: Source) -> Iterator[tuple[str, Any, Mapping[str, Any], dict[str, Any]]]:
    """Yield place, document, the result that Harbor keeps next to it, and further documents that are parts of it."""
    if not source.path.is_dir():
        yield from ((where, record, {}, {}) for where, record in source.records())
        return
    documents = sorted(source.path.rglob("trajectory*.json"))
    if not documents:
        raise DataError(
            f"{source.path} has no files named trajectory*.json, as a folder of ATIF has; name a file of another format"
        )
    whole = {path.parent for path in documents if path.name == WHOLE}
    for path in documents:
        if path.parent in whole and path.name != WHOLE and path.name.startswith(PART):
            continue
        parts: dict[str, Any] = {}
        for part in sorted(path.parent.glob(f"{PART}*.json")) if path.name == WHOLE else ():
            if part.name != WHOLE:
                with source.record(str(part)):
                    parts[part.name] = _loaded(part)
        result = next(
            (each for each in (path.parent / "result.json", path.parent.parent / "result.json") if each.is_file()), None
        )
        with source.record(str(path)):
            value, outcome = _loaded(path), _loaded(result) if result else {}
            yield str(path), value, outcome if isinstance(outcome, dict) else {}, parts


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not valid JSON") from None


def _reward(
    document: _Document, ours: Mapping[str, Any], result: Mapping[str, Any], name: str | None, where: str
) -> Any:
    """Return the reward: our own, that of the document's `extra` or metrics, or the verifier's that Harbor keeps."""
    verified = result.get("verifier_result")
    rewards = verified.get("rewards") if isinstance(verified, dict) else None
    metrics = (document.final_metrics or {}).get("extra")
    found = {
        key: value
        for each in (rewards, metrics, document.extra)
        if isinstance(each, dict)
        for key, value in each.items()
    }
    if name is not None:
        if name not in found:
            raise DataError(f"{where}: no reward {name!r}, which --reward names.{did_you_mean(name, found)}")
        return found[name]
    if "reward" in ours or "reward" in found:
        return ours.get("reward", found.get("reward"))
    if isinstance(rewards, dict) and len(rewards) > 1:
        raise Undecided(f"{where}: it has the rewards {', '.join(rewards)}; choose one with --reward NAME")
    return next(iter(rewards.values())) if rewards else None


def _file(path: str | None) -> str:
    """Return the name of the file that a reference names."""
    return Path(path or "").name


def _exception(result: Mapping[str, Any]) -> str:
    error = result.get("exception_info")
    return str(error.get("exception_message") or error.get("exception_type") or "") if isinstance(error, dict) else ""


class _Reader:
    """Read the steps of a document, with those of its sub-agents where they are referred to.

    Args:
        source: The log.
        tools: Tools of the agent.
        where: Place of the document.
        actor: Name of the agent, if it is a sub-agent.
        parts: Further documents of the trajectory by the names of their files; those that are read are removed.
    """

    def __init__(
        self, source: Source, tools: list[Any], where: str, actor: str = "", parts: dict[str, Any] | None = None
    ):
        self.source, self.tools, self.where, self.actor = source, tools, where, actor
        self.parts = {} if parts is None else parts

    def read(self, record: dict[str, Any], document: _Document) -> tuple[list[Response], list[Message]]:
        messages: list[Message] = []
        responses: list[Response] = []
        subs: dict[str, Any] = {}
        for number, sub in enumerate(document.subagent_trajectories or ()):
            name = sub.get("trajectory_id") if isinstance(sub, dict) else None
            subs[str(number) if name is None or name in subs else str(name)] = sub
        end = 0
        for number, given in enumerate(document.steps):
            place = f"{self.where}: steps[{number}]"
            step = check(_Step, given, place)
            message, is_response = self._message(step, given, place)
            if is_response:
                responses.append(self._response(step, message, messages, place))
            messages = [*messages, message]
            end = len(messages) if is_response else end
            for result in step.observation.results if step.observation else ():
                messages = [*messages, self._result(result, step, place)]
                references = result.subagent_trajectory_ref or []
                for reference in references if isinstance(references, list) else [references]:
                    if (name := str(reference.trajectory_id)) in subs:
                        responses += self._sub(subs.pop(name), name)
                    elif (name := _file(reference.trajectory_path)) in self.parts:
                        responses += self._sub(self.parts.pop(name), name)
        for name, sub in subs.items():
            responses += self._sub(sub, name)
        if (name := _file(document.continued_trajectory_ref)) in self.parts:
            more, after = self._continued(name)
            return [*responses, *more], after
        if any("turn" in response.extra for response in responses):
            responses.sort(key=lambda response: response.extra.get("turn", 0))
        return responses, messages[end:]

    def rest(self) -> list[Response]:
        """Return the responses of the parts that no document refers to."""
        responses = []
        while self.parts:
            name = min(self.parts)
            with self.source.record(name):  # it may be another file than a trajectory
                responses += self._continued(name)[0] if ".cont-" in name else self._sub(self.parts.pop(name), name)
        return responses

    def _continued(self, name: str) -> tuple[list[Response], list[Message]]:
        """Read the document that goes on after this one, with another history."""
        record, where = self.parts.pop(name), f"{self.where}: {name}"
        document = check(_Document, record, where)
        tools = read_tools(document.agent.tool_definitions, where)
        return _Reader(self.source, tools, where, self.actor, self.parts).read(record, document)

    def _sub(self, record: Any, name: str) -> list[Response]:
        where = f"{self.where}: sub-agent {name}"
        document = check(_Document, record, where)
        tools = read_tools(document.agent.tool_definitions, where)
        actor = document.agent.name if document.agent.name != NAME else ""
        responses, _ = _Reader(self.source, tools, where, actor, self.parts).read(record, document)
        return responses

    def _message(self, step: _Step, given: dict[str, Any], place: str) -> tuple[Message, bool]:
        if step.source not in ROLES:
            raise DataError(f"{place}: source is {step.source!r}, expected system, user or agent")
        said, extra = {"role": ROLES[step.source], "content": step.message}, step.extra or {}
        if ANSWERS in extra:
            said |= {"role": "tool", "tool_call_id": extra[ANSWERS]}
        (message,) = read_one({**said, "tool_calls": extra.get(CALLS)}, place, "message", self.source)
        if step.reasoning_content:
            message["reasoning_content"] = step.reasoning_content
        if step.tool_calls:
            message["tool_calls"] = [
                {"id": call.tool_call_id, "function": {"name": call.function_name, "arguments": call.arguments}}
                for call in step.tool_calls
            ]
        message["extra"] = {
            "atif": {key: value for key, value in given.items() if key not in ("step_id", "observation")}
        }
        return message, step.source == "agent" and not step.is_copied_context and step.llm_call_count != 0

    def _response(self, step: _Step, message: Message, history: list[Message], place: str) -> Response:
        ours = {key.removeprefix(OURS): each for key, each in (step.extra or {}).items() if key.startswith(OURS)}
        metrics = step.metrics or _Metrics()
        response = Response(
            history,
            message,
            self.tools,
            valid=ours.get("valid") is not False,
            truncated=bool(ours.get("truncated")),
            state_key=as_text(ours.get("state_key")) or None,
            actor=as_text(ours.get("actor")) or self.actor,
            prompt_ids=metrics.prompt_token_ids or [],
            response_ids=metrics.completion_token_ids or [],
            logprobs=metrics.logprobs or [],
            entropies=ours["entropies"] if isinstance(ours.get("entropies"), list) else None,
            version=ours["version"] if isinstance(ours.get("version"), int) else 0,
            extra={"turn": ours["turn"]} if isinstance(ours.get("turn"), int) else {},
        )
        if "reward" in ours and (outcome := self.source.outcome(ours["reward"], None, None, place)):
            response.reward = outcome.reward
        if response.logprobs and not response.response_ids:
            self.source.lack("log-probabilities of responses without token ids")
            response.logprobs = []
        checked_ids(response, place)
        return response

    def _result(self, result: _Result, step: _Step, place: str) -> Message:
        """Return what a tool or the environment answered; of an agent without calls, it is the user's."""
        extra = result.extra or {}
        role = "tool" if result.source_call_id or step.tool_calls or ANSWERS in extra else "user"
        said = {"role": role, "content": result.content, "tool_call_id": result.source_call_id or extra.get(ANSWERS)}
        (message,) = read_one(said, place, "observation", self.source)
        return {**message, "extra": {"atif": result.model_dump(exclude_unset=True), "observed": True}}
