"""Baselines: compare a value with those of its group."""

from typing import Literal

import numpy as np

from turnwise.batch import Batch
from turnwise.transform import Credit, block
from turnwise.transforms.grouping import Members, Over, choice

Lone = Literal["zero", "keep"]
"""What becomes of a value that has nothing to be compared with."""


@block(needs_option="same")
def center_by_group(
    credit_R: Credit, batch: Batch, *, over: Over = "trajectories", same: str | None = None, lone: Lone = "zero"
) -> Credit:
    """Subtract the group's mean: `A = R - mean_group(R)`.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        over: What the mean counts: one value a trajectory or one a response.
        same: Compare only responses of the group that agree in this column.
        lone: The only member of a group gets 0 ("zero"), or its own value ("keep", as verl does).
    """
    members = Members(credit_R, batch, over=over, same=same, needed_by="center_by_group")
    return members.broadcast(_centered(members, lone))


@block(needs_option="same")
def subtract_leave_one_out(
    credit_R: Credit, batch: Batch, *, over: Over = "trajectories", same: str | None = None, lone: Lone = "zero"
) -> Credit:
    """Subtract the mean of the others: `A_i = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - mean(R))`.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        over: What the mean counts.
        same: Compare only responses of the group that agree in this column.
        lone: The only member of a group gets 0 ("zero"), or its own value ("keep").
    """
    members = Members(credit_R, batch, over=over, same=same, needed_by="subtract_leave_one_out")
    num = members.partition.broadcast(members.partition.lengths)
    return members.broadcast(_centered(members, lone) * num / np.maximum(num - 1, 1))


def _centered(members: Members, lone: Lone) -> np.ndarray:
    choice("lone", lone, Lone)
    partition = members.partition
    centered = members.values - partition.broadcast(partition.mean(members.values))
    if lone == "keep":
        return np.where(partition.broadcast(partition.lengths) == 1, members.values, centered)
    return centered
