"""Assign credit from probes: passes of the policy for its current answer, or for hindsight probabilities."""

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Labels
from turnwise.credit.transform import Credit, block


def step_potential(batch: Batch, *, needed_by: str = "step_potential") -> Float[np.ndarray, " R"]:
    """Compute the progress of a trajectory after each response, from -1 (confident, wrong) to 1 (confident, right).

        potential = 1.5 * accuracy * confidence + 0.5 * accuracy - confidence

    Args:
        batch: A batch with the columns `accuracy` and `confidence`, of answers probed after the response.
        needed_by: Name of the caller, for the error message.
    """
    accuracy_R = batch.column("accuracy", needed_by=needed_by)
    confidence_R = batch.column("confidence", needed_by=needed_by)
    return 1.5 * accuracy_R * confidence_R + 0.5 * accuracy_R - confidence_R


@block(needs=("accuracy", "confidence"), scales=True)
def damp_after_saturation(credit_R: Credit, batch: Batch, *, strength: float = 0.5, threshold: float = 0.9) -> Credit:
    """Shrink advantages after the answer was found, of either sign: `A_t * (1 - strength * (1 - exp(-C_t)))`.

    `C_t` counts the earlier responses of the trajectory with a potential above `threshold`, see `step_potential`.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch, with the columns `accuracy` and `confidence`.
        strength: alpha in the paper, 0 to 1; 0 switches it off.
        threshold: Potential from which an answer counts as found.
    """
    turns = batch.trajectories
    found_R = (step_potential(batch, needed_by="damp_after_saturation") > threshold).astype(np.float64)
    earlier_R = turns.broadcast(turns.sum(found_R)) - turns.suffix_sum(found_R)  # whole numbers: exact
    return 1.0 - strength * (1.0 - np.exp(-earlier_R))


@block(needs=("accuracy", "confidence"), across_groups=lambda options: True)
def add_potential_gain(credit_R: Credit, batch: Batch, *, weight: float = 0.5) -> Credit:
    """Add a response's gain in potential relative to the batch: `A_t + weight * (exp(u_t) - mean(exp(u)))`.

        u_t = (gain_t - min(gain)) / (max(gain) - min(gain))        gain_t = potential_t - potential_{t-1}, 0 at turn 0

    Min, max and mean run over all responses of the batch; if all gains are equal, nothing is added.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch, with the columns `accuracy` and `confidence`.
        weight: xi in the paper.
    """
    everyone = Labels.single(batch.num_responses)
    potential_R = step_potential(batch, needed_by="add_potential_gain")
    gain_R = np.where(batch.turn_R == 0, 0.0, potential_R - batch.trajectories.preceding(potential_R))
    low, spread = gain_R.min(), np.ptp(gain_R)
    size_R = np.exp((gain_R - low) / (spread if spread > 0 else 1.0))
    return credit_R + weight * (size_R - everyone.mean(size_R))


@block(needs=("hindsight_logprob",))
def weigh_by_hindsight(
    credit_R: Credit,
    batch: Batch,
    *,
    temperature: float = 5.0,
    discount: float = 0.95,
    low: float = 0.8,
    high: float = 1.2,
    smoothing: float = 0.0,
) -> Credit:
    """Discount a return from the trajectory's end and weight it by the response's hindsight probability.

        Q_t = rho_t * discount^(T - t) * R                      T the last turn
        rho_t = clip(p_t / mean_trajectory(p), low, high)       p_t = exp(hindsight_logprob_t / temperature)
        Q_t <- (1 - smoothing) * Q_t + smoothing * Q_{t+1}      all at once; the last turn keeps its own

    Args:
        credit_R: `[responses]` returns, usually the outcome.
        batch: Their batch, with the column `hindsight_logprob` (nats per token).
        temperature: Divisor of the hindsight log-probabilities.
        discount: Factor per turn before the end.
        low: Smallest weight.
        high: Largest weight.
        smoothing: Weight of the next response's Q.
    """
    if temperature <= 0.0:
        raise ConfigError(f"weigh_by_hindsight: temperature={temperature} must be positive")
    if low > high:
        raise ConfigError(f"weigh_by_hindsight: low={low} is above high={high}")
    turns = batch.trajectories
    chance_R = np.exp(batch.column("hindsight_logprob", needed_by="weigh_by_hindsight") / temperature)
    weight_R = np.clip(chance_R / turns.broadcast(turns.mean(chance_R)), low, high)
    left_R = turns.broadcast(turns.lengths) - 1 - batch.turn_R
    quality_R = weight_R * discount**left_R * credit_R
    next_R = turns.following(quality_R, end=turns.last(quality_R))
    return (1.0 - smoothing) * quality_R + smoothing * next_R


@block(needs=("success",), scales=True)
def spare_successes(credit_R: Credit, batch: Batch) -> Credit:
    """Set the negative credit of responses in trajectories with `success` 1 to 0 ("do no harm")."""
    is_spared_R = (batch.column("success", needed_by="spare_successes") >= 1) & (credit_R < 0.0)
    return (~is_spared_R).astype(np.float64)
