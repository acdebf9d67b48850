"""Reward turns for information gains, measured in log-probabilities."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.options import choice
from turnwise.credit.segments import Labels
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.shaping import Convention

Difference = Literal["logprob", "probability"]
"""Unit of a gain: log-probability, or probability (geometric mean over the answer's tokens)."""

Pools = Literal["separate", "joint"]
"""Standardise gains and outcomes of a group separately or jointly."""

Gate = Literal["sigmoid", "cope"]
"""Function that reduces the weight of information as outcomes differ."""


@block(needs=("gold_logprob",))
def reward_gold_gain(credit_R: Credit, batch: Batch, *, difference: Difference = "logprob") -> Credit:
    """Reward a turn with the increase in the gold answer's log-probability: `r_it = b_{i,t+1} - b_it`.

    `b_it` is the column `gold_logprob`, measured before response t. The last response, after which there is no
    measurement, gets the outcome `sum_t r_it` of its trajectory instead.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `gold_logprob`.
        difference: Difference of log-probabilities, or of probabilities: `exp(b_{i,t+1}) - exp(b_it)`.
    """
    reward_R = _gold_gain(batch, difference, needed_by="reward_gold_gain")
    reward_R[batch.trajectories.offsets[1:] - 1] = batch.trajectories.sum(credit_R)
    return reward_R


def _gold_gain(batch: Batch, difference: Difference, *, needed_by: str) -> Float[np.ndarray, " R"]:
    """Return the gain of the gold answer by each response; that of a last response is meaningless."""
    before_R = batch.column("gold_logprob", needed_by=needed_by)
    before_R = np.exp(before_R) if difference == "probability" else before_R
    return batch.trajectories.following(before_R) - before_R


@block()
def weigh_turn_rewards(credit_R: Credit, batch: Batch, *, gain: float = 1.0, outcome: float = 1.0) -> Credit:
    """Multiply the reward of each last response by `outcome` and all others by `gain`."""
    return credit_R * np.where(batch.trajectories.at_last(1.0) > 0, outcome, gain)


@block(needs=("gold_logprob",))
def add_turn_gains(
    credit_R: Credit,
    batch: Batch,
    *,
    weight: float = 0.3,
    discount: float = 1.0,
    difference: Difference = "probability",
    convention: Convention = "paper",
) -> Credit:
    """Add the gold answer's gains from each turn on, each standardised over the same turn of the group.

        A_it + weight * sum_{k >= t} discount^(k - t) z_ik / sqrt(n_it)        n_it gains from turn t on

    z is `(gain - mean) / (std + 1e-6)` over the group's responses of the same turn that are not the last of their
    trajectory (sample deviation); 0 for a single one. A last response has no gain, and gets nothing.

    Args:
        credit_R: `[responses]` advantages from outcomes.
        batch: Their batch, with the column `gold_logprob`.
        weight: Weight of the gains.
        discount: Factor per turn.
        difference: Difference of probabilities, or of log-probabilities.
        convention: "release": population deviation, `sqrt(var + 1e-8)`, and a gain of exactly 0 does not count: its
            turn is merged with the next one, and turns are numbered without it.
    """
    turns = batch.trajectories
    z_R, counted_R = turn_gain_scores(batch, difference, convention, needed_by="add_turn_gains")
    num_R = np.maximum(turns.suffix_sum(counted_R.astype(np.float64)), 1.0)
    gains_R = turns.suffix_sum(z_R, discount=np.where(counted_R, discount, 1.0))
    return credit_R + weight * gains_R / np.sqrt(num_R)


def turn_gain_scores(
    batch: Batch, difference: Difference, convention: Convention, *, needed_by: str
) -> tuple[Float[np.ndarray, " R"], np.ndarray]:
    """Standardise the gold answer's gain by each response over the same turn of the group; see `add_turn_gains`.

    Returns:
        `[responses]` standardised gains, and which of them count.
    """
    choice("difference", difference, Difference)  # for callers that are not blocks
    choice("convention", convention, Convention)
    gain_R = _gold_gain(batch, difference, needed_by=needed_by)
    if convention == "paper":
        counted_R, turn_R = _has_gain(batch), batch.turn_R
        return standardized(gain_R, counted_R, (batch.group_responses.ids, turn_R), ddof=1), counted_R
    counted_R = _has_gain(batch) & (gain_R != 0)
    later_R = batch.trajectories.suffix_sum(counted_R.astype(np.float64))
    number_R = (batch.trajectories.broadcast(batch.trajectories.first(later_R)) - later_R).astype(np.int64)
    return standardized(gain_R, counted_R, (batch.group_responses.ids, number_R), ddof=0, floor=1e-8), counted_R


def _has_gain(batch: Batch) -> np.ndarray:
    """Return whether a measurement follows each response: all but the last of a trajectory."""
    return batch.trajectories.at_last(1.0) == 0


@block()
def standardize_turn_rewards(
    credit_R: Credit, batch: Batch, *, pools: Pools = "separate", convention: Convention = "paper"
) -> Credit:
    """Standardise the rewards of a group's turns: `(r - mean) / (std + 1e-6)` with population deviation.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch.
        pools: "separate": the rewards of last responses (outcomes) and all others separately. "joint": all together.
        convention: "release": the deviation is `sqrt(var + 1e-8)`, and a reward of exactly 0 before the last response
            does not count and stays 0.
    """
    is_last_R = batch.trajectories.at_last(1.0).astype(np.int64)
    counted_R = (is_last_R > 0) | (credit_R != 0) | (convention == "paper")
    keys = (batch.group_responses.ids, is_last_R)[: 2 if pools == "separate" else 1]
    return standardized(credit_R, counted_R, keys, ddof=0, floor=1e-8 if convention == "release" else 0.0)


@block(needs=("info_gain", "length"))
def add_information(
    credit_R: Credit,
    batch: Batch,
    *,
    beta: float = 0.5,
    temperature: float = 0.05,
    gate: Gate = "sigmoid",
    convention: Convention = "paper",
) -> Credit:
    """Add the information gain of a turn's observation, where outcomes of the group agree.

        A_it + beta * g * z(info_gain_it)        g = sigmoid(-std_group(R) / temperature),  R_i = sum_t r_it

    z standardises over the tokens of the group's responses whose `info_gain` is not 0; the others get 0.

    Args:
        credit_R: `[responses]` advantages from outcomes.
        batch: Their batch, with the columns `info_gain` and `length`. R uses its rewards, not `credit_R`.
        beta: Weight of the information.
        temperature: T: the deviation of outcomes, in units of reward, at which g falls from 1/2 to 0.27.
        gate: "sigmoid" as above, at most 1/2. "cope": `exp(-std / temperature)`, at most 1, as in the port of that
            name.
        convention: "release": a gain is first divided by the response's length, and the deviation of a single
            trajectory counts as 1. The code's cap on the deviation of z over the batch is left out because it never
            binds.
    """
    if temperature <= 0:
        raise ConfigError(f"add_information: temperature={temperature} must be positive, in units of reward")
    gain_R = batch.column("info_gain", needed_by="add_information")
    length_R = np.asarray(batch.column("length", needed_by="add_information"))
    std_G = batch.groups.std(batch.trajectories.sum(batch.reward_R), ddof=1)
    if convention == "release":
        gain_R = gain_R / length_R
        std_G = np.where(batch.groups.lengths == 1, 1.0, std_G)
    info_R = standardized(gain_R, gain_R != 0, (batch.group_responses.ids,), ddof=1, count=length_R)
    open_G = np.exp(-std_G / temperature)
    gate_G = open_G if gate == "cope" else open_G / (1.0 + open_G)  # sigmoid without overflow
    return credit_R + beta * batch.group_responses.broadcast(gate_G) * info_R


def standardized(
    value_R: Float[np.ndarray, " R"],
    counted_R: np.ndarray,
    keys: Sequence[np.ndarray],
    *,
    ddof: int,
    floor: float = 0.0,
    count: np.ndarray | None = None,
) -> Float[np.ndarray, " R"]:
    """Standardise counted values that agree in the keys: `(value - mean) / (sqrt(var + floor) + 1e-6)`; others 0."""
    result_R = np.zeros_like(value_R)
    where = np.flatnonzero(counted_R)
    if len(where) == 0:
        return result_R
    parts, value = Labels.of(*(key[where] for key in keys)), value_R[where]
    weight = None if count is None else count[where]
    std = np.sqrt(parts.std(value, ddof=ddof, count=weight) ** 2 + floor)
    result_R[where] = (value - parts.broadcast(parts.mean(value, count=weight))) / (parts.broadcast(std) + 1e-6)
    return result_R
