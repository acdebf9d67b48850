"""Hold a group in flight: what is played, and what steps have learned from it."""

import asyncio
import dataclasses
from typing import Any

from turnwise.rollout.groups import Group
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(eq=False)
class Flight:
    """A group in flight."""

    step: int  # the step for which it was started
    number: int  # number of its task among the tasks
    batch: "Started"  # batch with which it was started
    group: Group  # what is played
    playing: asyncio.Task[list[Trajectory]]  # plays it
    metered: Any = None  # its share of a budget, if there is one
    # What steps have learned from its trajectories, by their numbers, if they learn from half-played ones
    learned: dict[int, "Learned"] = dataclasses.field(default_factory=dict)
    live: tuple[int, int] = (0, 0)  # trajectories that have not ended, and all

    @property
    def watched(self) -> dict[int, Trajectory]:
        """Its trajectories during play, by their numbers."""
        return self.group.watched or {}

    @property
    def lines(self) -> dict[int, Any]:
        """The responses of its trajectories, by their numbers."""
        assert self.metered is not None
        return self.metered.lines

    @property
    def done(self) -> bool:
        """Whether all its trajectories have ended."""
        return self.playing.done()

    @property
    def trajectories(self) -> list[Trajectory]:
        """Its trajectories, once it is done.

        Raises:
            EngineLost: The engine was lost.
        """
        return self.playing.result()


@dataclasses.dataclass(eq=False)
class Started:
    """Groups that were started together."""

    step: int  # the step for which they were started
    seed: int  # seed of their draws
    numbers: list[int]  # numbers of their tasks
    places: list[int]  # their numbers among the groups that are numbered together
    version: int | None = None  # version of the weights then; None: the current one
    collector: Any = None  # state of the collector after planning them, so that a resumed run plans them the same way


@dataclasses.dataclass
class Learned:
    """What steps have learned from a half-played trajectory."""

    ends: list[int] = dataclasses.field(default_factory=list)  # its generated tokens at the ends of the steps so far
    finished: bool = False  # whether a step had it after its end
