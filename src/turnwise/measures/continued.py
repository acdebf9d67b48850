"""Measure values by Monte Carlo: the policy plays on from every turn."""

import numpy as np

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("value", "value_after"), model="continuations")
def continued(step: Played, columns: Columns) -> Columns:
    """Estimate the return from before and from after each response by the mean return of continuations.

        value_t = mean return of continuations from before response t        value_after_t = value_{t+1}, at the end 0

    A state without a continuation has `value_t = r_t + value_{t+1}`, so that its response gets no credit of its own: a
    turn beyond `continuations.turns`, or one whose continuations all failed.

    Reference: VinePPO, arXiv 2410.01679, and its released code McGill-NLP/VinePPO.
    """
    turns = step.turns_of_trajectories
    return_RK = step.continuations(step.trajectories, step.tasks)
    known_RK = np.isfinite(return_RK)
    count_R, total_R = known_RK.sum(1), np.where(known_RK, return_RK, 0.0).sum(1)
    to_go_R = turns.suffix_sum(np.array([turn.reward for turn in step.turns], dtype=np.float64))
    mean_R = total_R / np.maximum(count_R, 1)
    surplus_R = mean_R - to_go_R  # over what the trajectory itself earned; the same up to the next state that is known
    rows = np.arange(len(to_go_R))
    next_R = np.minimum.accumulate(np.where(count_R > 0, rows, len(rows))[::-1])[::-1]
    has_next_R = next_R < turns.broadcast(turns.offsets[1:])
    filled_R = to_go_R + np.where(has_next_R, surplus_R[np.minimum(next_R, len(rows) - 1)], 0.0)
    value_R = np.where(count_R > 0, mean_R, filled_R)
    return {"value": value_R, "value_after": turns.following(value_R)}
