"""Give each seat of a match an environment of its own, so that a seat is played like any other trajectory.

The match itself is one environment below. A seat's `start` and `step` wait until it is its turn again, or the match
ends.
"""

import asyncio
import dataclasses
from typing import NamedTuple

from turnwise.environments.base import Step, Task
from turnwise.environments.seats.base import ROLES, SeatStep
from turnwise.errors import EnvironmentFault
from turnwise.rollout.environments import Environments


class SeatAt(NamedTuple):
    """The task of one seat: number of the match, number of the seat, and the task of the match."""

    match: int
    seat: int
    task: Task


@dataclasses.dataclass
class _Match:
    """A match in progress: what its seats wait for.

    Attributes:
        inbox: For each seat, the step or fault that it reads next.
        valid: Whether the last response of each seat was valid.
    """

    inbox: list["asyncio.Queue[Step | EnvironmentFault]"]
    valid: list[bool]

    def deliver(self, step: Step, by: int | None = None) -> None:
        """Hand a step to the seat that it is addressed to; the last one to all seats."""
        if not isinstance(step, SeatStep):
            raise EnvironmentFault(
                f"the environment answered with {type(step).__name__}, expected a SeatStep; rollout.collector="
                "'self_play' needs an environment with seats, such as environment.name=seats"
            )
        if by is not None:
            self.valid[by] = step.valid
        for seat, told in enumerate(step.ends) if step.ends else [(step.seat, step)]:
            self.inbox[seat].put_nowait(dataclasses.replace(told, valid=self.valid[seat]))

    def fail(self, fault: EnvironmentFault) -> None:
        """Hand a fault to all seats."""
        for inbox in self.inbox:
            inbox.put_nowait(fault)

    async def read(self, seat: int) -> Step:
        """Wait for the next step of a seat."""
        told = await self.inbox[seat].get()
        if isinstance(told, EnvironmentFault):
            raise told
        return told


class Tables:
    """Environments whose tasks are seats; see `Environments` for the methods.

    A seat that leaves before the end, by a fault or because its conversation is full, ends the match for the others: a
    match that was not finished has no result to learn from.

    Args:
        environments: Where the matches are played; their steps are `SeatStep`s.

    Attributes:
        unasked: Last steps of the seats whose match ended before they acted, by key. A conversation cannot begin there.
    """

    def __init__(self, environments: Environments):
        self._environments = environments
        self.unasked: dict[int, Step] = {}
        self._matches: dict[int, _Match] = {}
        self._seat_of: dict[int, SeatAt] = {}

    async def start(self, key: int, task: SeatAt) -> Step:
        """Sit down, and return the first step of the seat; the first seat starts the match."""
        self._seat_of[key] = task
        if task.match not in self._matches:
            match = self._matches[task.match] = _Match([asyncio.Queue() for _ in ROLES], [True] * len(ROLES))
            try:
                match.deliver(await self._environments.start(task.match, task.task))
            except EnvironmentFault as fault:
                match.fail(fault)
        step = await self._matches[task.match].read(task.seat)
        if step.ended:
            self.unasked[key] = step
            raise EnvironmentFault(f"the match ended before the {ROLES[task.seat]} seat acted")
        return step

    async def step(self, key: int, response: str) -> Step:
        """Play a response, and wait for the next step of the seat."""
        place = self._seat_of[key]
        match = self._matches[place.match]
        try:
            match.deliver(await self._environments.step(place.match, response), by=place.seat)
        except EnvironmentFault as fault:
            match.fail(fault)
        return await match.read(place.seat)

    def close(self, key: int) -> None:
        """Leave the match."""
        place = self._seat_of.pop(key, None)
        if place is not None:
            self._matches[place.match].fail(EnvironmentFault(f"the {ROLES[place.seat]} seat left the match"))
            self._environments.close(place.match)

    async def aclose(self) -> None:
        """Release nothing: the environments below belong to others."""
