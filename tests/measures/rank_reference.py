"""The effective rank of one response by its definition, which the measure computes for many at once."""

import numpy as np
from jaxtyping import Float

from turnwise.measures.hidden_rank import LAST, STRIDE


def effective_rank(hidden: Float[np.ndarray, "tokens width"]) -> float:
    """Compute the effective rank: the exponential of the entropy of the singular values.

        ER = exp(-sum_j q_j log q_j)        q_j = sigma_j / sum(sigma), of the hidden states less their mean

    Args:
        hidden: `[tokens, width]` hidden states of one response.

    Returns:
        From 1 to min(tokens - 1, width); 0 for fewer than two tokens or equal ones.

    Reference: arXiv 2509.23808; Roy and Vetterli, The effective rank, 2007.
    """
    if len(hidden) < 2 or (hidden == hidden[0]).all():
        return 0.0
    hidden = np.asarray(hidden, dtype=np.float64)
    sigma = np.linalg.svd(hidden - hidden.mean(axis=0), compute_uv=False)
    share = sigma[sigma > 0] / sigma.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def rank_metrics(
    hidden: Float[np.ndarray, "tokens width"], *, stride: int = STRIDE, last: int = LAST
) -> tuple[float, float, float]:
    """Measure the effective rank of a response, its velocity and its acceleration from prefix to prefix.

        velocity     = mean of d_j over j >= 2        d_j = m_j - mean(m_1 .. m_{j-1})
        acceleration = mean of d_j - d_{j-1} over j >= 3

    `m_j` is the effective rank of the first `j * stride + 1` of the last `last` tokens, as in the released code.
    There is such a prefix for every `j * stride` below their number.

    Args:
        hidden: `[tokens, width]` hidden states of one response.
        stride: Tokens from one prefix to the next.
        last: Number of tokens at the end of the response that velocity and acceleration look at. The rank itself is
            that of all tokens.

    Returns:
        Values for the columns `effective_rank`, `rank_velocity` (0 for fewer than two prefixes) and `rank_acceleration`
        (0 for fewer than three).

    Reference: arXiv 2509.23808; released code hf618/VERL, `calculate_diffs_for_single_sample_original`. Another commit
        of the release takes prefixes of `j * stride` tokens, and the whole response as one more.
    """
    end = hidden[-last:]
    prefix = np.array([effective_rank(end[: stop + 1]) for stop in range(stride, len(end), stride)])
    earlier = np.cumsum(prefix)[:-1] / np.arange(1, len(prefix))
    excess = prefix[1:] - earlier
    velocity = float(excess.mean()) if len(excess) else 0.0
    acceleration = float(np.diff(excess).mean()) if len(excess) > 1 else 0.0
    return effective_rank(hidden), velocity, acceleration
