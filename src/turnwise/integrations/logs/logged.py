"""Define what a log says about a trajectory, whatever its format."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from turnwise.base.errors import DataError, EnvironmentFault, did_you_mean
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message, read_message, short
from turnwise.extensions.gateway.outcome import Outcome, as_outcome

Kind = TypeVar("Kind", dict[str, Any], list[Any], str)


@dataclasses.dataclass(slots=True)
class Response:
    """One response of the model.

    Attributes:
        history: Messages before it.
        message: The assistant's message.
        tools: Tools that the model could call, in the form of chat completions.
        reward: Reward of this response alone.
        valid: Whether the environment accepted it.
        truncated: Whether it hit its length limit.
        state_key: Names the state; None: the last message that is not the assistant's.
        actor: Name of the agent that gave it, if several took part.
    """

    history: list[Message]
    message: Message
    tools: list[Any] = dataclasses.field(default_factory=list)
    reward: float = 0.0
    valid: bool = True
    truncated: bool = False
    state_key: str | None = None
    actor: str = ""


@dataclasses.dataclass(slots=True)
class Logged:
    """One trajectory.

    Attributes:
        where: Its place in the file, for errors.
        responses: Responses in order.
        task: Name of the task; empty: the text of the first prompt.
        group: Trajectories with the same group are compared; empty: the task.
        outcome: Reward and success; None if the log has none.
        truncated: Whether it was cut off, such as by a limit of turns.
        failure: Why it cannot be learned from, if so.
        model: Name of the model.
        step: Number of the batch, from 1.
    """

    where: str
    responses: list[Response]
    task: str = ""
    group: str = ""
    outcome: Outcome | None = None
    truncated: bool = False
    failure: str | None = None
    model: str = ""
    step: int = 1


class ReadLog(Protocol):
    """Read a log file."""

    def __call__(self, path: Path, *, reward: str | None) -> Iterator[Logged]:
        """Yield its trajectories.

        Args:
            path: The file.
            reward: Name of the key, scorer or evaluation that gives the reward; None: the format's usual one.

        Raises:
            DataError: The file is not such a log; the message names the place.
        """
        ...


KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
"""Names of JSON's types, for errors."""


def member(given: Mapping[str, Any], key: str, kind: type[Kind], where: str) -> Kind:
    """Return a value of an object; an empty one if it is null or missing.

    Raises:
        DataError: It is of another type.
    """
    value = given.get(key)
    return kind() if value is None else typed(value, kind, f"{where}: {key}")


def typed(value: Any, kind: type[Kind], what: str) -> Kind:
    """Return a value if it is of a type.

    Raises:
        DataError: It is not; the message calls it `what`.
    """
    if not isinstance(value, kind):
        raise DataError(f"{what} is {short(value)}, expected {KINDS[kind]}")
    return value


def read_history(given: Any, where: str) -> list[Message]:
    """Read a list of messages of chat completions.

    Raises:
        DataError: It is not such a list.
    """
    if not isinstance(given, list):
        raise DataError(f"{where}: expected a list of messages, got {type(given).__name__}")
    try:
        return [read_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    except BadRequest as error:
        raise DataError(f"{where}: {error.message}") from None


def read_responses(messages: Sequence[Message], tools: Any = ()) -> list[Response]:
    """Return the responses of one conversation: its messages of the assistant."""
    history = list(messages)
    return [
        Response(history[:index], message, list(tools or ()))
        for index, message in enumerate(history)
        if message["role"] == "assistant"
    ]


def reward_of(line: Mapping[str, Any], name: str | None, where: str) -> Any:
    """Return what a line gives under the key that `--reward` names, usually "reward".

    Raises:
        DataError: A key was named, and the line does not have it.
    """
    if name is not None and name not in line:
        raise DataError(f"{where}: no key {name!r}, which --reward names.{did_you_mean(name, line)}")
    return line.get(name or "reward")


def read_outcome(reward: Any, success: Any, info: Any, where: str) -> Outcome | None:
    """Read how a trajectory ended; None if the log gives no reward and no success.

    Raises:
        DataError: The reward is not a number, or the success not true or false.
    """
    if reward is None and success is None:
        return None
    reward = float(bool(success)) if reward is None else reward
    try:
        return as_outcome({"reward": reward, "success": success, "info": info if isinstance(info, dict) else {}})
    except EnvironmentFault as fault:
        raise DataError(f"{where}: {str(fault).replace('the harness gave', 'found')}") from None
