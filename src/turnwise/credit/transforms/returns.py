"""Compute returns from rewards, before any comparison."""

import numpy as np

from turnwise.credit.batch import Batch
from turnwise.credit.transform import Credit, block


@block()
def outcome_return(credit_R: Credit, batch: Batch) -> Credit:
    """Credit every response with the whole reward of its trajectory: `R_i = sum_t r_it`."""
    return batch.trajectories.broadcast(batch.trajectories.sum(credit_R))


@block()
def reward_at_end(credit_R: Credit, batch: Batch) -> Credit:
    """Move all rewards of a trajectory to its last response."""
    return batch.trajectories.at_last(batch.trajectories.sum(credit_R))


@block()
def discounted_return(credit_R: Credit, batch: Batch, *, discount: float = 1.0) -> Credit:
    """Credit every response with its discounted reward to go: `R_it = sum_{k >= t} discount^(k - t) r_ik`.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch.
        discount: Factor per turn, in [0, 1]; 1 gives the reward to go.
    """
    return batch.trajectories.suffix_sum(credit_R, discount=discount)


@block(needs=("penalty",), traced=True)
def add_penalty(credit_R: Credit, batch: Batch, *, weight: float = 1.0) -> Credit:
    """Add the batch's `penalty` column to its own response: `A_it + weight * penalty_it`.

    Put it last. Before a division by the group's standard deviation, a penalty of -0.1 would count as much as the
    outcome when all trajectories of a group fail.
    """
    return credit_R + weight * np.asarray(batch.column("penalty", needed_by="add_penalty"))
