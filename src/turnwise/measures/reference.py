"""Measure log-probabilities of tokens under the reference model, the policy after the warm start."""

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("ref_logprob_T",), model="reference")
def reference(step: Played, columns: Columns) -> Columns:
    """Score all generated tokens in one pass of the reference model (nats)."""
    return {"ref_logprob_T": step.scored("reference")[0]}


@measure(provides=("ref_logprob",), needs=("ref_logprob_T",))
def reference_mean(step: Played, columns: Columns) -> Columns:
    """Compute the mean log-probability of each response's tokens under the reference model (nats)."""
    return {"ref_logprob": step.tokens.mean(columns["ref_logprob_T"])}
