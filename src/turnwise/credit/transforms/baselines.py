"""Subtract baselines: compare a value with those of its group."""

from typing import Literal

import numpy as np

from turnwise.credit.batch import Batch
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.grouping import Members, Over, Same, Scope, needs_length

Lone = Literal["zero", "keep"]
"""Result for a value without others to compare with."""

UnweightedOver = Literal["trajectories", "responses"]
"""Units for leave-one-out. Tokens are not offered: leaving one out would remove part of a response."""


@block(needs=needs_length, needs_option="same")
def center_by_group(
    credit_R: Credit,
    batch: Batch,
    *,
    over: Over = "trajectories",
    same: Same = None,
    scope: Scope = "group",
    lone: Lone = "zero",
) -> Credit:
    """Subtract the group's mean: `A = R - mean_group(R)`.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        over: What the mean counts: one value per trajectory, response or token.
        same: Compare only what agrees in this column, or in all of these.
        scope: Within the prompt's group, or over the whole batch.
        lone: The only member of a group gets 0 ("zero"), or its own value ("keep", as verl does).
    """
    members = Members(credit_R, batch, over=over, same=same, scope=scope, needed_by="center_by_group")
    return members.broadcast(_centered(members, lone))


@block(needs_option="same")
def subtract_leave_one_out(
    credit_R: Credit, batch: Batch, *, over: UnweightedOver = "trajectories", same: Same = None, lone: Lone = "zero"
) -> Credit:
    """Subtract the mean of the others: `A_i = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - mean(R))`.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        over: What the mean counts: one value per trajectory or response.
        same: Compare only what agrees in this column within the group, or in all of these.
        lone: The only member of a group gets 0 ("zero"), or its own value ("keep").
    """
    members = Members(credit_R, batch, over=over, same=same, needed_by="subtract_leave_one_out")
    num = members.partition.broadcast(members.partition.lengths)
    return members.broadcast(_centered(members, lone) * num / np.maximum(num - 1, 1))


def _centered(members: Members, lone: Lone) -> np.ndarray:
    centered = members.values - members.mean()
    return np.where(members.is_lone(), members.values, centered) if lone == "keep" else centered
