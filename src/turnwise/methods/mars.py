"""MARS: compare the turn returns of self-play within each role."""

from typing import Literal

from turnwise.card import Gradient
from turnwise.transform import Transform, chain, method
from turnwise.transforms import center_by_distinct, center_by_group, discounted_return
from turnwise.transforms.grouping import Scope, choice

Convention = Literal["turnwise", "release"]


@method(
    "MARSHAL: Incentivizing Multi-Agent Reasoning via Self-Play with Strategic LLMs (MARS)",
    arxiv="2510.15414",
    confidence="reconstructed",
)
def mars(*, by_role: bool = True, scope: Scope = "group", convention: Convention = "turnwise") -> Transform:
    """Subtract from a turn's return the mean over all turns of the group in the same role.

        A_it = G_it - mean_{group, same role}(G)          G_it = sum_{k >= t} r_ik

    "Sum, then normalise", without a deviation. The mean counts turns, so that long trajectories count more. The players
    of a game are trajectories of one group, with the column `role`.

    Args:
        by_role: Compare within the role, or over all turns of the group.
        scope: "group", or "batch" if a group is a single game, as in the release's configuration.
        convention: "release" has another order: centre the turns' rewards, sum them to the end, then subtract the mean
            of the *distinct* sums. (It also counts the 0 of padding, which does not exist here.)

    Expected gradient: biased: the mean counts turns, whose number depends on the actions, the response's own included.
    Use it when: roles have different expected returns (who moves first, who hides something), and trajectories are
    long.
    Reference: Yuan et al., arXiv 2510.15414. The paper's formula is from secondary sources, the release's order from
    its code.
    """
    choice("convention", convention, Convention)
    same = "role" if by_role else None
    center = center_by_group(over="responses", same=same, scope=scope)
    summed = discounted_return()
    blocks = (
        (center, summed, center_by_distinct(same=same, scope=scope)) if convention == "release" else (summed, center)
    )
    return chain(*blocks, gradient=Gradient("biased", reason="the mean counts turns, whose number depends on actions"))
