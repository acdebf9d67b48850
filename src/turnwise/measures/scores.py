"""Measure log-probabilities and entropies of tokens under the policy at the start of a step."""

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("logprob_T", "entropy_T"), model="policy")
def scores(step: Played, columns: Columns) -> Columns:
    """Score all generated tokens in one pass of the policy (nats)."""
    logprob_T, entropy_T = step.scored("policy")
    return {"logprob_T": logprob_T, "entropy_T": entropy_T}
