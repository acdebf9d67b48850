"""Play tasks or starts and wait for them, as evaluations and analyses do."""

import asyncio
import dataclasses
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from turnwise.base.blocking import blocking
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.rollout.agents import Request
from turnwise.rollout.around import Around
from turnwise.rollout.collect import play
from turnwise.rollout.groups import Collector, OnTurn, TaskBatch
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

T = TypeVar("T")


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
    """Play each task with a group of trajectories, and wait for all; see `TaskBatch` for the arguments.

    Returns:
        Trajectories, those of a group adjacent, groups numbered from 0.
    """
    batch = TaskBatch(
        models=models, tasks=tasks, seed=seed, group_size=group_size, temperature=temperature, on_turn=on_turn
    )
    return blocking(_play_batch(collector, batch))


async def _play_batch(collector: Collector, batch: TaskBatch) -> list[Trajectory]:
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
    """Await coroutines concurrently; an exception cancels the others, and is raised once all have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Progress:
    """Add up the progress of groups."""

    def __init__(self, on_turn: OnTurn):
        self._on_turn = on_turn
        self._live = self._total = 0

    def part(self) -> OnTurn:
        """Return the callback of another group."""
        if self._on_turn is None:
            return None
        before = 0, 0

        def note_progress(live: int, total: int) -> None:
            nonlocal before
            self._live += live - before[0]  # an evaluation has hundreds of groups, and many turns
            self._total += total - before[1]
            before = live, total
            assert self._on_turn is not None
            self._on_turn(self._live, self._total)

        return note_progress


def play_starts(starts: Sequence[Start], request: Request, collector: Collector | None = None) -> list[Trajectory]:
    """Play one trajectory per start, and wait for all.

    The run's collector wraps these as it wraps trajectories with given turns.
    """
    starts = [collector.put_given(each) for each in starts] if isinstance(collector, Around) else starts
    return blocking(play(starts, request))
