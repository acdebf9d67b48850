"""Read what verifiers saves: the results.jsonl of `vf-eval`, and the traces.jsonl of its version 1."""

from collections.abc import Iterator
from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from turnwise.base.errors import DataError, did_you_mean
from turnwise.integrations.logs.logged import Logged, Response, as_text, check, checked_ids, read_responses, reward_of
from turnwise.integrations.logs.messages import Message, read_history, read_one, read_tools
from turnwise.integrations.logs.source import Source


class _Line(BaseModel):
    example_id: Any = Field(validation_alias=AliasChoices("example_id", "id"))  # "id" in files of 2025
    prompt: str | list[Any] | None
    completion: str | list[Any] | None
    info: Any = None
    metrics: Any = None
    is_truncated: bool | None = None


def read_verifiers(source: Source) -> Iterator[Logged]:
    """Yield the trajectories of a file. Rollouts of an example are a group."""
    for where, record in source.records():
        with source.record(where):
            line, tools = check(_Line, record, where), record.get("tool_defs")
            if tools is None and isinstance(line.info, dict):
                tools = line.info.get("oai_tools")
            prompt = _messages(line.prompt, "user", f"{where}: prompt", source)
            completion = _messages(line.completion, "assistant", f"{where}: completion", source)
            messages = completion if completion[: len(prompt)] == prompt else [*prompt, *completion]
            error = record.get("error")
            yield Logged(
                where,
                [
                    response
                    for response in read_responses(messages, read_tools(tools, where, "tool_defs"), where=where)
                    if len(response.history) >= len(prompt)
                ],
                task=" ".join(str(part) for part in (record.get("task"), line.example_id) if part is not None),
                outcome=source.outcome(reward_of(record, source.reward, where), None, line.metrics, where),
                truncated=bool(line.is_truncated),
                failure=_cause(error) if error else None,
                model=as_text(record.get("model")),
                id=as_text(record.get("trajectory_id")),
            )


def _cause(error: Any) -> str:
    return str(error.get("error_chain_str") or error.get("error") or error) if isinstance(error, dict) else str(error)


def _messages(given: Any, role: str, where: str, source: Source) -> list[Message]:
    """Return messages; a text is one."""
    return read_history([{"role": role, "content": given}] if isinstance(given, str) else given or [], where, source)


class _Node(BaseModel, strict=True):
    message: dict[str, Any]
    parent: int | None = None
    sampled: bool = False
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    entropies: list[float] | None = None
    tools: list[Any] = []


class _Reward(BaseModel):
    score: float | None
    weight: float = 1.0


class _Trace(BaseModel):
    nodes: list[Any]
    id: str = ""
    agent: dict[str, Any] = {}
    task: dict[str, Any] = {}
    tools: list[Any] = []
    rewards: dict[str, _Reward | float | None] = {}
    metrics: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    stop_condition: str | None = None


class _Episode(BaseModel):
    traces: list[Any]
    task: dict[str, Any] = {}
    group: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = []


def read_episodes(source: Source) -> Iterator[Logged]:
    """Yield the traces of episodes, each agent's as a trajectory. Those of a group, or else of a task, are compared."""
    for where, record in source.records():
        with source.record(where):
            episode = check(_Episode, record, where)
            for number, given in enumerate(episode.traces):
                place = f"{where}: traces[{number}]"
                with source.record(place):
                    trace = check(_Trace, given, place)
                    if trace.agent.get("trainable") is False:
                        source.lack("traces of agents that are not trained")
                        continue
                    yield _trace(trace, episode, place, source)


def _trace(trace: _Trace, episode: _Episode, where: str, source: Source) -> Logged:
    named = trace.task or episode.task
    data = named.get("data")
    task = (
        named.get("key") or (data.get("name") or data.get("idx") if isinstance(data, dict) else "") or named.get("hash")
    )
    actor = as_text(trace.agent.get("name"))
    errors = trace.errors or episode.errors
    model = next((call.get("model") for call in reversed(trace.calls) if call.get("model")), "")
    return Logged(
        where,
        [*_responses(trace, "" if actor == "agent" else actor, where, source)],
        task=as_text(task),
        group=" ".join(filter(None, (as_text((episode.group or {}).get("id")), actor))) if episode.group else "",
        outcome=source.outcome(_reward(trace, source.reward, where), None, trace.metrics, where),
        truncated=trace.stop_condition not in (None, "agent_completed", "completed", "done"),
        failure=as_text(errors[-1].get("message") or errors[-1].get("type")) if errors else None,
        model=as_text(model),
        id=trace.id,
    )


def _reward(trace: _Trace, name: str | None, where: str) -> Any:
    """Return the sum of the weighted rewards, or the one that `--reward` names."""
    rewards = {
        key: (each.score, each.weight) if isinstance(each, _Reward) else (each, 1.0)
        for key, each in trace.rewards.items()
    }
    if name is not None:
        found = {**trace.metrics, **{key: score for key, (score, _) in rewards.items()}}
        if name not in found:
            raise DataError(f"{where}: no reward {name!r}, which --reward names.{did_you_mean(name, found)}")
        return found[name]
    scored = [(score, weight) for score, weight in rewards.values() if score is not None]
    return sum(score * weight for score, weight in scored) if 0 < len(scored) == len(trace.rewards) else None


def _responses(trace: _Trace, actor: str, where: str, source: Source) -> Iterator[Response]:
    """Yield the sampled nodes of a trace with the path that leads to each."""
    nodes = [check(_Node, node, f"{where}: nodes[{number}]") for number, node in enumerate(trace.nodes)]
    paths: list[list[int]] = []
    read: list[list[Message]] = []
    for number, node in enumerate(nodes):
        if node.parent is not None and not 0 <= node.parent < number:
            raise DataError(f"{where}: nodes[{number}]: parent is {node.parent}, expected an earlier node")
        paths.append([*(paths[node.parent] if node.parent is not None else ()), number])
        read.append(read_one(node.message, where, f"nodes[{number}].message", source))
        if not node.sampled:
            continue
        *path, _ = paths[-1]
        tools = nodes[paths[-1][0]].tools or trace.tools
        response = Response(
            [message for each in path for message in read[each]],
            read[-1][-1],
            read_tools(tools, where),
            actor=actor,
            entropies=node.entropies,
        )
        if node.token_ids and len(node.mask) == len(node.token_ids) and any(node.mask):
            begin, end = node.mask.index(True), len(node.mask) - node.mask[::-1].index(True)
            before = [token for each in path for token in nodes[each].token_ids]
            response.prompt_ids = [*before, *node.token_ids[:begin]]
            response.response_ids, response.logprobs = node.token_ids[begin:end], node.logprobs
        checked_ids(response, f"{where}: nodes[{number}]")
        yield response
