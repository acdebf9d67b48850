"""Read and write JSON Lines with the messages of chat completions, one trajectory per line."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from turnwise.integrations.logs.logged import (
    CONTRADICTING,
    BatchNumber,
    Logged,
    Names,
    Response,
    as_text,
    check,
    conversations,
    messages_of,
    read_responses,
    reward_of,
)
from turnwise.integrations.logs.messages import as_chat, read_one, read_tools
from turnwise.integrations.logs.source import Source

ADVANTAGE, METHOD = "turnwise.advantage", "turnwise.method"
"""Columns with the credit of responses, and with the name of the method that assigned it."""


class _Line(BatchNumber):
    messages: list[Any]
    system: Any = None
    tools: Any = None
    failure: Any = None
    truncated: bool | None = Field(default=None, strict=False)
    trajectory: Any = None


class _Own(BaseModel):
    """What an assistant's message may have in addition to what APIs record.

    With `weight` 0, as in files for fine-tuning, it is an example in the prompt, which the model did not give.
    """

    reward: Any = None
    valid: bool | None = None
    truncated: bool | None = None
    state_key: Any = None
    actor: Any = None
    weight: float | None = Field(default=None, validation_alias=AliasChoices("weight", "loss_weight"))


def read_chat_lines(source: Source) -> Iterator[Logged]:
    """Yield the trajectories of a file. Other keys of a line are ignored; lines of a task's `trajectory` are one."""
    found: dict[Any, Logged] = {}
    names = Names()
    lines: dict[Any, list[Any]] = {}
    for where, record in source.records():
        with source.record(where):
            read = _logged(record, where, source)
            facts = {"step": read.step, "task": read.task, "group": read.group}
            key = (read.id, names.number(read.id, facts)) if read.id else where
            first = found.setdefault(key, read)
            if first is read:
                lines[key] = [record] if read.id else []
            elif record in lines[key]:
                source.repeated += 1
            else:
                lines[key].append(record)
                first.responses += read.responses
                if first.outcome and read.outcome and first.outcome.reward != read.outcome.reward:
                    source.lack(CONTRADICTING)
                first.outcome, first.failure = read.outcome or first.outcome, first.failure or read.failure
                first.truncated, first.after = first.truncated or read.truncated, read.after
    yield from found.values()


def _logged(record: Any, where: str, source: Source) -> Logged:
    line = check(_Line, record, where)
    given = [*([{"role": "system", "content": line.system}] if line.system else []), *line.messages]
    messages, own = [], []
    for number, message in enumerate(given):
        read = read_one(message, where, f"messages[{number}]", source)
        messages += read
        own += [check(_Own, message, f"{where}: messages[{number}]")] * sum(m["role"] == "assistant" for m in read)
    responses = read_responses(messages, read_tools(line.tools, where), where=where)
    failure = None if line.failure in (None, False) else str(line.failure)
    for response, fields in zip(responses, own, strict=True):
        if fields.reward is not None:
            outcome = source.outcome(fields.reward, None, None, where)
            response.reward = outcome.reward if outcome else 0.0
            failure = failure or (None if outcome else "the reward of a message is not a number")
        response.valid, response.truncated = fields.valid is not False, bool(fields.truncated)
        response.state_key = as_text(fields.state_key) or None
        response.actor = as_text(fields.actor)
    return Logged(
        where,
        [response for response, fields in zip(responses, own, strict=True) if fields.weight != 0],
        task=as_text(record.get("task")),
        group=as_text(record.get("group")),
        outcome=source.outcome(
            reward_of(record, source.reward, where), record.get("success"), record.get("info"), where
        ),
        truncated=bool(line.truncated),
        failure=failure,
        model=as_text(record.get("model")),
        step=line.step,
        id=as_text(line.trajectory),
        after=messages[1 + max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1) :],
    )


def write_chat_lines(logged: Sequence[Logged], method: str) -> Iterator[dict[str, Any]]:
    """Yield a line per conversation; a trajectory of several has lines with one `trajectory`."""
    for each in logged:
        parts = conversations(each)
        for part in parts:
            after = each.after if part is parts[-1] else []
            line: dict[str, Any] = {"task": each.task, "group": each.group, "step": each.step, "model": each.model}
            if len(parts) > 1:
                line["trajectory"] = each.id or each.where
            if each.outcome:
                line |= {"reward": each.outcome.reward, "success": each.outcome.success, "info": each.outcome.info}
            line |= {"return": each.total, "truncated": each.truncated, "failure": each.failure}
            kept = {key: value for key, value in line.items() if value not in (None, "", {})}
            yield {**kept, **columns(part, method), **conversation(part, after)}


def columns(part: Sequence[Response], method: str) -> dict[str, Any]:
    """Return the credit of responses as columns of a line."""
    if all(response.advantage is None for response in part):
        return {}
    return {ADVANTAGE: [response.advantage for response in part], METHOD: method}


def conversation(part: Sequence[Response], after: Sequence[Any] = (), *, own: bool = True) -> dict[str, Any]:
    """Return the messages and tools of a conversation.

    Args:
        part: Its responses.
        after: Messages after the last one.
        own: Whether to add to messages what APIs do not record. What the model did not say has weight 0 either way.
    """
    messages = as_chat([*messages_of(part), *after])
    said = {len(response.history): response for response in part}
    for place, message in enumerate(messages):
        if (response := said.get(place) if own else None) is not None:
            fields = {key: getattr(response, key) for key in ("state_key", "actor", "truncated")}
            message |= {} if response.reward is None else {"reward": response.reward}
            message |= {key: value for key, value in fields.items() if value}
            message |= {} if response.valid else {"valid": False}
        elif message["role"] == "assistant" and place not in said:
            message["weight"] = 0
    return {"messages": messages, **({"tools": part[-1].tools} if part[-1].tools else {})}
