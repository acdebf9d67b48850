"""Measure implicit rewards: how much likelier a response is under the implicit reward model than under the policy."""

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("implicit_reward",), needs=("logprob_T",), model="reward_model")
def implicit(step: Played, columns: Columns) -> Columns:
    """Subtract each response's log-probability under the policy from that under the implicit reward model (nats).

    Both are sums over its tokens.

    Reference: iStar, arXiv 2509.19199.
    """
    return {"implicit_reward": step.tokens.sum(step.scored("reward_model")[0] - columns["logprob_T"])}
