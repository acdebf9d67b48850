"""Tree-GRPO: compare trajectories within their tree, and within their group."""

from typing import Literal

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method, mix
from turnwise.credit.transforms import center_by_group, outcome_return, scale_by_group_std

Convention = Literal["turnwise", "release"]


@method("Tree-GRPO", arxiv="2509.21240")
def tree_grpo(*, inter: bool = True, convention: Convention = "turnwise") -> Transform:
    """Add the advantages of a trajectory within its tree and within its group.

        A_i = (R_i - mean_tree(R)) / (std_tree(R) + 1e-6) + (R_i - mean_group(R)) / (std_group(R) + 1e-6)

    The column `tree` says which trajectories were forked from each other. Without forks each trajectory is a tree by
    itself, and the method is GRPO. A response that trajectories share gets the advantage of each of them, so that
    together they act as their mean.

    Args:
        inter: Whether to add the advantage within the group (the release's "tree"; without, "tree_inner").
        convention: "turnwise": the only trajectory of a tree or group gets 0. "release": it keeps its raw return.

    Expected gradient: biased; divides by standard deviations, and the members of a tree share their first responses.
    Use it when: rollouts fork at random turns (`rollout.collector.rule=tree_grpo`).
    Reference: arXiv 2509.21240; released code AMAP-ML/Tree-GRPO.
    """
    released = convention == "release"
    lone = "keep" if released else "zero"
    centered = center_by_group(same="tree", lone=lone)
    intra = chain(outcome_return(), centered, scale_by_group_std(same="tree"), name="intra")
    biased = Gradient("biased", reason="divides by standard deviations within trees that share responses")
    return mix(
        intra,
        grpo(convention="verl" if released else "turnwise"),
        weights=(1.0, float(inter)),
        name="tree_grpo",
        gradient=biased,
    )
