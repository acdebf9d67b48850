"""TRLOO: apply RLOO per turn."""

from typing import Literal

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import discounted_return, subtract_leave_one_out

Convention = Literal["turnwise", "release"]


@method("Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations (TRLOO)", arxiv="2602.05885")
def trloo(*, discount: float = 1.0, convention: Convention = "turnwise") -> Transform:
    """Subtract from a turn's return the mean of the group's other trajectories at the same turn.

        A_it = G_it - mean_{j != i, T_j > t} G_jt          G_it = sum_{k >= t} discount^(k - t) r_ik

    The mean runs over the other trajectories that reached turn t, so that it does not depend on the response itself. A
    turn baseline that includes it (`center_by_group(over="responses", same="turn")`) is biased where trajectories
    differ in length.

    Args:
        discount: Factor per turn of the returns; the paper's is 1.
        convention: "turnwise": a turn that no other trajectory reached gets 0. "release": it keeps its return.

    Expected gradient: unbiased with `convention="release"` and `discount=1`, for groups of any size, as the paper
    claims. With "turnwise" it is biased where trajectories differ in length: late turns count less.
    Use it when: rewards come at every turn, or returns depend on the turn more than on the state.
    Reference: Liu et al., Dr. Kernel, arXiv 2602.05885. Its two rejections are `reject_mismatch` and
    `reject_by_profile`, which follow this method in a chain, so that what they reject counts in the means of others; in
    the code it does not.
    """
    release = convention == "release"
    if discount != 1.0:
        gradient = Gradient("biased", reason="later rewards are discounted once for each turn before them")
    elif release:
        gradient = Gradient("unbiased")
    else:
        gradient = Gradient("biased", reason="a turn that no other trajectory reached gets 0")
    return chain(
        discounted_return(discount=discount),
        subtract_leave_one_out(over="responses", same="turn", lone="keep" if release else "zero"),
        gradient=gradient,
    )
