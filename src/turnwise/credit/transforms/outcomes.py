"""Subtract outcome baselines: halves of the group, virtual trajectories, history of the task, tokens."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from turnwise.base.errors import BatchError, ConfigError
from turnwise.base.shapes import Bool, Float
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Labels
from turnwise.credit.transform import Credit, State, Transform, block, chain
from turnwise.credit.transforms.baselines import Lone, center_by_group
from turnwise.credit.transforms.grouping import Members
from turnwise.credit.transforms.scaling import scale_by_group_std

Metric = Literal["entropy", "length"]
"""Metric that sorts the trajectories of a group: mean entropy of their tokens, or number of tokens."""

Ties = Literal["share", "order"]
"""How to split ties at the median: each trajectory in both halves proportionally, or the earlier in the lower half."""


def success_of_trajectories(batch: Batch, *, needed_by: str) -> Float[np.ndarray, " N"]:
    """Return the column `success`, one value per trajectory.

    Raises:
        BatchError: The column is missing, varies within a trajectory, or a value is not between 0 and 1.
    """
    success_R = batch.column("success", needed_by=needed_by)
    success_N = batch.trajectories.first(success_R)
    wrong = np.flatnonzero((success_R < 0) | (success_R > 1) | (success_R != batch.trajectories.broadcast(success_N)))
    if len(wrong):
        raise BatchError(
            f"{needed_by} needs one success between 0 and 1 per trajectory, got {success_R[wrong[0]]} "
            f"({batch.place(int(wrong[0]))}); scale it, and repeat it on all turns"
        )
    return success_N


def is_correct(batch: Batch, *, needed_by: str) -> Bool[np.ndarray, " N"]:
    """Return whether each trajectory is correct: `success` above 1/2."""
    return success_of_trajectories(batch, needed_by=needed_by) > 0.5


@block(needs=("success",))
def success_return(credit_R: Credit, batch: Batch, *, low: float = 0.0, high: float = 1.0) -> Credit:
    """Credit every response with its trajectory's success instead of the reward: `low + (high - low) * success`.

    Args:
        credit_R: Not read.
        batch: A batch with the column `success`.
        low: Return of a failure.
        high: Return of a success.
    """
    success_N = success_of_trajectories(batch, needed_by="success_return")
    return batch.trajectories.broadcast(low + (high - low) * success_N)


@block(needs=lambda options: ("entropy", "length") if options["metric"] == "entropy" else ("length",))
def center_by_halves(
    credit_R: Credit,
    batch: Batch,
    *,
    metric: Metric = "entropy",
    mu: float = 1.0,
    efficiency: float = 1.0,
    ties: Ties = "share",
    lone: Lone = "zero",
) -> Credit:
    """Split a group at the median of a metric and subtract the means of its halves.

        A_i = mu * (e_i * R_i - other_i) + (1 - mu) * (R_i - own_i)
        own_i = mean(R) over the trajectory's half, other_i = mean(e * R) over the other one
        e_i = efficiency in the half to discourage, 1 in the other one

    The lower half has n // 2 of the n trajectories.

    Args:
        credit_R: `[responses]` returns, one value per trajectory.
        batch: Their batch, with the metric's columns.
        metric: "entropy": mean token entropy of the trajectory; "length": its generated tokens.
        mu: Weight of the comparison with the other half.
        efficiency: Factor on the returns of the half to discourage (the longer one, or the one of lower entropy), in
            the comparison with the other half.
        ties: Trajectories of equal metric at the median belong to both halves proportionally ("share"), or the earlier
            ones of the batch to the lower half ("order").
        lone: The only trajectory of a group gets 0 ("zero"), or its own value ("keep"), as a member of the higher half.
    """
    groups, num_G = batch.groups, batch.groups.lengths
    return_N = Members(credit_R, batch, needed_by="center_by_halves").values
    low_N = _share_of_lower_half(batch, metric, ties)
    mean_G = groups.mean(return_N)
    excess_N = return_N - groups.broadcast(mean_G)  # so that equal returns give exactly 0
    low_G = mean_G + groups.sum(low_N * excess_N) / np.maximum(num_G // 2, 1)
    high_G = mean_G + groups.sum((1.0 - low_N) * excess_N) / (num_G - num_G // 2)
    own_N = groups.broadcast(low_G) + (1.0 - low_N) * groups.broadcast(high_G - low_G)
    if metric == "entropy":
        low_G, leave_N = efficiency * low_G, low_N
    else:
        high_G, leave_N = efficiency * high_G, 1.0 - low_N
    other_N = groups.broadcast(low_G) + low_N * groups.broadcast(high_G - low_G)
    counted_N = return_N - mu * (1.0 - efficiency) * leave_N * return_N
    credit_N = counted_N - (own_N + mu * (other_N - own_N))
    alone_N = groups.broadcast(num_G == 1)
    return batch.trajectories.broadcast(np.where(alone_N, counted_N if lone == "keep" else 0.0, credit_N))


def _share_of_lower_half(batch: Batch, metric: Metric, ties: Ties) -> Float[np.ndarray, " N"]:
    """Return the fraction of each trajectory in the lower half: 1, 0, or between for ties at the median."""
    length_R = batch.column("length", needed_by="center_by_halves").astype(np.float64)
    if metric == "length":
        metric_N = batch.trajectories.sum(length_R)
    else:
        entropy_R = batch.column("entropy", needed_by="center_by_halves")
        metric_N = batch.trajectories.mean(entropy_R, count=length_R)
    groups = batch.groups
    places = (groups.positions,) if ties == "order" else ()
    equal = Labels.of(groups.ids, metric_N, *places)  # numbered by group, then by metric
    group_of = equal.first(groups.ids)
    num_lower = np.cumsum(equal.lengths) - equal.lengths - groups.offsets[group_of]
    share = (groups.lengths[group_of] // 2 - num_lower) / equal.lengths
    return equal.broadcast(np.clip(share, 0.0, 1.0))


@block()
def standardize_with_virtual(
    credit_R: Credit,
    batch: Batch,
    *,
    value: float,
    num_virtual: int = 1,
    ddof: int = 1,
    eps: float = 1e-6,
    lone: Lone = "zero",
) -> Credit:
    """Standardise a group to which virtual trajectories of the best return are added.

        A_i = (R_i - mean') / (std' + eps)

    Mean and standard deviation run over the group's returns and `num_virtual` times `value`.

    Args:
        credit_R: `[responses]` returns, one value per trajectory.
        batch: Their batch.
        value: Best possible return.
        num_virtual: Number of virtual trajectories.
        ddof: Divisor `n - ddof`: 1 for the sample, 0 for the population.
        eps: Added to the standard deviation.
        lone: The only trajectory of a group gets 0 ("zero"), or its own value ("keep").

    Raises:
        BatchError: A return exceeds `value`.
    """
    if num_virtual < 0:
        raise ConfigError(f"num_virtual={num_virtual} is negative; 0 adds no virtual trajectory")
    members = Members(credit_R, batch, needed_by="standardize_with_virtual")
    if credit_R.max() > value + 1e-9 * max(1.0, abs(value)):  # a sum of rewards rounds
        row = int(credit_R.argmax())
        raise BatchError(
            f"standardize_with_virtual has a return of {credit_R[row]} ({batch.place(row)}) above the "
            f"virtual one, {value}; set it to the largest return of the task"
        )
    groups, return_N = batch.groups, members.values
    total_G = groups.lengths + num_virtual
    mean_G = groups.mean(return_N)
    mean_G = mean_G + num_virtual * (value - mean_G) / total_G
    centered_N = return_N - groups.broadcast(mean_G)
    square_G = groups.sum(centered_N**2) + num_virtual * (value - mean_G) ** 2
    std_G = np.sqrt(square_G / np.maximum(total_G - ddof, 1))
    alone_N = return_N if lone == "keep" else np.zeros_like(return_N)
    return members.broadcast(np.where(members.is_lone(), alone_N, centered_N / groups.broadcast(std_G + eps)))


def subtract_shrunk_mean(*, unseen: float | None = None, strength: float = 0.0) -> Transform:
    """Subtract a baseline between the group's mean and the task's mean return so far; keeps state.

        A_i = R_i - (w * mean(R) + (1 - w) * V)        w = D / (D + 1/K), D = max(0, (mean(R) - V)^2 - 1/K)
        V = (sum of earlier returns + strength * unseen) / (number of earlier trajectories + strength)

    `V` counts all earlier trajectories of the `task`, `K` is the group's size. 1/K bounds the variance of
    the mean of K returns between -1 and 1. Only a larger difference moves the baseline away from V.

    Args:
        unseen: V of a task without a history; None for the group's own mean.
        strength: Trajectories that `unseen` counts as once a task has a history.

    Raises:
        ConfigError: `unseen` is not between -1 and 1, or `strength` is negative or has no `unseen`.
        BatchError: A return is not between -1 and 1, or a group holds several tasks.
    """
    if unseen is not None and not -1.0 <= unseen <= 1.0:
        raise ConfigError(f"unseen={unseen} must be between -1 and 1, like the returns")
    if strength < 0 or (strength and unseen is None):
        raise ConfigError(
            f"strength={strength:g} with unseen={unseen} must be 0, or a number of trajectories that return unseen; "
            "set unseen, such as 0"
        )
    name = f"subtract_shrunk_mean(unseen={unseen!r}, strength={strength!r})"

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        history: Mapping[str, Any] = state or {}
        task_G = task_of_groups(batch, needed_by="subtract_shrunk_mean")
        members = Members(credit_R, batch, needed_by="subtract_shrunk_mean")
        if np.abs(members.values).max() > 1:
            row = int(np.abs(credit_R).argmax())
            raise BatchError(
                f"subtract_shrunk_mean has a return of {credit_R[row]} ({batch.place(row)}), expected "
                "-1 to 1; put success_return(low=-1.0) before it"
            )
        num_G, mean_G = batch.groups.lengths, batch.groups.mean(members.values)
        new_N = is_new(batch)
        new_G, of_new_G = batch.groups.sum(new_N), batch.groups.sum(new_N * members.values)
        prior_G = mean_G.copy()
        after = dict(history)
        for g, task in enumerate(task_G):
            if task in history:
                total, count = history[task]
                prior_G[g] = (total + strength * (unseen or 0.0)) / (count + strength)
            elif unseen is not None:
                prior_G[g] = unseen
            if new_G[g]:
                total, count = after.get(task, (0.0, 0))
                after[task] = [total + float(of_new_G[g]), count + int(new_G[g])]
        excess_G = np.maximum(0.0, (mean_G - prior_G) ** 2 - 1.0 / num_G)
        weight_G = excess_G / (excess_G + 1.0 / num_G)
        baseline_G = prior_G + weight_G * (mean_G - prior_G)
        return members.broadcast(members.values - batch.groups.broadcast(baseline_G)), after

    return Transform(name, update, init=dict, needs=("task",))


def is_new(batch: Batch) -> Float[np.ndarray, " N"]:
    """Return 1 for each trajectory of this step, and 0 for a replay of a store, which a history has already."""
    replayed_R = batch.columns.get("replayed", np.zeros(batch.num_responses))
    return (batch.trajectories.first(replayed_R) == 0).astype(np.float64)


def task_of_groups(batch: Batch, *, needed_by: str) -> list[str]:
    """Return the task of each group, which all its responses must have."""
    task_R = batch.column("task", needed_by=needed_by)
    task_G = batch.group_responses.first(task_R)
    differs = np.flatnonzero(task_R != batch.group_responses.broadcast(task_G))
    if len(differs):
        row = int(differs[0])
        raise BatchError(
            f"{needed_by} needs one task per group, but {task_R[row]!r} ({batch.place(row)}) is not the task of "
            "the group's first response; give each prompt its own group"
        )
    return task_G.tolist()


@block(needs=("length",))
def standardize_by_tokens(credit_R: Credit, batch: Batch, *, eps: float = 1e-6, limit: float | None = None) -> Credit:
    """Standardise over all tokens of the group: `A = (R - mean) / (std + eps)`, mean and population std over tokens.

    Long responses count more. With `limit`, a group where any |A| reaches it is standardised over its trajectories
    instead, with the sample standard deviation.

    Args:
        credit_R: `[responses]` returns; one value per trajectory if there is a limit.
        batch: Their batch.
        eps: Added to the standard deviation.
        limit: Size of an advantage from which a group is standardised over trajectories; None for no limit.
    """
    tokens = chain(center_by_group(over="tokens"), scale_by_group_std(over="tokens", ddof=0, eps=eps))
    credit_by_token_R = tokens.update(credit_R, None, batch)[0]
    if limit is None:
        return credit_by_token_R
    groups = batch.group_responses
    extreme_R = groups.broadcast(groups.max(np.abs(credit_by_token_R)) >= limit)
    trajectories = chain(center_by_group(), scale_by_group_std(eps=eps))
    return np.where(extreme_R, trajectories.update(credit_R, None, batch)[0], credit_by_token_R)


@block(needs_option="same")
def share_between_forks(credit_R: Credit, batch: Batch, *, same: str = "prefix") -> Credit:
    """Give responses shared by several trajectories the mean credit of those trajectories.

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch.
        same: Column that identifies a shared segment within a group. A trajectory counts once per segment, however many
            of its responses belong to it.
    """
    name_R = batch.column(same, needed_by="share_between_forks")
    stretch = Labels.of(batch.group_responses.ids, name_R)
    part = Labels.of(stretch.ids, batch.trajectories.ids)  # a segment in one trajectory
    trajectories = Labels(part.first(stretch.ids), len(stretch))
    return stretch.broadcast(trajectories.mean(part.first(credit_R)))
