"""Assign credit to TRL's rows: find responses, compute their advantages and metrics.

A row of TRL is a whole trajectory. Its responses are the maximal runs of generated tokens in its mask.
Needs only NumPy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnwise.batch import Batch
from turnwise.errors import IntegrationError
from turnwise.integrations.padded import split_responses
from turnwise.metrics import adapter_metrics
from turnwise.transform import Transform


class Credited(NamedTuple):
    """Hold the credit of a batch.

    Attributes:
        advantage: `[rows, length]` advantage of each generated token's response; 0 elsewhere.
        metrics: Values for the log, by name.
        turns: One list of values per response for each row, by name, for the table of completions.
    """

    advantage: np.ndarray
    metrics: dict[str, float]
    turns: dict[str, list[list[float]]]


def credit(
    method: Transform,
    *,
    mask: np.ndarray,
    entropy: np.ndarray,
    logprob: np.ndarray,
    reward: np.ndarray,
    group_size: int,
    played: Sequence[Mapping[str, Sequence[Any]] | None] | None = None,
) -> Credited:
    """Apply a method to rows of trajectories.

    Rows without a generated token or a reward are left out of all statistics and get 0.

    Args:
        method: Stateless method.
        mask: `[rows, length]` bool, true at generated tokens.
        entropy: `[rows, length]` entropy of the policy at each generated token (nats).
        logprob: `[rows, length]` log-probability of each generated token (nats).
        reward: `[rows]` reward of the whole trajectory; nan if missing.
        group_size: Number of adjacent rows per prompt.
        played: Record of each row: `reward` and columns per response, from an environment of turnwise. The last
            response gets the rest of the row's reward, or all of it without a record.

    Raises:
        IntegrationError: A record does not match the responses in the mask.
    """
    mask = mask & ~np.isnan(reward)[:, None]
    names = ["turn_entropy", "turn_advantage"]  # the same in all processes, even if one has nothing to learn
    names += ["turn_alpha", "turn_base"] if "entropy" in method.needs else []
    if not mask.any():
        return Credited(np.zeros(mask.shape), {}, {name: [[] for _ in mask] for name in names})
    tokens, row_R = split_responses(mask)
    columns: dict[str, Any] = {"entropy": tokens.mean(entropy[mask]), "logprob": tokens.mean(logprob[mask])}
    last_R = np.diff(row_R, append=-1) != 0
    reward_R = np.where(last_R, reward[row_R], 0.0)
    if played is not None and all(row is not None for row in played):
        steps = [played[row] for row in np.unique(row_R)]
        _check_responses(steps, np.unique(row_R), np.bincount(row_R))
        paid_R = np.concatenate([np.asarray(row["reward"], dtype=np.float64) for row in steps])
        rest_B = reward - np.bincount(row_R, weights=paid_R, minlength=len(mask))
        reward_R = paid_R + np.where(last_R, rest_B[row_R], 0.0)
        for name in (name for name in steps[0] if name != "reward"):
            columns[name] = [value for row in steps for value in row[name]]

    given = {"group": row_R // group_size, "trajectory": row_R, "reward": reward_R, "num_tokens": tokens.lengths}
    batch, order = Batch.from_arrays(**given, columns=columns)
    trace, _ = method.trace(batch)
    advantage_R = np.empty(len(row_R))
    advantage_R[order] = trace.advantage_R
    advantage = np.zeros(mask.shape)
    advantage[mask] = tokens.broadcast(advantage_R)
    values = {"turn_entropy": columns["entropy"], "turn_advantage": advantage_R}
    for name, traced_R in (("turn_alpha", trace.coefficient_R), ("turn_base", trace.base_R)):
        values[name] = np.empty(len(row_R))
        values[name][order] = traced_R
    turns = {name: [values[name][row_R == row].tolist() for row in range(len(mask))] for name in names}
    return Credited(advantage, adapter_metrics(batch, trace), turns)


def _check_responses(steps: Sequence[Any], rows: np.ndarray, counts: np.ndarray) -> None:
    for row, record in zip(rows.tolist(), steps, strict=True):
        if len(record["reward"]) != counts[row]:
            raise IntegrationError(
                f"row {row} has {counts[row]} runs of generated tokens, but its conversation has "
                f"{len(record['reward'])} responses; check the tool mask"
            )
