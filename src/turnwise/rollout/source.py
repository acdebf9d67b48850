"""Collect the experience of a step: choose tasks, play them, filter the groups, and refill."""

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from turnwise.environments.base import Task
from turnwise.rollout.ahead import InStep, Rollouts
from turnwise.rollout.collectors import Collector, OnTurn
from turnwise.rollout.experience import Experience, lag_metrics, outcomes, spreads
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.models import Models
from turnwise.rollout.selection import TaskSelector, build_selector, kept, widest
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class _Started:
    """A batch that a step will learn from.

    Attributes:
        numbers: Its tasks.
        rest: Further tasks in the order of the step, to replace dropped groups.
        played: Waits for its trajectories.
    """

    numbers: list[int]
    rest: Iterator[int]
    played: Callable[[], list[Trajectory]]


class Source:
    """Collect the experience of each step, and remember which tasks were played.

    Each step learns from the batch that was started for it, whole and in the order started, also if others are done
    earlier. So what a step learns from does not depend on how fast episodes are.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        selector: Chooses the tasks; default: the one that `rollout.select` names.
        last_step: Last step of the run, beyond which nothing is played ahead.
        rollouts: Decides where batches are played; default: in the step that learns from them.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        settings: RolloutConfig,
        seed: int,
        selector: TaskSelector | None = None,
        *,
        last_step: int = 0,
        rollouts: Rollouts | None = None,
    ):
        name, options = settings.select.name, settings.select.model_extra or {}
        self._tasks, self._settings, self._seed, self._last_step = tasks, settings, seed, last_step
        self._selector = selector or build_selector(name, options, num_tasks=len(tasks), seed=seed)
        self._rollouts = rollouts or InStep()
        self._started: deque[_Started] = deque()  # batches of the next steps
        self._again: deque[list[int]] = deque()  # tasks of those that an earlier process had started
        self._awaited = 0  # step whose progress is shown

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Play batches of tasks until `rollout.groups` groups pass `rollout.filter`, at most `rollout.max_batches`.

        Without a filter, one batch is enough. Groups beyond `rollout.groups` are dropped, as in DAPO's release, so that
        all steps have equal size. A batch without usable trajectories ends the step, because further ones would fail
        too. Batches of the `rollout.max_lag` next steps are played meanwhile.
        """
        settings = self._settings
        start = functools.partial(self._start, collector, models, on_turn)
        group_filter = settings.filter_at(step)
        last = max(step, min(step + settings.max_lag, self._last_step))
        for number in range(step + len(self._started), last + 1):
            again = self._again.popleft() if self._again else ()
            self._started.append(start(number, itertools.chain(again, self._selector.choose(number)), 0))
        batch = self._started.popleft()
        chosen: list[int] = []
        trajectories: list[Trajectory] = []
        num_batches = 0
        self._awaited = step
        while True:
            played = batch.played()
            for trajectory in played:
                trajectory.group += len(chosen)
            num_batches += 1
            chosen += batch.numbers
            trajectories += played
            successes_G, failures_G = outcomes(trajectories, len(chosen))
            kept_G = kept(group_filter, successes_G, failures_G)
            broken = not any(trajectory.usable for trajectory in played)
            full = group_filter == "none" or num_batches == settings.max_batches or kept_G.sum() >= settings.groups
            if broken or full:
                break
            batch = start(step, batch.rest, num_batches)
        self._selector.observe(np.array(chosen), successes_G, failures_G)
        used_G = kept_G & (np.cumsum(kept_G) <= settings.groups)
        if settings.keep_spread is not None:
            used_G &= widest(spreads(trajectories, used_G), settings.keep_spread)
        filled_frac = used_G.sum() / settings.groups
        metrics = rollout_metrics(trajectories, batches=num_batches, kept_frac=kept_G.mean(), filled_frac=filled_frac)
        if settings.max_lag:
            metrics |= lag_metrics(trajectories, step)
        used_N = np.array([trajectory.usable and used_G[trajectory.group] for trajectory in trajectories], dtype=bool)
        return Experience(trajectories, used_N, metrics, [self._tasks[each] for each in chosen], chosen)

    def _start(
        self, collector: Collector, models: Models, on_turn: OnTurn, step: int, order: Iterator[int], number: int
    ) -> _Started:
        """Start a batch of a step, its first one (number 0) or one that replaces dropped groups."""

        def progress(live: int, total: int) -> None:
            if on_turn and step == self._awaited:
                on_turn(live, total)

        numbers = list(itertools.islice(order, self._settings.groups))
        seed = (self._seed * 100_003 + step) * self._max_batches + number  # no two batches of a run share one
        tasks = [self._tasks[each] for each in numbers]
        play = functools.partial(collector.play, models, tasks, seed=seed, on_turn=progress)
        return _Started(numbers, order, self._rollouts.start(play))

    @property
    def _max_batches(self) -> int:
        return 1 if self._settings.filter == "none" else self._settings.max_batches

    def state_dict(self) -> dict[str, Any]:
        """Return the state of task selection and the tasks of started batches, for checkpoints."""
        started = [*(batch.numbers for batch in self._started), *self._again]
        return {**self._selector.state, "started": started} if started else self._selector.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Batches that had been started are played from their start."""
        self._again = deque(state.get("started", ()))
        self._selector.state = {name: value for name, value in state.items() if name != "started"}
