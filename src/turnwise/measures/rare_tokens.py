"""Measure each response's least likely and most uncertain tokens."""

import numpy as np
from jaxtyping import Float

from turnwise.credit.segments import Segments
from turnwise.measures.base import Columns, Played, measure

RARE_SHARE = 0.2
"""Share of a response's tokens, at least one, that `rare_logprob` averages."""


@measure(provides=("rare_logprob",), needs=("logprob_T",))
def rare_tokens(step: Played, columns: Columns) -> Columns:
    """Compute the mean log-probability of the least likely fifth of each response's tokens (nats)."""
    return {"rare_logprob": lowest_mean(columns["logprob_T"], step.tokens, share=RARE_SHARE)}


PEAK_SHARE = 0.2
"""Share of a response's tokens, at least one, that `peak_entropy` averages. The paper's share is not known to us."""


@measure(provides=("peak_entropy",), needs=("entropy_T",))
def peak_tokens(step: Played, columns: Columns) -> Columns:
    """Compute the mean entropy of the most uncertain fifth of each response's tokens (nats).

    Reference: R3, arXiv 2601.19620.
    """
    return {"peak_entropy": -lowest_mean(-columns["entropy_T"], step.tokens, share=PEAK_SHARE)}


def lowest_mean(values_T: Float[np.ndarray, " T"], tokens: Segments, *, share: float) -> Float[np.ndarray, " R"]:
    """Compute the mean of each segment's lowest `share` of values, at least one."""
    order = np.lexsort((values_T, tokens.ids))  # within each segment ascending
    kept = np.maximum(1, np.floor(share * tokens.lengths + 1e-9))
    lowest = (tokens.positions < tokens.broadcast(kept)).astype(np.float64)
    return tokens.sum(values_T[order] * lowest) / kept
