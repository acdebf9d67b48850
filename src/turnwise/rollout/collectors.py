"""Define collectors: how the group of a task is played."""

import asyncio
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from turnwise.environments.base import Task
from turnwise.errors import ConfigError, did_you_mean
from turnwise.imports import import_named
from turnwise.models.policy import Policy
from turnwise.options import check_names
from turnwise.rollout.blocking import blocking
from turnwise.rollout.collect import play
from turnwise.rollout.engine import Engine, Sampling
from turnwise.rollout.environments import Environments
from turnwise.rollout.gate import OwnConversations, OwnEnvironments
from turnwise.rollout.models import Models
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

T = TypeVar("T")
OnTurn = Callable[[int, int], None] | None
"""Called after every turn with the number of live trajectories and of all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Tasks to play at the same time, a group each.

    Attributes:
        models: Models of the run; the policy acts.
        tasks: One per group.
        places: Number of each group among those that are numbered together; default: 0, 1, ...
        together: How many groups are numbered together; default: those of the batch.
        seed: Seed of the sampling. Draws depend on it, on a group's number, and on a trajectory's place in the group.
        group_size: Trajectories per task, as in an evaluation; None: training, with the recipe's number.
        temperature: Default: the recipe's, with its top_p. A given one sets top_p to 1.
        on_turn: Progress callback.
        engine: Generates; default: the policy's.
        environments: Where the tasks are played; default: those of the collector.
    """

    models: Models
    tasks: Sequence[Task]
    places: Sequence[int] | None = None
    together: int | None = None
    seed: int
    group_size: int | None = None
    temperature: float | None = None
    on_turn: OnTurn = None
    engine: Engine | None = None
    environments: Environments | None = None

    @property
    def training(self) -> bool:
        """Whether steps learn from the batch; otherwise it evaluates."""
        return self.group_size is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A group to play.

    Attributes:
        models: Models of the run; the policy acts.
        task: Its task.
        name: Name of the task in records.
        number: Its number among the groups that are numbered together.
        size: Its trajectories.
        first: Number of its first trajectory.
        stride: Above the numbers of all trajectories that are numbered together.
        seed: Seed of the sampling.
        training: Whether steps learn from it.
        temperature: That of an evaluation; None: the recipe's.
        engine: Generates for this group; conversations have the numbers of their trajectories, plus multiples of
            `stride`.
        environments: Where it is played.
        on_turn: Progress callback.
        plan: What the collector has decided about the group.
        watched: Takes in the trajectories while they are played, for steps that learn from half-played ones.
    """

    models: Models
    task: Task
    name: str
    number: int
    size: int
    first: int
    stride: int
    seed: int
    training: bool
    temperature: float | None
    engine: Engine
    environments: Environments
    on_turn: OnTurn = None
    plan: Any = None
    watched: dict[int, Trajectory] | None = None

    def starts(self) -> list[Start]:
        """Start the task once per trajectory."""
        numbers = range(self.first, self.first + self.size)
        starts = [Start(self.task, self.number, self.name, conversation=number) for number in numbers]
        if self.watched is None:
            return starts
        self.watched.update({number: Trajectory(self.number, self.name) for number in numbers})
        return [
            dataclasses.replace(start, into=self.watched[number]) for start, number in zip(starts, numbers, strict=True)
        ]


class Collector(Protocol):
    """Plays groups of trajectories. One that remembers has `state_dict` and `load_state_dict` too."""

    async def plan(self, batch: Batch) -> list[Group]:
        """Divide a batch into its groups, one per task."""
        ...

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group. Different groups are played concurrently, on one event loop."""
        ...

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Take in what a step has played, in the order in which the groups were started."""
        ...


class Independent:
    """Play the trajectories of a group concurrently and independently of each other.

    Args:
        environments: Where the trajectories are played.
        settings: The `[rollout]` of a recipe.
        task_name: Names a task in records.
    """

    def __init__(self, environments: Environments, settings: RolloutConfig, task_name: Callable[[Task], str] = str):
        self._environments, self._settings, self._task_name = environments, settings, task_name

    async def plan(self, batch: Batch) -> list[Group]:
        """Divide a batch into its groups; see `Collector.plan`."""
        size = batch.group_size or self._settings.group_size
        return self._groups(batch, [size] * len(batch.tasks))

    def _groups(
        self,
        batch: Batch,
        sizes: Sequence[int],
        plans: Iterable[Any] = itertools.repeat(None),
        *,
        most: int | None = None,
    ) -> list[Group]:
        """Make the groups of a batch.

        Args:
            batch: The batch.
            sizes: Trajectories of each group.
            plans: What was decided about each group.
            most: Most trajectories that a group could have; default: the largest group's.
        """
        count, most = len(batch.tasks), most or max(sizes, default=0)
        places, together = list(batch.places or range(count)), batch.together or count
        firsts, stride = [place * most for place in places], together * most
        if places == list(range(together)):  # alone: numbered without gaps
            firsts, stride = [0, *itertools.accumulate(sizes)], sum(sizes)
        return [
            Group(
                models=batch.models,
                task=task,
                name=self._task_name(task),
                number=place,
                size=size,
                first=first,
                stride=stride,
                seed=batch.seed,
                training=batch.training,
                temperature=batch.temperature,
                engine=OwnConversations(batch.engine or batch.models.policy.sampler),
                environments=OwnEnvironments(batch.environments or self._environments),
                on_turn=batch.on_turn,
                plan=plan,
            )
            for task, place, size, first, plan in zip(batch.tasks, places, sizes, firsts, plans, strict=False)
        ]

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group; see `Collector.play`."""
        return await self._play_starts(group, group.starts())

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Learn nothing."""

    async def _play_starts(self, group: Group, starts: Sequence[Start], **more: Any) -> list[Trajectory]:
        """Play trajectories of a group; `more` replaces arguments of `collect.play`."""
        policy, settings = group.models.policy.policy, self._settings
        how: dict[str, Any] = {
            "engine": group.engine,
            "environments": group.environments,
            "sampling": make_sampling(settings, policy, seed=group.seed, temperature=group.temperature),
            "max_context": policy.max_context,
            "window": settings.remembered,
            "on_turn": group.on_turn,
            "stride": group.stride,
            "close": False,
        }
        return await play(starts=starts, fmt=policy.format, **how | more)


def play_tasks(
    collector: Collector,
    models: Models,
    tasks: Sequence[Task],
    *,
    seed: int,
    group_size: int | None = None,
    temperature: float | None = None,
    on_turn: OnTurn = None,
) -> list[Trajectory]:
    """Play each task with a group of trajectories, and wait for all; see `Batch` for the arguments.

    Returns:
        Trajectories, those of a group adjacent, groups numbered from 0.
    """
    batch = Batch(
        models=models, tasks=tasks, seed=seed, group_size=group_size, temperature=temperature, on_turn=on_turn
    )
    return blocking(_play_batch(collector, batch))


async def _play_batch(collector: Collector, batch: Batch) -> list[Trajectory]:
    progress = Progress(batch.on_turn)
    groups = [dataclasses.replace(each, on_turn=progress.part()) for each in await collector.plan(batch)]
    try:
        played = await all_of([collector.play(group) for group in groups])
    finally:
        await batch.models.policy.sampler.aclose()
    if batch.training:
        collector.learn(list(zip(groups, played, strict=True)))
    return [trajectory for each in played for trajectory in each]


async def all_of(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await coroutines concurrently; what one raises cancels the others, and is raised once all have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Progress:
    """Add up the progress of groups.

    Args:
        on_turn: Called with the sums.
    """

    def __init__(self, on_turn: OnTurn):
        self._on_turn = on_turn
        self._parts: list[tuple[int, int]] = []

    def part(self) -> OnTurn:
        """Return the callback of another group."""
        if self._on_turn is None:
            return None
        place = len(self._parts)
        self._parts.append((0, 0))

        def told(live: int, total: int) -> None:
            self._parts[place] = live, total
            assert self._on_turn is not None
            self._on_turn(sum(live for live, _ in self._parts), sum(total for _, total in self._parts))

        return told


def play_starts(
    models: Models,
    starts: Sequence[Start],
    environments: Environments,
    settings: RolloutConfig,
    *,
    seed: int,
    temperature: float | None = None,
    on_turn: OnTurn = None,
) -> list[Trajectory]:
    """Play one trajectory per start, concurrently, with the policy; see `Batch` for the other arguments."""
    policy = models.policy.policy
    played = play(
        models.policy.sampler,
        starts,
        environments,
        policy.format,
        sampling=make_sampling(settings, policy, seed=seed, temperature=temperature),
        max_context=policy.max_context,
        window=settings.remembered,
        on_turn=on_turn,
    )
    return blocking(played)


def make_sampling(settings: RolloutConfig, policy: Policy, *, seed: int, temperature: float | None = None) -> Sampling:
    """Make the sampling settings of a run; a given temperature sets top_p to 1."""
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        stop_ids=(policy.format.stop_id,),
        stop=settings.stop,
        temperature=settings.temperature if temperature is None else temperature,
        top_p=settings.top_p if temperature is None else 1.0,
        seed=seed,
    )


COLLECTORS: dict[str, str] = {
    "independent": "turnwise.rollout.collectors:Independent",
    "branching": "turnwise.rollout.branching:make_branching",
    "arrol": "turnwise.rollout.pruning:Pruning",
    "v0": "turnwise.rollout.allotment:make_allotted",
    "self_play": "turnwise.rollout.self_play:SelfPlay",
}
"""Collectors by the name that `rollout.collector` takes."""


def make_collector(settings: RolloutConfig, environments: Environments, task_name: Callable[[Task], str]) -> Collector:
    """Make the collector that a recipe names.

    Raises:
        ConfigError: The collector or an option of it is unknown, or an option does not fit.
    """
    name, options = settings.collector.name, settings.collector.model_extra or {}
    if name not in COLLECTORS:
        raise ConfigError(f"unknown rollout.collector {name!r}.{did_you_mean(name, COLLECTORS)}")
    make = import_named(COLLECTORS[name])
    parameters = inspect.signature(make).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):  # those check their options themselves
        known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        check_names(f"rollout.collector={name!r}", options, known)
    return make(environments, settings, task_name, **options)
