"""Measure the mean token entropy of each response, which modulation by entropy uses."""

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("entropy", "logprob"), needs=("logprob_T", "entropy_T"))
def entropy(step: Played, columns: Columns) -> Columns:
    """Compute mean token entropy and log-probability of each response (nats)."""
    return {"entropy": step.tokens.mean(columns["entropy_T"]), "logprob": step.tokens.mean(columns["logprob_T"])}
