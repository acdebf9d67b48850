"""Keep groups in flight on one event loop, and take those that a step learns from."""

import asyncio
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from turnwise.environments.base import Task
from turnwise.models.format import Format
from turnwise.rollout.blocking import LastingLoop, Loop
from turnwise.rollout.collectors import Batch, Collector, Group, OnTurn
from turnwise.rollout.environments import Environments
from turnwise.rollout.experience import Experience
from turnwise.rollout.gate import VisitedEngine
from turnwise.rollout.line import Budget, Line, Metered, MeteredEngine, Sampled
from turnwise.rollout.models import Models
from turnwise.rollout.selection import TaskSelector, build_selector
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(eq=False)
class Flight:
    """A group in flight.

    Attributes:
        step: The step for which it was started.
        number: Number of its task among the tasks.
        batch: Batch with which it was started.
        group: What is played.
        playing: Plays it.
        metered: Its share of a budget, if there is one.
        learned: What steps have learned of its trajectories, by their numbers, where they learn from half-played ones.
        live: Trajectories that have not ended, and all.
    """

    step: int
    number: int
    batch: "Started"
    group: Group
    playing: asyncio.Task[list[Trajectory]]
    metered: Metered | None = None
    learned: dict[int, "Learned"] = dataclasses.field(default_factory=dict)
    live: tuple[int, int] = (0, 0)

    @property
    def watched(self) -> dict[int, Trajectory]:
        """Its trajectories while they are played, by their numbers."""
        return self.group.watched or {}

    @property
    def lines(self) -> dict[int, Line]:
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


@dataclasses.dataclass(frozen=True, eq=False)
class Started:
    """Groups that were started together.

    Attributes:
        step: The step for which they were started.
        seed: Seed of their draws.
        numbers: Numbers of their tasks.
        places: Their numbers among the groups that are numbered together.
    """

    step: int
    seed: int
    numbers: list[int]
    places: list[int]


@dataclasses.dataclass
class Learned:
    """What steps have learned of a half-played trajectory.

    Attributes:
        ends: Its generated tokens at the ends of the steps so far.
        told: Whether a step had it after its end.
    """

    ends: list[int] = dataclasses.field(default_factory=list)
    told: bool = False


class Take(Protocol):
    """Says what a step learns from."""

    async def take(self, pool: "Pool", step: int) -> Experience:
        """Wait until there is enough, and take it out of the pool."""
        ...


