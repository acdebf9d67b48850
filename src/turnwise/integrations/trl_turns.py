"""Assign credit to TRL's rows: find responses, compute their advantages and metrics.

A row of TRL is a whole trajectory. Its responses are the maximal runs of generated tokens in its mask.
Needs only NumPy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnwise.base.errors import IntegrationError
from turnwise.credit.metrics import adapter_metrics
from turnwise.credit.transform import Transform
from turnwise.integrations.padded import padded_batch


class Credited(NamedTuple):
    """Hold the credit of a batch."""

    advantage: np.ndarray  # `[rows, length]` advantage of each generated token's response; 0 elsewhere
    metrics: dict[str, float]  # values for the log, by name
    # One list of values per response for each row, by name, for the table of completions
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
    token_tables: Mapping[str, np.ndarray] | None = None,
    return_is_success: bool = False,
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
        token_tables: `[rows, length]` further values of tokens: `ref_logprob_T`, `behavior_logprob_T` (nats).
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: A record does not match the responses in the mask.
    """
    mask = mask & ~np.isnan(reward)[:, None]
    names = ["turn_entropy", "turn_advantage"]  # the same in all processes, even if one has nothing to learn
    names += ["turn_alpha", "turn_base"] if "entropy" in method.needs else []
    if not mask.any():
        return Credited(np.zeros(mask.shape), {}, {name: [[] for _ in mask] for name in names})
    rows = np.flatnonzero(mask.any(axis=1))
    reward = np.where(mask.any(axis=1), reward, 0.0)
    recorded: dict[str, Any] = {}
    if played is not None and all(row is not None for row in played):
        steps: list[Any] = [played[row] for row in rows.tolist()]
        starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
        _check_responses(steps, rows, starts.sum(axis=1))
        recorded = {name: [value for row in steps for value in row[name]] for name in steps[0]}
        paid = np.array([np.sum(row["reward"], dtype=np.float64) for row in steps])
        reward[rows] -= paid
    padded = padded_batch(
        row="trajectory",
        rewards=reward,
        response_mask=mask.astype(np.int64),
        group=np.arange(len(mask)) // group_size,
        entropies=entropy,
        token_tables={"logprob_T": logprob, **(token_tables or {})},
        needs=method.needs,
        response_columns=recorded,
        return_is_success=return_is_success,
    )
    trace, _ = method.trace(padded.batch)
    row_R = padded.responses.row_R
    values = {name: np.empty(len(row_R)) for name in ("turn_entropy", "turn_advantage", "turn_alpha", "turn_base")}
    values["turn_entropy"][padded.order] = padded.batch.columns["entropy"]
    values["turn_advantage"][padded.order] = trace.advantage_R
    values["turn_alpha"][padded.order] = trace.coefficient_R
    values["turn_base"][padded.order] = trace.base_R
    ends = np.searchsorted(row_R, np.arange(1, len(mask)))
    turns = {name: [part.tolist() for part in np.split(values[name], ends)] for name in names}
    advantage = padded.spread(trace.advantage_R, trace.within_T(padded.batch.tokens)).tokens
    return Credited(advantage, adapter_metrics(padded.batch, trace), turns)


def _check_responses(steps: Sequence[Any], rows: np.ndarray, counts: np.ndarray) -> None:
    for row, record in zip(rows.tolist(), steps, strict=True):
        if len(record["reward"]) != counts[row]:
            raise IntegrationError(
                f"row {row} has {counts[row]} runs of generated tokens, but its conversation has "
                f"{len(record['reward'])} responses; check the tool mask"
            )
