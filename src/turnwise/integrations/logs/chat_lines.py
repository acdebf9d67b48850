"""Read JSON Lines with the messages of chat completions, one trajectory per line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError, did_you_mean
from turnwise.base.jsonl import read_objects
from turnwise.extensions.gateway.messages import short
from turnwise.integrations.logs.logged import (
    Logged,
    Response,
    member,
    read_history,
    read_outcome,
    read_responses,
    reward_of,
)

OF_RESPONSE = ("reward", "valid", "state_key", "actor")
"""Keys that a message of the assistant may have in addition to those of the API. With `weight` 0, as in files for
fine-tuning, it is an example in the prompt, which the model did not give."""


def read_chat_lines(path: Path, *, reward: str | None = None) -> Iterator[Logged]:
    """Yield the trajectories of a file; see `ReadLog`. Other keys of a line are ignored."""
    for number, line in read_objects(path):
        where = f"{path}, line {number}"
        if "messages" not in line:
            raise DataError(f"{where}: no key 'messages'.{did_you_mean('messages', line)}")
        step = line.get("step", 1)
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise DataError(f"{where}: step={short(step)}, expected a whole number from 1")
        failure = line.get("failure")
        yield Logged(
            where,
            _responses(line, where),
            task=_text(line.get("task")),
            group=_text(line.get("group")),
            outcome=read_outcome(reward_of(line, reward, where), line.get("success"), line.get("info"), where),
            truncated=bool(line.get("truncated")),
            failure=None if failure is None else str(failure),
            model=_text(line.get("model")),
            step=step,
        )


def _responses(line: dict[str, Any], where: str) -> list[Response]:
    given = line["messages"]
    responses = read_responses(read_history(given, where), member(line, "tools", list, where))
    told = [message for message in given if message["role"] == "assistant"]
    for response, message in zip(responses, told, strict=True):
        extra = {name: message[name] for name in OF_RESPONSE if message.get(name) is not None}
        if "reward" in extra:
            own = read_outcome(extra["reward"], None, None, where)
            response.reward = own.reward if own else 0.0
        response.valid = bool(extra.get("valid", True))
        response.state_key = _text(extra.get("state_key")) or None
        response.actor = _text(extra.get("actor"))
    return [response for response, message in zip(responses, told, strict=True) if message.get("weight") != 0]


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else short(value)