class Pool:
    """Keep groups in flight, and collect the experience of each step.

    There are always enough groups in flight for the present step, and for as many later ones as `rollout.max_lag` says.
    A group that a step drops makes room for another one. By default, groups are taken in the order in which they were
    started, whichever is done first, so what a step learns from does not depend on how fast episodes are.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        take: Says what a step learns from; default: what the settings say.
        selector: Chooses the tasks; default: the one that `rollout.select` names.
        last_step: Last step of the run, beyond which nothing is started.
        loop: Where groups are played; default: in the trainer's thread, while a step waits for them.
        environments: Where they are played; default: those of the collector.

    Attributes:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        last_step: Last step of the run.
        selector: Chooses the tasks.
        flights: Groups in flight, in the order of their start.
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
        from turnwise.rollout.take import make_take

        name, options = settings.select.name, settings.select.model_extra or {}
        self.tasks, self.settings, self._seed, self.last_step = tasks, settings, seed, last_step
        self.selector = selector or build_selector(name, options, num_tasks=len(tasks), seed=seed)
        self._take = take or make_take(settings)
        self._loop, self._environments = loop or LastingLoop(), environments
        self.flights: list[Flight] = []
        self._again: list[dict[str, Any]] = []  # batches that an earlier process had started
        self._given: list[int] = []  # tasks that an earlier version of the package had started
        self._orders: dict[int, Iterator[int]] = {}
        self._seats: Counter[tuple[int, int]] = Counter()  # groups started so far for a step at a place
        self._budget: Budget | None = None
        self._spending: asyncio.Task[int] | None = None
        self._finished: list[Flight] = []
        self._collector: Any = None
        self._models: Any = None
        self._on_turn: OnTurn = None
        self._awaited = 0

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step; see `Take`."""
        self._collector, self._models, self._on_turn, self._awaited = collector, models, on_turn, step
        return self._loop.run(self._next(step))

    async def _next(self, step: int) -> Experience:
        try:
            await self._start_again()
            experience = await self._take.take(self, step)
            if not self._loop.apart:
                await self._models.policy.sampler.aclose()
            return experience
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        if self._spending:
            self._spending.cancel()
        for flight in self.flights:
            flight.playing.cancel()
        await asyncio.gather(*(flight.playing for flight in self.flights), return_exceptions=True)
        self.flights = []

    # -- what takes use ------------------------------------------------------------------------------------------------

    async def first(self) -> Flight:
        """Wait for the group that is taken next: the first that was started or, if so set, that is done.

        Raises:
            EngineLost: The engine was lost; whichever group tells first.
        """
        while True:
            for flight in self.flights:
                if flight.done:
                    _ = flight.trajectories
            ready = [each for each in self._finished if each in self.flights]
            if self.settings.order == "started":
                ready = [each for each in self.flights[:1] if each.done]
            if ready:
                return ready[0]
            playing = [flight.playing for flight in self.flights if not flight.done]
            if playing:
                await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)  # which of them was done first is told with the next turn of the loop

    def complete(self) -> Flight | None:
        """Return the first group that was started and is done, if there is one."""
        return next((flight for flight in self.flights if flight.done), None)

    def learn(self, taken: Sequence[Flight]) -> None:
        """Let the collector learn from groups."""
        self._finished = [each for each in self._finished if each in self.flights]
        self._collector.learn([(flight.group, flight.trajectories) for flight in taken])

    @property
    def num_unfinished(self) -> int:
        """Trajectories in flight that have not ended."""
        return sum(flight.metered.live for flight in self.flights if flight.metered)

    @property
    def format(self) -> Format:
        """Format of the policy."""
        return self._models.policy.policy.format

    def _tell(self) -> None:
        """Show the progress of the groups that the present step waits for."""
        if self._on_turn:
            told = [flight.live for flight in self.flights if flight.step <= self._awaited]
            self._on_turn(sum(live for live, _ in told), sum(total for _, total in told))

    # -- starting groups -----------------------------------------------------------------------------------------------

    async def start(self, step: int, count: int) -> None:
        """Start groups for a step, of the tasks that the selector chooses next for it."""
        if count < 1:
            return
        if step not in self._orders:
            self._orders[step] = self.selector.choose(step)
        order = self._orders[step]
        self._orders = {each: order for each, order in self._orders.items() if each >= self._awaited}
        self._seats = Counter({seat: count for seat, count in self._seats.items() if seat[0] >= self._awaited})
        given, self._given = self._given[:count], self._given[count:]
        numbers, places = [*given, *itertools.islice(order, count - len(given))], self._free_places(step, count)
        later = [self._seats[step, place] for place in places]
        for place in places:
            self._seats[step, place] += 1
        for part in sorted({*later}):  # those of a place that was taken before have draws of their own
            own = [each for each, seat in enumerate(later) if seat == part]
            batch = Started(step, self._seed_of(step, part), [numbers[n] for n in own], [places[n] for n in own])
            await self._play(batch, range(len(own)))

    def _seed_of(self, step: int, part: int) -> int:
        most = 1 if self.settings.filter == "none" else self.settings.max_batches
        return (self._seed * 100_003 + step) * most + part % most + (part // most << 52)

    def _free_places(self, step: int, count: int) -> list[int]:
        """Return numbers for groups: with a budget those that no group in flight has, else the next ones of a step."""
        groups = self.settings.groups
        if self.settings.step_budget:
            taken = {flight.group.number for flight in self.flights}
            return list(itertools.islice((each for each in itertools.count() if each not in taken), count))
        begun = sum(self._seats[step, place] for place in range(groups))
        return [(begun + each) % groups for each in range(count)]

    @property
    def _together(self) -> int:
        """Groups that are numbered together."""
        return self.settings.in_progress if self.settings.step_budget else self.settings.groups

    async def _play(self, started: Started, chosen: Sequence[int], sampled: Mapping[int, Any] | None = None) -> None:
        """Start the chosen groups of a batch."""
        models, environments = self._models, self._environments
        batch = Batch(
            models=models,
            tasks=[self.tasks[number] for number in started.numbers],
            places=started.places,
            together=self._together,
            seed=started.seed,
            engine=shared(models.policy.sampler),
            environments=environments,
        )
        planned = await self._collector.plan(batch)
        for place in chosen:
            self._fly(started, place, planned[place], (sampled or {}).get(place, ()))

    def _fly(self, started: Started, place: int, group: Group, sampled: Sequence[Any]) -> None:
        """Start a group of a batch."""
        metered = self._metered(group, sampled) if self.settings.step_budget else None

        def told(live: int, total: int) -> None:
            flight.live = live, total
            if metered:
                metered.live = live
                self._the_budget.changed()
            self._tell()

        group = dataclasses.replace(group, on_turn=told)
        if metered:
            watched = {} if self.settings.learns_played else None
            engine = MeteredEngine(group.engine, metered.lines, group.stride)
            group = dataclasses.replace(group, engine=engine, watched=watched)
        playing = asyncio.ensure_future(self._collector.play(group))
        flight = Flight(started.step, started.numbers[place], started, group, playing, metered)
        flight.learned = {number: Learned() for number in range(group.first, group.first + group.size)}
        if metered:
            metered.playing = playing
        self.flights.append(flight)
        playing.add_done_callback(lambda _: self._ended(flight))

    def _ended(self, flight: Flight) -> None:
        self._finished.append(flight)
        if self._budget:
            self._budget.changed()

    def _metered(self, group: Group, sampled: Sequence[Any]) -> Metered:
        """Make the lines of a group that waits for shares of the budget."""
        step_budget, budget = self.settings.step_budget, self._the_budget
        assert step_budget is not None

        def line(place: int) -> Line:
            past = [Sampled.of(each) for each in sampled[place]] if place < len(sampled) else ()
            by_turns, cuts = step_budget.turns is not None, self.settings.learns_played
            return Line(by_turns=by_turns, cuts=cuts, sampled=past, on_change=budget.changed)

        return Metered(group.first, group.size, line)

    @property
    def _the_budget(self) -> Budget:
        assert self.settings.step_budget is not None
        if self._budget is None:
            by_tokens = self.settings.step_budget.tokens and not self.settings.learns_played
            least = self.settings.max_new_tokens if by_tokens else 1
            self._budget = Budget(self.settings.step_budget.amount, least)
        return self._budget

    async def spend(self) -> int:
        """Let the groups in flight share the budget of a step; returns what was spent."""
        return await self._the_budget.spend([each.metered for each in self.flights if each.metered])

    def spend_ahead(self) -> None:
        """Let the groups in flight share the budget of the next step already now."""
        self._spending = asyncio.ensure_future(self.spend())

    async def spent_ahead(self) -> int:
        """Wait until the budget of a step is spent, from now on or ahead; returns what was spent."""
        spending, self._spending = self._spending, None
        return await (spending or self.spend())

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of task selection and the groups in flight, for checkpoints."""
        batches = dict.fromkeys(flight.batch for flight in self.flights)
        in_flight = [self._state(each, [flight for flight in self.flights if flight.batch is each]) for each in batches]
        in_flight += self._again
        if not in_flight:
            return self.selector.state
        seats = [[*seat, count] for seat, count in self._seats.items()]
        return {**self.selector.state, "in_flight": in_flight, "seats": seats}

    @staticmethod
    def _state(batch: Started, flights: Sequence[Flight]) -> dict[str, Any]:
        groups = {}
        for flight in flights:
            lines = flight.lines.values() if flight.metered else ()
            groups[flight.group.number] = {
                "sampled": [[each.state() for each in line.sampled] for line in lines],
                "learned": [(list(each.ends), each.told) for each in flight.learned.values()],
            }
        return {**dataclasses.asdict(batch), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Groups in flight are played again so far.

        Under a budget, their responses are those of the checkpoint, and only their environments answer again.
        """
        self._again = [*state.get("in_flight", ()), *_of_earlier_versions(state)]
        self._given = [number for batch in state.get("started", ()) for number in batch]
        self._seats = Counter({(step, place): count for step, place, count in state.get("seats", ())})
        self.selector.state = {name: value for name, value in state.items() if name not in _OURS}

    async def _start_again(self) -> None:
        again, self._again = self._again, []
        for each in again:
            batch = Started(*(each[name] for name in ("step", "seed", "numbers", "places")))
            groups = each["groups"]
            chosen = [place for place, number in enumerate(batch.places) if number in groups]
            begun = len(self.flights)
            await self._play(batch, chosen, {place: groups[batch.places[place]]["sampled"] for place in chosen})
            for flight in self.flights[begun:]:
                learned = groups[flight.group.number]["learned"]
                told = [Learned(list(ends), told) for ends, told in learned]
                flight.learned = dict(zip(flight.learned, told, strict=True))


_OURS = ("in_flight", "seats", "started", "unfinished", "learned")
"""Keys of the state that are not those of the task selection."""


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
            "groups": {group["place"]: {"sampled": group["sampled"], "learned": told}},
        }
        for group, told in zip(groups, learned, strict=True)
    ]


def shared(engine: Any) -> Any:
    """Return the gate that is visited from outside, or the engine itself."""
    return engine.engine if isinstance(engine, VisitedEngine) else engine
