"""REINFORCE with the reward to go."""

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import discounted_return


@method("Simple statistical gradient-following algorithms (REINFORCE)")
def reinforce(*, discount: float = 1.0) -> Transform:
    """Credit a response with its discounted reward to go, without a baseline.

        A_it = sum_{k >= t} discount^(k - t) r_ik

    Args:
        discount: Factor per turn; below 1 the update is not the gradient of any return.

    Expected gradient: unbiased at `discount=1`; high variance.
    Use it when: rewards come per turn and there is no group. Mostly a reference.
    Reference: Williams, Machine Learning 8 (1992).
    """
    biased = Gradient("biased", reason="later rewards are discounted once for each turn before them")
    return chain(discounted_return(discount=discount), gradient=Gradient("unbiased") if discount == 1.0 else biased)
