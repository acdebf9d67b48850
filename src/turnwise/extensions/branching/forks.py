"""Define what branching rules ask for and are given."""

import dataclasses
from collections.abc import Generator, Sequence

import numpy as np

from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, slots=True)
class Fork:
    """Ask for a trajectory that begins like another one."""

    parent: int  # index of the other trajectory among those of the group
    turn: int  # number of first turns to share
    token: int = 0  # number of first tokens to share of the response that follows them


Growth = Generator[Sequence[Fork | None], Sequence[Trajectory], None]
"""Yields forks, or None for a trajectory from the start, and receives all trajectories of the group so far."""


@dataclasses.dataclass(frozen=True)
class ForkGroup:
    """What a rule may use."""

    size: int  # trajectories of the complete group
    vocabulary: int = 2  # number of tokens that the policy chooses from
    history: tuple[int, int] = (0, 0)  # number of the task's earlier trajectories, and of those that succeeded
    # Random draws of the rule
    generator: np.random.Generator = dataclasses.field(default_factory=lambda: np.random.default_rng(0))
