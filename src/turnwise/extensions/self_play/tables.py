"""Give each seat of a match its own environment, so that a seat is played like any other trajectory.

The match itself is one environment below. A seat's `start` and `step` wait until its next turn, or the end of the
match.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnwise.base.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.environments.base import SeatStep, Step
from turnwise.environments.hosts import Environments
from turnwise.worlds.seats.base import Deal


class SeatAt(NamedTuple):
    """The task of one seat: number of the match, number of the seat, and the task of the match."""

    match: int
    seat: int
    task: Deal

    @property
    def role(self) -> str:
        """Return the role of the seat."""
        return self.task.roles[self.seat]


@dataclasses.dataclass
class _Match:
    """A match in progress: what its seats wait for.

    Attributes:
        inbox: For each seat, the step or fault that it reads next.
        valid: Whether the last response of each seat was valid.
        on_wait: Called when a seat begins to wait.
        reading: Seats that wait for their turn.
    """

    inbox: list["asyncio.Queue[Step | EnvironmentFault]"]
    valid: list[bool]
    on_wait: Callable[[], None]
    reading: set[int] = dataclasses.field(default_factory=set)

    def deliver(self, step: Step, by: int | None = None) -> None:
        """Pass a step to the seat that it is addressed to; the last one to all seats."""
        if not isinstance(step, SeatStep):
            raise EnvironmentFault(
                f"the environment answered with {type(step).__name__}, expected a SeatStep; rollout.collector="
                "'self_play' needs an environment with seats, such as environment.name=seats"
            )
        if len(step.ends) not in (0, len(self.inbox)) or not 0 <= step.seat < len(self.inbox):
            raise EnvironmentFault(
                f"the environment answered for seat {step.seat} with {len(step.ends)} last steps; expected seats 0 to "
                f"{len(self.inbox) - 1} and a last step for each, or none"
            )
        if by is not None:
            self.valid[by] = step.valid
        for seat, own in enumerate(step.ends) if step.ends else [(step.seat, step)]:
            self.inbox[seat].put_nowait(dataclasses.replace(own, valid=self.valid[seat]))

    def fail(self, fault: EnvironmentFault) -> None:
        """Pass a fault to all seats."""
        for inbox in self.inbox:
            inbox.put_nowait(fault)

    async def read(self, seat: int) -> Step:
        """Wait for the next step of a seat."""
        self.reading.add(seat)
        self.on_wait()
        try:
            step = await self.inbox[seat].get()
        finally:
            self.reading.discard(seat)
        if isinstance(step, EnvironmentFault):
            raise step
        return step


class Tables:
    """Environments whose tasks are seats; see `Environments` for the methods.

    A seat that leaves before the end, by a fault or because its conversation is full, ends the match for the others: an
    unfinished match has no result to learn from.

    Args:
        environments: Where the matches are played; their steps are `SeatStep`s.
        on_wait: Called when a seat begins to wait for others.

    Attributes:
        unasked: Last steps of the seats whose match ended before they acted, by key. A conversation cannot begin there.
    """

    def __init__(self, environments: Environments, on_wait: Callable[[], None] = lambda: None):
        self._environments, self._on_wait = environments, on_wait
        self.unasked: dict[int, Step] = {}
        self._matches: dict[int, _Match] = {}
        self._seat_of: dict[int, SeatAt] = {}

    async def start(self, key: int, task: SeatAt) -> Step:
        """Sit down, and return the first step of the seat; the first seat starts the match."""
        self._seat_of[key] = task
        if task.match not in self._matches:
            match = self._matches[task.match] = _Match(
                [asyncio.Queue() for _ in task.task.roles], [True] * len(task.task.roles), self._on_wait
            )
            try:
                match.deliver(await self._environments.start(task.match, task.task))
            except EnvironmentFault as fault:
                match.fail(fault)
        step = await self._matches[task.match].read(task.seat)
        if step.ended:
            self.unasked[key] = step
            raise EnvironmentFault(f"the match ended before the {task.role} seat acted")
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

    def count(self) -> int:
        """Return how many seats wait for others."""
        return sum(match.inbox[seat].empty() for match in self._matches.values() for seat in match.reading)

    def close(self, key: int) -> None:
        """Leave the match."""
        place = self._seat_of.pop(key, None)
        if place is not None:
            self._matches[place.match].fail(EnvironmentFault(f"the {place.role} seat left the match"))
            self._environments.close(place.match)

    async def aclose(self) -> None:
        """Release nothing: the environments below are owned elsewhere."""


def check_roles(roles: Sequence[str], train: Sequence[str] | None, group_size: int) -> None:
    """Raise ConfigError if the roles to train are not the game's, or groups do not hold complete matches.

    Args:
        roles: Role of each seat of the game.
        train: Roles that steps learn from; None for all.
        group_size: The recipe's `rollout.group_size`.
    """
    if train is not None and (not isinstance(train, list | tuple) or not train or len({*train}) < len(train)):
        raise ConfigError(
            f"rollout.collector.train={train!r}: expected a list of different seats, such as {[*dict.fromkeys(roles)]}"
        )
    for name in train or ():
        if name not in roles:
            raise ConfigError(f"rollout.collector.train: there is no seat {name!r}.{did_you_mean(name, roles)}")
    if group_size % len(roles):
        raise ConfigError(
            f"rollout.group_size={group_size} counts the seats of whole matches, expected a multiple of {len(roles)}"
        )
