"""Policy objectives.

Denominators are global: a token's weight is fixed for the whole step before it is cut into micro-batches, so that micro-batch size,
accumulation and packing cannot change the gradient.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from turnwise.errors import ConfigError, did_you_mean
from turnwise.segments import Segments

Aggregate = Literal["token-mean", "response-mean", "trajectory-mean", "constant"]


def token_weights(
    responses: Segments, trajectories: Segments, *, aggregate: Aggregate = "token-mean", constant: float = 1.0
) -> Float[np.ndarray, " T"]:
    """Weight of every generated token in the loss of a whole step.

    Args:
        responses: Segments of tokens, one a response.
        trajectories: Segments of responses, one a trajectory.
        aggregate: "token-mean": every token counts alike, 1 / T. "response-mean": the mean over responses of the mean over their
            tokens. "trajectory-mean": the mean over trajectories of the mean over their tokens. "constant":
            1 / (trajectories * constant), as Dr. GRPO asks for.
        constant: Tokens for "constant", such as the generation limit.

    Returns:
        `[tokens]` weights; they sum to 1 except for "constant".
    """
    if aggregate not in get_args(Aggregate):
        raise ConfigError(f"aggregate={aggregate!r} is unknown.{did_you_mean(str(aggregate), get_args(Aggregate))}")
    num_tokens = responses.num_elements
    if aggregate == "token-mean":
        return np.full(num_tokens, 1.0 / num_tokens)
    if aggregate == "constant":
        return np.full(num_tokens, 1.0 / (len(trajectories) * constant))
    spans = responses if aggregate == "response-mean" else trajectories.of(responses)
    return spans.broadcast(1.0 / (len(spans) * spans.lengths))


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """Sums over some tokens, ready to be added up over micro-batches.

    Attributes:
        loss: Scalar to minimise, with gradient.
        clipped: Weighted share of tokens at which the clip binds.
        kl: Weighted mean of log pi_old - log pi.
    """

    loss: torch.Tensor
    clipped: float
    kl: float


def policy_loss(
    logprob: Float[torch.Tensor, " T"],
    old_logprob: Float[torch.Tensor, " T"],
    advantage: Float[torch.Tensor, " T"],
    weight: Float[torch.Tensor, " T"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> PolicyLoss:
    """PPO's clipped objective on tokens.

        rho = exp(logprob - old_logprob)
        loss = -sum_T weight * min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)

    Args:
        logprob: Under the current weights, with gradient (nats).
        old_logprob: Under the weights at the start of the step.
        advantage: Of the token's response.
        weight: From `token_weights`, global.
        clip_low: Room below 1.
        clip_high: Room above 1; larger than `clip_low` is DAPO's clip-higher.

    Reference: Schulman et al., arXiv 1707.06347; DAPO, arXiv 2503.14476.
    """
    log_ratio = logprob - old_logprob
    ratio = log_ratio.exp()
    free, clipped = ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    loss = -(weight * torch.minimum(free, clipped)).sum()
    with torch.no_grad():
        return PolicyLoss(loss, float((weight * (clipped < free)).sum()), float(-(weight * log_ratio).sum()))


def kl_loss(
    logprob: Float[torch.Tensor, " T"], ref_logprob: Float[torch.Tensor, " T"], weight: Float[torch.Tensor, " T"]
) -> torch.Tensor:
    """Low-variance estimate of KL(policy || reference): `sum_T weight * (exp(d) - d - 1)` with `d = ref_logprob - logprob`.

    It is non-negative and has the right expectation under the policy's samples.
    Reference: Schulman, "Approximating KL divergence" (2020), estimator k3; GRPO, arXiv 2402.03300.
    """
    difference = ref_logprob - logprob
    return (weight * (difference.exp() - difference - 1)).sum()
