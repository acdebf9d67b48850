"""Define branching rules that fork inside responses; see `turnwise.rollout.growth`."""

import math

from turnwise.errors import ConfigError
from turnwise.rollout.forks import Fork, Group, Growth
from turnwise.rollout.trajectory import Trajectory


def fork_at(parent: int, path: Trajectory, token: int) -> Fork:
    """Ask for a fork after a number of a trajectory's generated tokens; between responses, at the turn.

    Args:
        parent: Index of the trajectory among those of the group.
        path: The trajectory.
        token: Number of generated tokens to share, below that of the trajectory.
    """
    for turn, each in enumerate(path.turns):
        if token < len(each.response_ids):
            return Fork(parent, turn, token)
        token -= len(each.response_ids)
    raise ValueError(f"fork {token} tokens behind the end of a trajectory")


def num_tokens(path: Trajectory) -> int:
    """Count the generated tokens of a trajectory, with those that it shares."""
    return sum(len(turn.response_ids) for turn in path.turns)


def spo_tree(group: Group, *, branching: list[int] | None = None, tokens: int = 30) -> Growth:
    """Grow a tree in which every trajectory forks after each `tokens` generated tokens, to a given depth.

    Play `branching[0]` trajectories from the start. Then, level by level, let each trajectory with more than
    `level * tokens` generated tokens part there into `branching[level]`. A trajectory goes on as one of them, so all
    but the first are forks, and no token is generated in vain. Levels count the tokens over all responses. The last
    level runs to the end. A group with short trajectories has fewer than the product of `branching`.

    Args:
        group: Size of the group; it must be the product of `branching`.
        branching: Children per node of each level; default: 6, 6 and 6, as in the paper.
        tokens: Tokens of a level, 30 or 600 in the paper.

    Raises:
        ConfigError: The numbers do not give `rollout.group_size`, or one is below 1.

    Reference: SPO-tree, Guo et al., arXiv 2505.23564; released code AIFrameResearch/SPO.
    """
    branching = [6, 6, 6] if branching is None else branching
    if tokens < 1 or not branching or min(branching) < 1:
        raise ConfigError(f"rollout.collector: branching={branching} and tokens={tokens} must be 1 or more")
    if (total := math.prod(branching)) != group.size:
        raise ConfigError(
            f"rollout.group_size={group.size}, but rule 'spo_tree' with branching={branching} plays {total} "
            f"trajectories per group; set rollout.group_size={total}"
        )

    def grow() -> Growth:
        paths = yield [None] * branching[0]
        for level, children in enumerate(branching[1:], 1):
            wanted = [
                fork_at(number, path, level * tokens)
                for number, path in enumerate(paths)
                if path.usable and num_tokens(path) > level * tokens
                for _ in range(children - 1)
            ]
            if wanted:
                paths = yield wanted

    return grow()
