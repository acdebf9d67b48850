"""Correct for an engine whose probabilities differ from the trainer's."""

import numpy as np
from jaxtyping import Bool, Float

from turnwise.credit.segments import Segments


def mismatch_weights(
    old_logprob: Float[np.ndarray, " T"],
    behavior_logprob: Float[np.ndarray, " T"],
    *,
    cap: float,
    spans: Segments | None = None,
) -> tuple[Float[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Compute truncated importance weights that correct for engine probabilities other than the trainer's.

        weight = min(exp(old_logprob - behavior_logprob), cap)

    Without a cap, the weighted gradient equals in expectation that of tokens (or spans) sampled by the trainer. The cap
    bounds its variance, at the cost of a bias for tokens that the engine samples far too rarely.

    Args:
        old_logprob: `[tokens]` log-probability under the trainer's weights at the start of the step (nats).
        behavior_logprob: `[tokens]` log-probability reported by the engine (nats).
        cap: Largest weight; above 0.
        spans: Segments of tokens whose ratios multiply, such as trajectories; all tokens of a span get its weight.
            Default: one span per token.

    Returns:
        `[tokens]` weights, and `[tokens]` whether the cap binds.

    Reference: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).
    """
    log_ratio = np.asarray(old_logprob, dtype=np.float64) - behavior_logprob
    if spans is not None:
        log_ratio = spans.broadcast(spans.sum(log_ratio))
    limit = np.log(cap)
    return np.exp(np.minimum(log_ratio, limit)), log_ratio > limit
