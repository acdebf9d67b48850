"""Solve a game of two seats whose returns sum to 0, by CFR+.

Each iteration adds to each choice its regret, what it would have won more than the strategy, kept at 0 or above. The
next strategy is proportional to the regrets. The average, with later iterations weighing more, tends to an equilibrium.
Reference: Tammelin, arXiv 1407.5042.
"""

import numpy as np

from turnwise.worlds.seats.tree import Tree


def solve(tree: Tree, *, iterations: int = 1000) -> np.ndarray:
    """Return a strategy near an equilibrium, `[choices]`.

    Args:
        tree: The game.
        iterations: Iterations of CFR+; 1000 leave an exploitability of about 1e-3 chips in Leduc poker, less in Kuhn's.
    """
    regret, average = np.zeros(tree.num_choices), np.zeros(tree.num_choices)
    strategy = tree.uniform()
    for iteration in range(1, iterations + 1):
        for seat in (0, 1):
            gains, own = tree.gains(strategy, seat), tree.seat_C == seat
            expected = np.add.reduceat(strategy * gains, tree.offsets[:-1])
            regret = np.where(own, np.maximum(regret + gains - np.repeat(expected, np.diff(tree.offsets)), 0), regret)
            strategy = np.where(own, tree.normalised(regret), strategy)
            average += np.where(own, iteration * tree.own_reach(strategy, seat) * strategy, 0.0)
    return tree.normalised(average)
