"""Assign credit from rewards of single turns: progress in checks, the first tool call, gains of the gold answer."""

from typing import Literal

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.information import standardized

Estimator = Literal["aae", "cae"]
"""How the first turn's credit is made of both rewards: a sum of advantages, or the advantage of the sum."""


@block(needs=("checks",))
def add_progress(credit_R: Credit, batch: Batch, *, weight: float = 0.5) -> Credit:
    """Add to the reward of a response its change in the share of checks that hold: `r_t + weight (c_t - c_{t-1})`.

    Before the first response no check holds.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `checks`.
        weight: Reward of all checks.
    """
    checks_R = batch.column("checks", needed_by="add_progress")
    return credit_R + weight * (checks_R - batch.trajectories.preceding(checks_R))


@block(needs=("step_reward",))
def credit_first_turn(
    credit_R: Credit,
    batch: Batch,
    *,
    weight: float = 1.0,
    discount: float = 1.0,
    estimator: Estimator = "aae",
    eps: float = 1e-4,
) -> Credit:
    """Credit the first response with turn rewards and the outcome, all later ones with only the outcome.

        aae: z(R) + weight z(S), then z(R)        cae: z(S + discount R), then z(R)

    R is the outcome and S the sum of `step_reward` over the trajectory; z is `(x - mean) / (std + eps)` over the group
    (sample deviation). With "aae", a trajectory of one response gets `z(S + R)`.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `step_reward`.
        weight: Weight of the turn rewards ("aae").
        discount: Weight of the outcome in the sum ("cae").
        estimator: See above.
        eps: Added to the deviation.
    """
    turns, groups = batch.trajectories, batch.groups
    outcome_N = turns.sum(credit_R)
    of_turns_N = turns.sum(batch.column("step_reward", needed_by="credit_first_turn"))

    def z(value_N: np.ndarray) -> np.ndarray:
        return (value_N - groups.broadcast(groups.mean(value_N))) / (
            groups.broadcast(groups.std(value_N, ddof=1)) + eps
        )

    late_N, first_N = z(outcome_N), z(of_turns_N + discount * outcome_N)
    if estimator == "aae":
        first_N = np.where(turns.lengths == 1, z(of_turns_N + outcome_N), late_N + weight * z(of_turns_N))
    return np.where(turns.begins, turns.broadcast(first_N), turns.broadcast(late_N))


@block(needs=("gold_logprob",))
def add_gold_window(
    credit_R: Credit,
    batch: Batch,
    *,
    weight: float = 0.2,
    window: int = 3,
    discount: float = 0.8,
    eps: float = 0.1,
    fill: float = 2.0,
) -> Credit:
    """Add to a turn's advantage its gain in the gold answer's log-ratio, averaged over the turns that follow.

        A + weight * (mean_{j < m} d_{t+j} + fill discount^(T - t) A [t + window >= T])        weight of j: discount^j
        d_t = ln((eps - b_t) / (eps - b_{t+1}))        m = min(window, T - t)

    b_t is `gold_logprob` before response t, and T counts the responses before the last one, which gives the answer and
    gets only A. With `window=0` only the fill of the last turn is left.

    Args:
        credit_R: `[responses]` advantages from outcomes.
        batch: Their batch, with the column `gold_logprob`.
        weight: Weight of the turns.
        window: Turns that are averaged.
        discount: Factor per turn.
        eps: Added to the surprise of the answer, above 0.
        fill: Weight of the outcome where the window reaches the last turn.
    """
    if window < 0 or eps <= 0:
        raise ConfigError(f"add_gold_window: window={window} must be 0 or more, and eps={eps} above 0")
    turns = batch.trajectories
    before_R = batch.column("gold_logprob", needed_by="add_gold_window")
    left_R = turns.broadcast(turns.lengths) - 1 - batch.turn_R  # T - t
    gain_R = np.where(left_R > 0, np.log((eps - before_R) / (eps - turns.following(before_R))), 0.0)
    total_R, norm_R, later_R, factor = np.zeros_like(credit_R), np.zeros_like(credit_R), gain_R, 1.0
    for place in range(window):
        total_R, norm_R = total_R + factor * later_R, norm_R + factor * (left_R > place)
        later_R, factor = turns.following(later_R), factor * discount
    mean_R = np.divide(total_R, norm_R, out=np.zeros_like(total_R), where=norm_R > 0)
    filled_R = (left_R > 0) & (left_R <= max(window, 1))
    return credit_R + weight * (mean_R + np.where(filled_R, fill * discount**left_R * credit_R, 0.0))


@block(needs=("turn_drop",))
def add_turn_drop(credit_R: Credit, batch: Batch, *, weight: float, same: Literal["group", "trajectory"]) -> Credit:
    """Add to a turn's advantage what the gold answer loses without it, standardised, where this keeps its sign.

        A + weight * z(g) [sign z(g) = sign g]        z(g) = (g - mean) / (std + 1e-6)

    Responses whose `turn_drop` is 0 were not left out, as a last one, which gives the answer: they are not compared.

    Args:
        credit_R: `[responses]` advantages from outcomes.
        batch: Their batch, with the column `turn_drop`.
        weight: Weight of the turns.
        same: Turns that a turn is compared with: those of the group, or of its trajectory.
    """
    drop_R = batch.column("turn_drop", needed_by="add_turn_drop")
    parts = batch.group_responses if same == "group" else batch.trajectories
    z_R = standardized(drop_R, drop_R != 0, (parts.ids,), ddof=1)
    return credit_R + weight * np.where(np.sign(z_R) == np.sign(drop_R), z_R, 0.0)
