"""Read the reward that a harness gives."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from turnwise.base.errors import EnvironmentFault, did_you_mean, text_of
from turnwise.base.terminal import visible
from turnwise.environments.base import MAX_REWARD, checked_flag, checked_info, shown
from turnwise.environments.tool_calls import read_json

FIELDS = ("reward", "success", "info")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a trajectory ended."""

    reward: float  # reward of the trajectory, given to its last response
    success: bool  # whether the task was solved
    info: dict[str, Any]  # further values by name, recorded as JSON


def as_outcome(given: Any) -> Outcome:
    """Read a number, or an object with `reward`, and perhaps `success` (default: a positive reward) and `info`.

    Raises:
        EnvironmentFault: It is neither, the reward is not finite or too large, or `info` cannot be recorded.
    """
    try:
        return _outcome(dict(given) if isinstance(given, Mapping) else {"reward": given})
    except EnvironmentFault:
        raise
    except Exception as error:  # a harness may give objects of any class, whose methods raise
        cause = f"{type(error).__name__}: {' '.join(text_of(error).split())[:300]}"
        raise EnvironmentFault(f"the harness gave what cannot be read: {visible(cause)}") from None


def _outcome(data: Mapping[Any, Any]) -> Outcome:
    if unknown := [str(name) for name in data if name not in FIELDS]:
        raise EnvironmentFault(f"the harness gave {unknown[0][:80]!r}.{did_you_mean(unknown[0][:80], FIELDS)}")
    reward: Any = data.get("reward")
    try:
        value = math.nan if isinstance(reward, str) else float(reward)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= MAX_REWARD:
        raise EnvironmentFault(
            f"the harness gave the reward {shown(reward)}, expected a finite number from -{MAX_REWARD:,.0f} to "
            f'{MAX_REWARD:,.0f}, or an object such as {{"reward": 1.0, "success": true}}'
        )
    success, info = data.get("success"), data.get("info")
    if info is not None and not isinstance(info, Mapping):
        raise EnvironmentFault(f"the harness gave info = {shown(info)}, expected an object")
    plain = checked_info(info or {})  # what fails here fails no record
    return Outcome(value, value > 0 if success is None else checked_flag(success, "success"), plain)


def last_line(output: str, *, needed: bool = False) -> Outcome | None:
    """Read the reward from the last line of a program's output; None if that line is not a reward.

    Raises:
        EnvironmentFault: The reward is not valid, or `needed` and another text stands in its place.
    """
    line = output.strip().rpartition("\n")[2].rpartition("\r")[2]  # JSON may hold other ends of lines
    try:
        value = read_json(line) if line else None
    except ValueError:
        value = None
    if isinstance(value, int | float) or (isinstance(value, dict) and (needed or "reward" in value)):
        return as_outcome(value)
    if line and needed:
        raise EnvironmentFault(
            f"it gave no reward: the last line of its output is {shown(line)}, expected JSON such as 1.0 or "
            '{"reward": 1.0, "success": true}'
        )
    return None
