"""Define collectors: how the group of a task is played."""

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol

from turnwise.environments.base import Task
from turnwise.errors import ConfigError
from turnwise.imports import import_named
from turnwise.models.policy import Policy
from turnwise.options import check_names, unknown
from turnwise.rollout.blocking import blocking
from turnwise.rollout.collect import play
from turnwise.rollout.engine import Engine, Sampling
from turnwise.rollout.environments import Environments
from turnwise.rollout.models import Models
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start, make_starts
from turnwise.rollout.trajectory import Trajectory

OnTurn = Callable[[int, int], None] | None
"""Called after every turn with the number of live trajectories and of all."""


class Collector(Protocol):
    """Plays groups of trajectories."""

    def play(
        self,
        models: Models,
        tasks: Sequence[Task],
        *,
        seed: int,
        group_size: int | None = None,
        temperature: float | None = None,
        on_turn: OnTurn = None,
    ) -> list[Trajectory]:
        """Play each task with a group of trajectories.

        Args:
            models: Models of the run; the policy acts.
            tasks: One per group.
            seed: Seed of the sampling.
            group_size: Trajectories per task; default: the recipe's.
            temperature: Default: the recipe's, with its top_p. A given one sets top_p to 1.
            on_turn: Progress callback.

        Returns:
            Trajectories, those of a group adjacent, groups numbered from 0.
        """
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

    def play(
        self,
        models: Models,
        tasks: Sequence[Task],
        *,
        seed: int,
        group_size: int | None = None,
        temperature: float | None = None,
        on_turn: OnTurn = None,
    ) -> list[Trajectory]:
        """Play each task with a group of trajectories; see `Collector.play`."""
        starts = make_starts(tasks, group_size or self._settings.group_size, self._task_name)
        return play_starts(
            models, starts, self._environments, self._settings, seed=seed, temperature=temperature, on_turn=on_turn
        )


def play_starts(
    models: Models,
    starts: Sequence[Start],
    environments: Environments,
    settings: RolloutConfig,
    *,
    seed: int,
    temperature: float | None = None,
    on_turn: OnTurn = None,
    engine: Engine | None = None,
) -> list[Trajectory]:
    """Play one trajectory per start, concurrently; see `Collector.play`. The default engine is the policy's."""
    policy = models.policy.policy
    played = play(
        models.policy.sampler if engine is None else engine,
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
        raise ConfigError(unknown("rollout.collector", name, COLLECTORS))
    make = import_named(COLLECTORS[name])
    parameters = inspect.signature(make).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):  # those check their options themselves
        known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        check_names(f"rollout.collector={name!r}", options, known)
    return make(environments, settings, task_name, **options)
