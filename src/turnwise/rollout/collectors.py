"""Play the trajectories of a group independently, and find other collectors by name."""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import ConfigError
from turnwise.base.imports import import_callable
from turnwise.base.register import COLLECTORS
from turnwise.credit.options import check_names, unknown
from turnwise.engines.base import Sampling
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play
from turnwise.rollout.gate import OwnConversations, OwnEnvironments
from turnwise.rollout.groups import Collector, Group, TaskBatch
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from turnwise.models.policy import Policy


class Independent:
    """Play the trajectories of a group concurrently and independently of each other.

    Args:
        environments: Where the trajectories are played.
        settings: The `[rollout]` of a recipe.
        task_name: Names a task in records.
    """

    def __init__(self, environments: Environments, settings: RolloutConfig, task_name: Callable[[Task], str] = str):
        self._environments, self._settings, self._task_name = environments, settings, task_name

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups; see `Collector.plan`."""
        size = batch.group_size or self._settings.group_size
        return self._groups(batch, [size] * len(batch.tasks))

    def _groups(
        self,
        batch: TaskBatch,
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
            most: Maximum size of a group; default: those of the largest group.
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
        """Play trajectories of a group; `more` replaces parts of the request."""
        how = {"seed": group.seed, "temperature": group.temperature, "stride": group.stride, "on_turn": group.on_turn}
        request = make_request(group.models, group.environments, self._settings, engine=group.engine, **how)
        return await play(starts, dataclasses.replace(request, close=False, **more))


def make_request(
    models: Models,
    environments: Environments,
    settings: RolloutConfig,
    *,
    seed: int,
    temperature: float | None = None,
    **more: Any,
) -> Request:
    """Make the request to play with the policy by a recipe's `[rollout]`; `more` adds parts to it."""
    policy = models.policy.policy
    how = {
        "engine": models.policy.sampler,
        "sampling": make_sampling(settings, policy, seed=seed, temperature=temperature),
        "window": settings.remembered,
    }
    return Request(environments=environments, fmt=policy.format, max_context=policy.max_context, **how | more)


def make_sampling(
    settings: RolloutConfig, policy: "Policy", *, seed: int, temperature: float | None = None
) -> Sampling:
    """Make the sampling settings of a run; a given temperature sets top_p to 1."""
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        stop_ids=(policy.format.stop_id,),
        stop=settings.stop,
        temperature=settings.temperature if temperature is None else temperature,
        top_p=settings.top_p if temperature is None else 1.0,
        seed=seed,
    )


def make_collector(settings: RolloutConfig, environments: Environments, task_name: Callable[[Task], str]) -> Collector:
    """Make the collector that a recipe names.

    Raises:
        ConfigError: The collector or an option of it is unknown, or an option does not fit.
    """
    name, options = settings.collector.name, settings.collector.model_extra or {}
    if ":" not in name and name not in COLLECTORS:
        raise ConfigError(f"{unknown('rollout.collector', name, COLLECTORS)} Your own is 'module:function'")
    make = import_callable("rollout.collector", name) if ":" in name else COLLECTORS[name]
    parameters = inspect.signature(make).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):  # those check their options themselves
        own = {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}
        check_names(f"rollout.collector={name!r}", options, own)
        if lacking := [option for option, each in own.items() if each.default is each.empty and option not in options]:
            raise ConfigError(f"rollout.collector={name!r} needs the option {lacking[0]!r}")
    return make(environments, settings, task_name, **options)
