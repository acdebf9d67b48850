"""Compare trajectories that were forked from each other."""

import numpy as np

from turnwise.batch import Batch
from turnwise.segments import Labels
from turnwise.transform import Credit, block
from turnwise.transforms.baselines import Lone
from turnwise.transforms.grouping import choice


@block(needs=("tree",))
def standardize_by_tree(
    credit_R: Credit, batch: Batch, *, ddof: int = 1, eps: float = 1e-6, lone: Lone = "zero"
) -> Credit:
    """Standardise within the trajectories of a tree: `(R - mean_tree(R)) / (std_tree(R) + eps)`.

    Args:
        credit_R: `[responses]` returns, equal for the responses of a trajectory.
        batch: Their batch.
        ddof: Divisor `n - ddof` of the variance: 1 for the sample, 0 for the population.
        eps: Added to the standard deviation.
        lone: The only trajectory of a tree gets 0 ("zero"), or its own value ("keep").
    """
    choice("lone", lone, Lone)
    tree_N = batch.trajectories.first(batch.column("tree", needed_by="standardize_by_tree"))
    value_N = batch.trajectories.first(credit_R)
    trees = Labels.of(batch.groups.ids, tree_N)
    alone_N = trees.broadcast(trees.lengths == 1)
    result_N = (value_N - trees.broadcast(trees.mean(value_N))) / (trees.broadcast(trees.std(value_N, ddof=ddof)) + eps)
    return batch.trajectories.broadcast(np.where(alone_N, value_N if lone == "keep" else 0.0, result_N))
