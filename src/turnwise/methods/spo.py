"""SPO: credit a segment with its change in the expected outcome."""

from turnwise.card import Gradient
from turnwise.transform import Transform, chain, method
from turnwise.transforms import sum_td_errors


@method("Segment Policy Optimization (SPO)", arxiv="2505.23564")
def spo() -> Transform:
    """Credit a segment with the difference of the values at its ends.

        A_j = V_{j+1} - V_j        V after the last segment is the outcome itself

    The segments are the turns. `V_j` is the expected outcome before response j: the reward so far plus the column
    `value`, which the paper estimates from 4 or 9 fresh continuations: `[continuations]` in a recipe. A critic's values
    do too. So A is `gae(decay=0)`, and the credit of a trajectory sums to its outcome minus the first value.

    SPO-tree uses the mean over a node's children as V, and the same differences. Its probability mask and SPO-chain's
    whitening over the kept tokens are the token rule `spo_mask`. (SPO-chain gives 0 before the first cut unless V is
    estimated at the root; here every response has a value.)

    Expected gradient: unbiased if the values are exact, or unbiased estimates that are independent of the trajectory,
        as from fresh continuations.
    Use it when: values come from Monte Carlo continuations or from a verifier of progress.
    Reference: Guo et al., arXiv 2505.23564.
    """
    return chain(sum_td_errors(decay=0.0), gradient=Gradient("unbiased", reason="with exact values"))
