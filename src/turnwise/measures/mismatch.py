"""Measure the mismatch between probabilities of the engine and the trainer."""

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("mismatch", "mismatch_min"), needs=("logprob_T", "behavior_logprob_T"))
def mismatch(step: Played, columns: Columns) -> Columns:
    """Compute mean and minimum of trainer minus engine log-probability over each response's tokens (nats)."""
    difference_T = columns["logprob_T"] - columns["behavior_logprob_T"]
    return {"mismatch": step.tokens.mean(difference_T), "mismatch_min": step.tokens.min(difference_T)}
