"""Define what a log says about a trajectory, whatever its format."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic
from pydantic import BaseModel, Field

from turnwise.base.errors import DataError, EnvironmentFault, did_you_mean
from turnwise.environments.tool_calls import without_reasoning
from turnwise.extensions.gateway.messages import Message, short
from turnwise.extensions.gateway.outcome import Outcome, as_outcome
from turnwise.rollout.trajectory import Trajectory

Model = TypeVar("Model", bound=BaseModel)
EXPECTED = {
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "greater_than_equal": "a whole number from 1",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_pattern_mismatch": "a version of ATIF, such as ATIF-v1.8",
}
"""What a value of another type should have been, by pydantic's name of the error."""


CONTRADICTING = "records that give their trajectory another reward than an earlier one: the last one counts"


RECENT = 64
"""Trajectories of one name to which a record may belong that does not say all that they do."""


def numbered(name: str, number: int) -> str:
    """Name a trajectory whose name is used again, such as "play (2)" for number 1."""
    return f"{name} ({number + 1})" if number else name


class Names:
    """Tell trajectories apart whose name is used again, such as a number that restarts with each task."""

    def __init__(self) -> None:
        self._facts: dict[str, list[dict[str, str]]] = {}
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}

    def number(self, name: str, facts: Mapping[str, Any]) -> int:
        """Return which trajectory of a name a record belongs to: the latest one that it does not contradict.

        Args:
            name: Name of the trajectory in the log.
            facts: Task, group and batch of the record; empty ones are not known.
        """
        given = {key: text for key, value in facts.items() if (text := as_text(value))}
        known = self._facts.setdefault(name, [])
        fits = lambda number: all(known[number].get(fact, text) == text for fact, text in given.items())  # noqa: E731
        number = self._numbers.get((name, frozenset(given.items())))
        if number is None or known[number] != given:  # a later one may fit a record that does not say all
            recent = range(len(known) - 1, max(-1, len(known) - 1 - RECENT), -1)
            number = next(filter(fits, recent), len(known))
            known += [{}] * (number == len(known))
        known[number] = {**known[number], **given}
        self._numbers[name, frozenset(known[number].items())] = number
        return number


class BatchNumber(BaseModel, strict=True):
    """The number of a batch; texts and booleans are none."""

    step: int = Field(default=1, ge=1)


@dataclasses.dataclass(slots=True)
class Response:
    """One response of the model.

    Attributes:
        history: Messages before it, as `turnwise.integrations.logs.messages` reads them.
        message: The assistant's message.
        tools: Tools that the model could call, in the form of chat completions.
        reward: Reward of this response alone; None: the log gives none.
        valid: Whether the environment accepted it.
        truncated: Whether it hit its length limit.
        state_key: Names the state; None: the last message that is not the assistant's.
        actor: Name of the agent that gave it, if several took part.
        prompt_ids, response_ids: Tokens of the whole prompt and of the response, if the log has them.
        logprobs, entropies: Of the tokens of the response when it was sampled (nats), if known.
        version: Training steps behind the weights that sampled it.
        advantage: Its credit, if a method assigned one.
        extra: What else the log says about it, by key.
    """

    history: list[Message]
    message: Message
    tools: list[Any] = dataclasses.field(default_factory=list)
    reward: float | None = None
    valid: bool = True
    truncated: bool = False
    state_key: str | None = None
    actor: str = ""
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    response_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    entropies: list[float] | None = None
    version: int = 0
    advantage: float | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Logged:
    """One trajectory."""

    where: str  # its place in the file, for errors
    responses: list[Response]  # responses in order
    task: str = ""  # name of the task; empty: the text of the first prompt
    group: str = ""  # trajectories with the same group are compared; empty: the task
    outcome: Outcome | None = None  # reward and success; None if the log has none
    truncated: bool = False  # whether it was cut off, such as by a limit of turns
    failure: str | None = None  # why it cannot be learned from, if so
    model: str = ""  # name of the model
    step: int = 1  # number of the batch, from 1
    id: str = ""  # identifies it, so that it counts once; empty: the log has no identity
    after: list[Message] = dataclasses.field(default_factory=list)  # messages after the last response
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)  # what else the log says about it, by key
    # It as a trajectory, which is made to see whether that is possible, until somebody asks for it
    made: Trajectory | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def total(self) -> float:
        """Sum of its rewards."""
        return sum(each.reward or 0.0 for each in self.responses) + (self.outcome.reward if self.outcome else 0.0)

    @property
    def rewarded(self) -> bool:
        """Whether the log gives a reward, be it 0."""
        return self.outcome is not None or any(each.reward is not None for each in self.responses)


