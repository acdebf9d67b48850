"""Write ATIF, the Agent Trajectory Interchange Format; see `atif` for what it has no field for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.base.version import __version__
from turnwise.extensions.gateway.messages import Message
from turnwise.integrations.logs.atif import ANSWERS, CALLS, NAME, OF_RESPONSE, OURS, TOKENS
from turnwise.integrations.logs.logged import Logged, Response, conversations, messages_of

VERSION = "ATIF-v1.8"


def write_atif(logged: Sequence[Logged], method: str) -> Iterator[dict[str, Any]]:
    """Yield a document per trajectory; conversations after the first are those of sub-agents."""
    for each in logged:
        kept = dict(each.extra.get("atif", {}))
        parts = conversations(each)
        turn = {id(response): number for number, response in enumerate(each.responses)}
        numbered = turn if len(parts) > 1 else {}
        extra = {key: value for key, value in (kept.get("extra") or {}).items() if not key.startswith(OURS)}
        own: dict[str, Any] = {"task": each.task, "group": each.group, "step": each.step, "failure": each.failure}
        if each.outcome:
            own |= {"reward": each.outcome.reward, "success": each.outcome.success, "info": each.outcome.info}
        own |= {"return": each.total, "truncated": each.truncated or None, "method": method or None}
        extra |= {f"{OURS}{key}": value for key, value in own.items() if value not in (None, "", {})}
        document: dict[str, Any] = {
            "schema_version": VERSION,
            "trajectory_id": each.id or None,
            "agent": _agent(each, parts[0] if parts else []),
            **kept,
            "steps": _steps(parts[0], each.after, numbered, method) if parts else _steps([], each.after, {}, method),
            "extra": extra,
        }
        if len(parts) > 1 and not kept.get("subagent_trajectories"):
            document["subagent_trajectories"] = [
                {
                    "schema_version": VERSION,
                    "trajectory_id": f"{each.id or 'trajectory'}-{number}",
                    "agent": _agent(each, part, part[0].actor),
                    "steps": _steps(part, [], numbered, method),
                }
                for number, part in enumerate(parts[1:], start=1)
            ]
        yield {key: value for key, value in document.items() if value is not None}


def _agent(each: Logged, part: Sequence[Response], name: str = "") -> dict[str, Any]:
    agent = {"name": name or NAME, "version": __version__, "model_name": each.model}
    return {key: value for key, value in agent.items() if value} | (
        {"tool_definitions": part[0].tools} if part and part[0].tools else {}
    )


def _steps(part: Sequence[Response], after: Sequence[Message], turn: Mapping[int, int], method: str) -> list[Any]:
    messages = [*messages_of(part), *after] if part else list(after)
    said = {len(response.history): response for response in part}
    steps: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        extra = message.get("extra", {})
        answers = message["role"] == "tool" or extra.get("observed")
        if answers and steps and steps[-1]["source"] != "user":
            result = dict(extra.get("atif") or {"content": message["content"]})
            known = {call["tool_call_id"] for call in steps[-1].get("tool_calls") or ()}
            if (identity := message.get("tool_call_id")) in known:
                result["source_call_id"] = identity
            elif message["role"] == "tool" and (identity or not known):
                result["extra"] = {**(result.get("extra") or {}), ANSWERS: identity or ""}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
        else:
            steps.append({"step_id": len(steps) + 1, **_step(message, said.get(place), turn, method)})
    return steps


def _step(message: Message, response: Response | None, turn: Mapping[int, int], method: str) -> dict[str, Any]:
    role = message["role"]
    source = {"assistant": "agent", "tool": "user"}.get(role, role)
    step = {"source": source, "message": message["content"], **message.get("extra", {}).get("atif", {})}
    if "reasoning_content" in message:
        step["reasoning_content"] = message["reasoning_content"]
    calls = message.get("tool_calls")
    if calls and source != "agent":
        return {**step, "extra": {**(step.get("extra") or {}), CALLS: calls}}
    if role == "tool":
        step["extra"] = {**(step.get("extra") or {}), ANSWERS: message.get("tool_call_id") or ""}
    if calls and "tool_calls" not in step:
        step["tool_calls"] = [
            {
                "tool_call_id": call.get("id") or f"call-{number}",
                "function_name": call["function"]["name"],
                "arguments": _arguments(call["function"]["arguments"]),
            }
            for number, call in enumerate(calls)
        ]
    if response is None:
        return step | ({"is_copied_context": True} if source == "agent" and "llm_call_count" not in step else {})
    if response.response_ids:
        metrics = {"prompt_tokens": len(response.prompt_ids) or None, "completion_tokens": len(response.response_ids)}
        values = (response.prompt_ids, response.response_ids, response.logprobs)
        metrics |= step.get("metrics") or {}
        metrics |= dict(zip(TOKENS, values, strict=True))
        step["metrics"] = {key: value for key, value in metrics.items() if value not in (None, [])}
    own = {name: getattr(response, name) for name in OF_RESPONSE}
    own = {key: value for key, value in own.items() if value}
    own |= {} if response.valid else {"valid": False}
    own |= {} if response.reward is None else {"reward": response.reward}
    own |= {"turn": turn[id(response)]} if id(response) in turn else {}
    if response.advantage is not None:
        own |= {"advantage": response.advantage, "method": method}
    extra = {**(step.get("extra") or {}), **{f"{OURS}{key}": value for key, value in own.items()}}
    return step | ({"extra": extra} if extra else {})


def _arguments(arguments: Any) -> dict[str, Any]:
    """Return arguments as the object that ATIF asks for; a model may have written another value."""
    return arguments if isinstance(arguments, dict) else {"value": arguments}
