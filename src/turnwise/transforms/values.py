"""Credit from state values: what a response changed in the return to be expected."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from turnwise.batch import Batch
from turnwise.transform import Credit, block
from turnwise.transforms.grouping import choice

Unfinished = Literal["zero", "repeat", "next"]
"""What a trajectory that was cut off (`finished` is 0) still had to expect: nothing, as much as before its last
response, or its column `value_next`."""


def value_at_end(
    batch: Batch, last_N: Float[np.ndarray, " N"], *, unfinished: Unfinished, needed_by: str
) -> Float[np.ndarray, " N"]:
    """Value after the last response of every trajectory: 0, or `last_N` where it was cut off and that is to count."""
    if unfinished == "zero":
        return np.zeros(batch.num_trajectories)
    finished_N = batch.trajectories.last(batch.column("finished", needed_by=needed_by))
    return np.where(finished_N > 0, 0.0, last_N)


def _needs(options: Mapping[str, Any]) -> tuple[str, ...]:
    choice("unfinished", options["unfinished"], Unfinished)
    return ("value", *{"zero": (), "repeat": ("finished",), "next": ("finished", "value_next")}[options["unfinished"]])


@block(needs=_needs)
def sum_td_errors(
    credit_R: Credit, batch: Batch, *, discount: float = 1.0, decay: float = 1.0, unfinished: Unfinished = "zero"
) -> Credit:
    """Sum the surprises from a response on: generalised advantage estimation over turns.

        A_t = delta_t + discount * decay * A_{t+1}        delta_t = r_t + discount * value_{t+1} - value_t

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `value`.
        discount: Factor a turn on what comes later.
        decay: lambda: 0 credits a response with its own surprise alone, 1 with its return minus its value.
        unfinished: The value after the last response of a trajectory whose column `finished` is 0; that of the others
            is 0.
    """
    turns, name = batch.trajectories, "sum_td_errors"
    value_R = batch.column("value", needed_by=name)
    last_N = turns.last(batch.column("value_next", needed_by=name) if unfinished == "next" else value_R)
    end_N = value_at_end(batch, last_N, unfinished=unfinished, needed_by=name)
    error_R = credit_R + discount * turns.following(value_R, end=end_N) - value_R
    return turns.suffix_sum(error_R, discount=discount * decay)


@block(needs=("value",))
def reward_turning_points(credit_R: Credit, batch: Batch) -> Credit:
    """Pay a response for what it changed, and the one that turned its trajectory round for all that followed.

        d_t = V_t - V_{t-1}        V_t: outcome expected after response t; V_{-1} before the first, R after the last
        s_t = sign(d_t) * sign(R - V_{-1})
        r_t = R - V_{t-1} at a turning point, d_t elsewhere

    A turning point agrees with the trajectory as a whole where the response before it did not (s_{t-1} < 0 < s_t), and
    the rest goes its way (sign(d_t) = sign(R - V_t)). Of the first response only the latter is asked.

    Args:
        credit_R: `[responses]` rewards; R is their sum.
        batch: Their batch, with the column `value`: the outcome expected is what has been paid so far, plus it.
    """
    turns = batch.trajectories
    value_R = batch.column("value", needed_by="reward_turning_points")
    largest_R = turns.broadcast(turns.sum(np.abs(credit_R)) + turns.max(np.abs(value_R)))
    change_R = credit_R + turns.following(value_R) - value_R
    ahead_R = turns.suffix_sum(credit_R) - value_R  # R - V_{t-1}: what came beyond what was expected
    for values_R in (change_R, ahead_R):  # what is zero but for rounding has no sign
        values_R[np.abs(values_R) <= 1e-12 * largest_R] = 0.0
    agrees_R = np.sign(change_R) * turns.broadcast(np.sign(turns.first(ahead_R)))
    turned_R = ((agrees_R > 0) & (turns.preceding(agrees_R) < 0)) | (batch.turn_R == 0)
    goes_on_R = np.sign(change_R) * np.sign(turns.following(ahead_R)) > 0
    return np.where(turned_R & goes_on_R, ahead_R, change_R)
