"""AEPO: weight tokens by their entropy."""

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import weigh_tokens_by_entropy


@method("Agentic Entropy-Balanced Policy Optimization (AEPO)", arxiv="2510.14545", stage="modulation")
def aepo(base: Transform | None = None, *, weight: float = 0.2) -> Transform:
    """Weight each token's advantage by its entropy among the tokens of the step.

        A'_t = A_t (1 + weight z(H_t))        z(H) = (H - mean) / std over all tokens of the batch (sample deviation)

    H_t is the entropy of the token's distribution (`entropy_T`). The advantage of a response is the mean over its
    tokens, as if the base gave all of them the same. Below `z = -1 / weight` the sign changes. The code takes z over a
    micro-batch; here it is the step.

    Args:
        base: Any method or chain; default `grpo()`.
        weight: Weight of the entropy.

    Expected gradient: biased: the weight depends on the tokens.
    Use it when: the policy is too certain, and its uncertain tokens should learn most.
    Reference: arXiv 2510.14545; code dongguanting/ARPO, in a fork's copy. Its clip is `update.clip = "keep"` with a
    dual clip of 3. Its rollouts are not included; see `docs/reference/missing.toml`.
    """
    return chain(
        base if base is not None else grpo(),
        weigh_tokens_by_entropy(weight=weight),
        gradient=Gradient("biased", reason="the weight depends on the tokens"),
    )
