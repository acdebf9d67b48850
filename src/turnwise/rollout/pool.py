"""Keep groups in flight on one event loop, and take those that a step learns from."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from turnwise.base.blocking import Loop, make_loop
from turnwise.base.register import TAKES
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.models.format import Format
from turnwise.rollout.experience import Experience
from turnwise.rollout.flight import Flight
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.launch import Launch
from turnwise.rollout.selection import TaskSelector, build_selector
from turnwise.rollout.settings import RolloutConfig


class Take(Protocol):
    """Decides what a step learns from."""

    async def take(self, pool: "Pool", step: int) -> Experience:
        """Wait until there is enough, and take it out of the pool."""
        ...


class Pool:
    """Keep groups in flight, and collect the experience of each step.

    There are always enough groups in flight for the current step and the next `rollout.max_lag` ones. Another group
    replaces one that a step drops. By default, groups are taken in the order in which they were started, whichever is
    done first, so what a step learns from does not depend on how fast episodes are.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        take: Decides what a step learns from; default: as the settings say.
        selector: Chooses the tasks; default: the one that `rollout.select` names.
        last_step: Last step of the run, beyond which nothing is started.
        loop: Where groups are played; default: in the trainer's thread, while a step waits for them.
        environments: Where they are played; default: those of the collector.

    Attributes:
        tasks, settings, last_step, selector: As given.
        start, state_dict, load_state_dict: See `Launch`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        settings: RolloutConfig,
        seed: int,
        take: Take | None = None,
        selector: TaskSelector | None = None,
        *,
        last_step: int = 0,
        loop: Loop | None = None,
        environments: Environments | None = None,
    ):
        name, options = settings.select.name, settings.select.model_extra or {}
        self.tasks, self.settings, self.last_step = tasks, settings, last_step
        self.selector = selector or build_selector(name, options, num_tasks=len(tasks), seed=seed)
        self._launch = Launch(tasks, settings, seed, self.selector, environments)
        self._take = take or TAKES["played" if settings.learns_played else "complete"]()
        self._loop = loop or make_loop(apart=False, persistent=settings.step_budget is not None)
        self.start, self.load_state_dict = self._launch.start, self._launch.load_state_dict
        self.state_dict = self._launch.state_dict
        self._spending: asyncio.Task[int] | None = None
        self._collector: Any = None
        self._models: Any = None

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step; see `Take`."""
        self._collector, self._models = collector, models
        self._launch.follow(collector, models, step)
        self._launch.on_change = lambda: self._tell(on_turn, step)
        return self._loop.run(self._next(step))

    async def _next(self, step: int) -> Experience:
        try:
            await self._launch.start_again()
            experience = await self._take.take(self, step)
            if not self._loop.apart:
                await self._models.policy.sampler.aclose()
            return experience
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """End the groups in flight."""
        if self._spending:
            self._spending.cancel()
        for flight in self.flights:
            flight.playing.cancel()
        await asyncio.gather(*(flight.playing for flight in self.flights), return_exceptions=True)
        self.flights.clear()

    @property
    def flights(self) -> list[Flight]:
        """Groups in flight, in the order of their start; takes remove those that they have taken."""
        return self._launch.flights

    async def first(self) -> Flight:
        """Wait for the group to take next: the first that was started or, if so set, that is done.

        Raises:
            EngineLost: The engine was lost; whichever group reports it first.
        """
        while True:
            _ = [flight.trajectories for flight in self.flights if flight.done]
            ready = [each for each in self._launch.finished if each in self.flights]
            if due := self._launch.due():
                ready = [due] if due.done else []
            if ready:
                return ready[0]
            playing = [flight.playing for flight in self.flights if not flight.done]
            if playing:
                await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)  # which of them was done first is known after the next turn of the loop

    def complete(self) -> Flight | None:
        """Return the first group that was started and is done, if there is one."""
        return next((flight for flight in self.flights if flight.done), None)

    def learn(self, taken: Sequence[Flight]) -> None:
        """Let the collector learn from groups."""
        self._launch.finished = [each for each in self._launch.finished if each in self.flights]
        self._collector.learn([(flight.group, flight.trajectories) for flight in taken])

    @property
    def num_unfinished(self) -> int:
        """Trajectories in flight that have not ended."""
        return sum(flight.metered.live for flight in self.flights if flight.metered)

    @property
    def format(self) -> Format:
        """Format of the policy."""
        return self._models.policy.policy.format

    def _tell(self, on_turn: OnTurn, step: int) -> None:
        """Show the progress of the groups that a step waits for."""
        if on_turn:
            counts = [flight.live for flight in self.flights if flight.step <= step]
            on_turn(sum(live for live, _ in counts), sum(total for _, total in counts))

    async def spend(self) -> int:
        """Let the groups in flight share a step's budget; return what was spent."""
        return await self._launch.meter.spend([each.metered for each in self.flights if each.metered])

    def spend_ahead(self) -> None:
        """Let the groups in flight start sharing the next step's budget; a resumed run spends it again."""
        self._launch.settle(ahead=True)
        self._spending = asyncio.ensure_future(self.spend())

    async def spent_ahead(self) -> int:
        """Wait until a step's budget is spent, now or ahead of time; return what was spent."""
        spending, self._spending = self._spending, None
        self._launch.settle(ahead=False)
        return await (spending or self.spend())
