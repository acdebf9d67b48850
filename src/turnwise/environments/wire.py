"""Exchange messages with less trusted processes as data: JSON in frames of bounded length, read by a schema.

What a worker, or the process of a check, answers may be written by an agent. It is never unpickled: a message is a
model below, and whatever does not fit one is a `ProtocolError`.
"""

import json
import math
import struct
from collections.abc import Hashable
from typing import Annotated, Any, Self

import pydantic

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import SeatStep, Step, checked_step, set_of
from turnwise.environments.plain import sound_text

HEAD = struct.Struct("<Q")
"""Length of the message that follows (bytes)."""

Seconds = Annotated[float, pydantic.Field(ge=0, le=1e9)]
"""A time that a less trusted process claims; sums of many stay finite."""
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
Text = Annotated[str, pydantic.BeforeValidator(lambda text: sound_text(text) if isinstance(text, str) else text)]
"""A text, in which "?" replaces what UTF-8 cannot encode."""


class ProtocolError(Exception):
    """A less trusted process sent something that is not a message."""


class Message(pydantic.BaseModel):
    """A message; unknown fields and other types are refused."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True)

    def framed(self) -> bytes:
        """Serialize the message, with its length in front."""
        body = self.model_dump_json().encode()
        return HEAD.pack(len(body)) + body

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read a message.

        Raises:
            ProtocolError: It does not fit the schema.
        """
        try:
            return cls.model_validate_json(body)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:80] or "message"
            raise ProtocolError(f"{where}: {first['msg'][:200]}") from None


class PlainStep(Message):
    """A `Step` as data, or a `SeatStep` if it has a `seat`."""

    observation: Text
    reward: Finite
    rewards: dict[str, Finite] | None
    terminated: bool
    truncated: bool
    valid: bool
    state_key: pydantic.JsonValue
    admissible: list[str] | None
    info: dict[str, pydantic.JsonValue]
    seat: int | None = None
    ends: list["PlainStep"] | None = None

    @classmethod
    def of(cls, step: Step) -> Self:
        """Convert a step that `checked_step` has checked."""
        return cls(
            **{name: getattr(step, name) for name in ("observation", "reward", "terminated", "truncated", "valid")},
            rewards=None if step.rewards is None else dict(step.rewards),
            state_key=key_as_json(step.state_key),
            admissible=None if step.admissible is None else list(step.admissible),
            info=dict(step.info),
            seat=step.seat if isinstance(step, SeatStep) else None,
            ends=[cls.of(checked_step(each)) for each in step.ends] if isinstance(step, SeatStep) else None,
        )

    def step(self, max_observation_chars: int) -> Step:
        """Return the step, checked as if the environment had answered here.

        Raises:
            ProtocolError: A field would not pass `checked_step`.
        """
        fields = {**vars(self), "state_key": key_from_json(self.state_key)}
        seat, ends = fields.pop("seat"), fields.pop("ends")
        try:
            if seat is None:
                step = checked_step(Step(**fields))
            else:
                last = tuple(each.step(max_observation_chars) for each in ends or ())
                step = checked_step(SeatStep(**fields, seat=seat, ends=last))
        except EnvironmentFault as fault:
            raise ProtocolError(str(fault)) from None
        if len(step.observation) > max_observation_chars:
            raise ProtocolError(f"an observation of {len(step.observation)} characters")
        return step


class Frames:
    """Split a stream of bytes into messages.

    Args:
        longest: Maximum message size (bytes).
    """

    def __init__(self, longest: int):
        self.longest = longest
        self._received = bytearray()

    def __len__(self) -> int:
        return len(self._received)

    def add(self, data: bytes) -> None:
        """Append what arrived."""
        self._received += data

    def next(self) -> bytes | None:
        """Return the next message, or None until it is complete.

        Raises:
            ProtocolError: The length is out of bounds, found before the message is received.
        """
        if len(self._received) < HEAD.size:
            return None
        size = HEAD.unpack_from(self._received)[0]
        if not 0 < size <= self.longest:
            raise ProtocolError(f"a message of {size} bytes, expected 1 to {self.longest}")
        end = HEAD.size + size
        if len(self._received) < end:
            return None
        body = bytes(self._received[HEAD.size : end])
        del self._received[:end]
        return body


def key_as_json(key: Any) -> Any:
    """Convert a state key that `checked_key` has checked; equal keys give equal JSON in every process."""
    if isinstance(key, tuple):
        return [key_as_json(part) for part in key]
    if isinstance(key, frozenset):
        return {"set": sorted((key_as_json(part) for part in key), key=lambda part: json.dumps(part, sort_keys=True))}
    if isinstance(key, bytes):
        return {"bytes": key.hex()}
    if isinstance(key, float) and not math.isfinite(key):
        return {"float": str(key)}
    return sound_text(key) if isinstance(key, str) else key


def key_from_json(record: Any) -> Hashable:
    """Return the state key that `key_as_json` converted.

    Raises:
        ProtocolError: It is not such a key.
    """
    if isinstance(record, list):
        return tuple(map(key_from_json, record))
    if not isinstance(record, dict):
        return record
    try:
        [(kind, value)] = record.items()
        if kind == "set":
            return set_of([*map(key_from_json, value)])
        return {"bytes": bytes.fromhex, "float": float}[kind](value)
    except (ValueError, TypeError, KeyError):
        raise ProtocolError("state_key: not a key") from None
