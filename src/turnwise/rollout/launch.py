"""Start groups: choose their tasks, number them, and play them on the running event loop."""

import asyncio
import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.base.register import METER, find
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.rollout.flight import Flight, Learned, Started
from turnwise.rollout.gate import VisitedEngine
from turnwise.rollout.groups import Group, TaskBatch
from turnwise.rollout.selection import TaskOrder, TaskSelector
from turnwise.rollout.settings import RolloutConfig

_OURS = ("in_flight", "seats", "orders", "started", "unfinished", "learned")
"""Keys of the state that do not belong to the task selection."""


class Launch:
    """Start groups, keep those in flight, and restart them in a resumed run.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        selector: Chooses the tasks.
        environments: Where groups are played; default: those of the collector.

    Attributes:
        flights: Groups in flight, in the order of their start.
        finished: Those that are done, in the order of their end.
        arrived: Those that were done in an earlier process, in the order of their end, and are played again.
        selector: Chooses the tasks.
        meter: Budget of each step, if there is one.
        on_change: Called when a group has progressed.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        settings: RolloutConfig,
        seed: int,
        selector: TaskSelector,
        environments: Environments | None,
    ):
        self.tasks, self.settings, self._seed = tasks, settings, seed
        self.selector, self._environments = selector, environments
        self.flights: list[Flight] = []
        self.finished: list[Flight] = []
        self.arrived: list[Flight] = []
        self.on_change: Callable[[], None] = lambda: None
        self._collector: Any = None
        self._models: Any = None
        self._awaited = 0
        self._again: list[dict[str, Any]] = []  # batches that an earlier process had started
        self._given: list[int] = []  # tasks that an earlier version of the package had started
        self._orders: dict[int, TaskOrder] = {}
        self._seats: Counter[tuple[int, int]] = Counter()  # groups started so far for a step at a place
        self.meter: Any = find(METER)(settings) if settings.step_budget else None

    def follow(self, collector: Any, models: Any, step: int) -> None:
        """Set what plays from now on, and the step that waits."""
        self._collector, self._models, self._awaited = collector, models, step

    async def start(self, step: int, count: int) -> None:
        """Start groups for a step, with the tasks that the selector chooses next for it."""
        if count < 1:
            return
        if step not in self._orders:
            self._orders[step] = TaskOrder(self.selector, step)
        order = self._orders[step]
        self._orders = {each: order for each, order in self._orders.items() if each >= self._awaited}
        self._seats = Counter({seat: count for seat, count in self._seats.items() if seat[0] >= self._awaited})
        given, self._given = self._given[:count], self._given[count:]
        numbers, places = [*given, *order.take(count - len(given))], self._free_places(step, count)
        later = [self._seats[step, place] for place in places]
        for place in places:
            self._seats[step, place] += 1
        for part in sorted({*later}):  # those at a place used before have their own draws
            own = [each for each, seat in enumerate(later) if seat == part]
            batch = Started(step, self._seed_of(step, part), [numbers[n] for n in own], [places[n] for n in own])
            await self._play(batch, range(len(own)))

    def _seed_of(self, step: int, part: int) -> int:
        most = 1 if self.settings.filter == "none" else self.settings.max_batches
        return (self._seed * 100_003 + step) * most + part % most + (part // most << 52)

    def _free_places(self, step: int, count: int) -> list[int]:
        """Return numbers for groups: with a budget those that no group in flight has, otherwise a step's next ones."""
        groups = self.settings.groups
        if self.settings.step_budget:
            taken = {flight.group.number for flight in self.flights}
            return list(itertools.islice((each for each in itertools.count() if each not in taken), count))
        begun = sum(self._seats[step, place] for place in range(groups))
        return [(begun + each) % groups for each in range(count)]

    async def _play(self, started: Started, chosen: Sequence[int], sampled: Mapping[int, Any] | None = None) -> None:
        """Start the chosen groups of a batch."""
        models, environments, engine = self._models, self._environments, self._models.policy.sampler
        batch = TaskBatch(
            models=models,
            tasks=[self.tasks[number] for number in started.numbers],
            places=started.places,
            together=self.settings.in_progress if self.settings.step_budget else self.settings.groups,
            seed=started.seed,
            engine=engine.engine if isinstance(engine, VisitedEngine) else engine,
            environments=environments,
            version=started.version,
        )
        planned = await self._plan(started, batch)
        for place in chosen:
            self._fly(started, place, planned[place], (sampled or {}).get(place, ()))

    async def _plan(self, started: Started, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups; in a resumed run, from the collector's state when it first did."""
        collector, remembers = self._collector, self.settings.samples_earlier and hasattr(self._collector, "state_dict")
        if not remembers:
            return await collector.plan(batch)
        if started.collector is None:
            planned, started.version = await collector.plan(batch), batch.planned_version
            started.collector = copy.deepcopy(getattr(collector, "plan_state", collector.state_dict)())
            return planned
        now = copy.deepcopy(collector.state_dict())
        collector.load_state_dict(copy.deepcopy(started.collector))
        try:
            return await collector.plan(batch)
        finally:
            collector.load_state_dict(now)

    def _fly(self, started: Started, place: int, group: Group, sampled: Sequence[Any]) -> None:
        """Start a group of a batch."""

        def note_progress(live: int, total: int) -> None:
            flight.live = live, total
            if metered:
                metered.tell(live)
            self.on_change()

        group = dataclasses.replace(group, on_turn=note_progress)
        metered = self.meter.around(group, sampled) if self.meter else None
        group = metered.group if metered else group
        playing = asyncio.ensure_future(self._collector.play(group))
        flight = Flight(started.step, started.numbers[place], started, group, playing, metered)
        flight.learned = {number: Learned() for number in range(group.first, group.first + group.size)}
        if metered:
            metered.playing = playing
        self.flights.append(flight)
        playing.add_done_callback(lambda _: self._ended(flight))

    def _ended(self, flight: Flight) -> None:
        self.finished.append(flight)
        if self.meter:
            self.meter.changed()

    def settle(self, *, ahead: bool) -> None:
        """Let checkpoints keep the responses so far, while the next step's budget is spent ahead, or all."""
        for flight in self.flights:
            if flight.metered:
                flight.metered.settle(ahead=ahead)

    def due(self) -> Flight | None:
        """Return the group that must be taken next, done or not; None: whichever is done first.

        With `rollout.order = "finished"`, these are groups that `max_lag` later steps have overtaken, and after a kill
        those that were done before.
        """
        settings, oldest = self.settings, self.flights[0]
        if settings.order == "started" or self._awaited - oldest.step >= max(1, settings.max_lag):
            return oldest
        return next((each for each in self.arrived if each in self.flights), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of task selection and the groups in flight, for checkpoints."""
        batches = dict.fromkeys(flight.batch for flight in self.flights)
        in_flight = [self._state(each, [flight for flight in self.flights if flight.batch is each]) for each in batches]
        in_flight += self._again
        if not in_flight:
            return self.selector.state
        seats = [[*seat, count] for seat, count in self._seats.items()]
        orders = {step: order.state for step, order in self._orders.items() if step > self._awaited}
        return {**self.selector.state, "in_flight": in_flight, "seats": seats, "orders": orders}

    def _state(self, batch: Started, flights: Sequence[Flight]) -> dict[str, Any]:
        groups, arrived = {}, list(dict.fromkeys([*self.arrived, *self.finished]))
        for flight in flights:
            groups[flight.group.number] = {
                "sampled": flight.metered.state() if flight.metered else [],
                "learned": [(list(each.ends), each.finished) for each in flight.learned.values()],
                "arrived": arrived.index(flight) if flight in arrived else None,
            }
        return {**dataclasses.asdict(batch), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned, and replay groups in flight.

        Under a budget, their responses come from the checkpoint, and only their environments answer again.
        """
        self._again = [*state.get("in_flight", ()), *_of_earlier_versions(state)]
        self._given = [number for batch in state.get("started", ()) for number in batch]
        self._seats = Counter({(step, place): count for step, place, count in state.get("seats", ())})
        self.selector.state = {name: value for name, value in state.items() if name not in _OURS}
        begun = state.get("orders", {})
        self._orders = {step: TaskOrder.restore(self.selector, step, order) for step, order in begun.items()}

    async def start_again(self) -> None:
        """Start the groups that an earlier process had in flight."""
        again, self._again = self._again, []
        arrived: dict[int, Flight] = {}
        for each in again:
            batch = Started(**{name: value for name, value in each.items() if name != "groups"})
            groups = each["groups"]
            chosen = [place for place, number in enumerate(batch.places) if number in groups]
            begun = len(self.flights)
            await self._play(batch, chosen, {place: groups[batch.places[place]]["sampled"] for place in chosen})
            for flight in self.flights[begun:]:
                learned = groups[flight.group.number]["learned"]
                restored = [Learned(list(ends), finished) for ends, finished in learned]
                flight.learned = dict(zip(flight.learned, restored, strict=True))
                if (place := groups[flight.group.number].get("arrived")) is not None:
                    arrived[place] = flight
        self.arrived += [arrived[place] for place in sorted(arrived)]


def _of_earlier_versions(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the half-played groups of a checkpoint that was saved before version 0.3 as batches of one group."""
    groups = state.get("unfinished", ())
    learned = state.get("learned") or [[([], False)] * len(group["sampled"]) for group in groups]
    return [
        {
            "step": 0,
            "seed": group["seed"],
            "numbers": [group["task"]],
            "places": [group["place"]],
            "groups": {group["place"]: {"sampled": group["sampled"], "learned": parts}},
        }
        for group, parts in zip(groups, learned, strict=True)
    ]