def check(model: type[Model], value: Any, where: str) -> Model:
    """Return a value as a model of what a format says.

    Raises:
        DataError: A key is missing, or a value is of another type.
    """
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False)
    first, parts = errors[0], errors[0]["loc"]
    alike = [each for each in errors if each["loc"][:-1] == parts[:-1] and each["input"] is first["input"]]
    parts = parts[:-1] if len(alike) > 1 else parts  # the last one names what it may be, as does the name of a model
    keys = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts if not str(part).startswith("_")]
    if first["type"] == "missing":
        key = str(first["loc"][-1])
        inside = first["input"] if isinstance(first["input"], dict) else {}
        raise DataError(f"{where}: no key {key!r}.{did_you_mean(key, map(str, inside))}")
    expected = " or ".join(dict.fromkeys(EXPECTED.get(each["type"], each["msg"]) for each in alike))
    raise DataError(
        f"{where}{': ' + ''.join(keys).lstrip('.') if keys else ''} is {short(first['input'])}, expected {expected}"
    )


def checked_ids(response: Response, where: str) -> None:
    """Raise unless the tokens of a response are such, with a log-probability each or none.

    Raises:
        DataError: They are not.
    """
    if wrong := next(
        (token for token in (*response.prompt_ids, *response.response_ids) if not 0 <= token < 2**31), None
    ):
        raise DataError(f"{where}: the token id {short(wrong)} is not one, expected 0 to 2147483647")
    for name, values in (("log-probabilities", response.logprobs), ("entropies", response.entropies or [])):
        if values and len(values) != len(response.response_ids):
            raise DataError(
                f"{where}: {len(values)} {name} of {len(response.response_ids)} tokens, expected one for each"
            )
        if (wrong := next((value for value in values if not math.isfinite(value)), None)) is not None:
            raise DataError(f"{where}: {short(wrong)} is one of the {name}, expected finite numbers")


MOST_OF_HISTORIES = 1 << 24
"""Most messages in the histories of a conversation's responses, which grow with the square of its length."""


def read_responses(messages: Sequence[Message], tools: Any = (), *, where: str) -> list[Response]:
    """Return the responses of one conversation: its messages of the assistant.

    Raises:
        DataError: It is too long.
    """
    history = list(messages)
    if sum(place for place, message in enumerate(history) if message["role"] == "assistant") > MOST_OF_HISTORIES:
        raise DataError(f"{where}: a conversation of {len(history):,} messages is too long; split it")
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
    kept = {} if not isinstance(info, dict) else {name: value for name, value in info.items() if name != "score"}
    if isinstance(info, dict) and isinstance(score := info.get("score"), int | float) and math.isfinite(score):
        kept["score"] = score  # only a number means the same to us
    try:
        return as_outcome({"reward": reward, "success": success, "info": kept})
    except EnvironmentFault as fault:
        said = str(fault).replace("the harness gave", "found").replace("the environment answered with", "found")
        raise DataError(f"{where}: {said}") from None


def as_text(value: Any) -> str:
    """Return a name that a log may give as a number."""
    return "" if value is None else value if isinstance(value, str) else short(value)


def is_same(one: Message, other: Message) -> bool:
    """Return whether two messages say the same; agents leave reasoning out when they send a response again."""
    called = [[call["function"] for call in message.get("tool_calls", ())] for message in (one, other)]
    said = [without_reasoning(message["content"]).strip() for message in (one, other)]
    return one["role"] == other["role"] and said[0] == said[1] and called[0] == called[1]


def continues(one: Response, other: Response) -> bool:
    """Return whether a response's history begins with that of an earlier one and its response."""
    length = len(one.history)
    return (
        len(other.history) > length
        and other.tools == one.tools
        and is_same(other.history[length], one.message)
        and all(map(is_same, other.history, one.history))
    )


def conversations(logged: Logged) -> list[list[Response]]:
    """Part the responses of a trajectory: each continues the last one of its conversation."""
    parts: list[list[Response]] = []
    for response in logged.responses:
        part = next((part for part in reversed(parts) if continues(part[-1], response)), None)
        if part is None:
            parts.append(part := [])
        part.append(response)
    return parts


def messages_of(part: Sequence[Response]) -> list[Message]:
    """Return the messages of a conversation, each response as the model gave it, not as the agent sent it again."""
    messages = [*part[-1].history, part[-1].message]
    for response in part:
        messages[len(response.history)] = response.message
    return messages
