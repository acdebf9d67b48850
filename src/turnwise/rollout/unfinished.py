"""End the rollout of a step at a budget, and go on with half-played trajectories in the next step."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from turnwise.environments.base import Step, Task
from turnwise.rollout.ahead import Lasting
from turnwise.rollout.collect import play
from turnwise.rollout.collectors import Collector, OnTurn, make_sampling
from turnwise.rollout.environments import Environments
from turnwise.rollout.experience import Experience, lag_metrics, outcomes, spreads
from turnwise.rollout.half import Half, Sampled
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.models import Models
from turnwise.rollout.selection import widest
from turnwise.rollout.settings import RolloutConfig, StepBudgetConfig
from turnwise.rollout.source import Source
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

APART = 2**32
"""Added to the keys of environments, so that those of an evaluation between two steps are others."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """A group in progress: its place among those, the number of its task, the seed of its draws, its trajectories."""

    place: int
    task: int
    seed: int
    halves: list[Half]


class Unfinished(Source):
    """Collect the experience of each step under a budget, and go on with half-played groups in the next step.

    More groups are in progress than a step learns from. A step divides its budget equally among the unfinished
    trajectories, and divides again what ended trajectories leave. A trajectory whose share does not hold another
    response waits. A step learns from `rollout.groups` groups whose trajectories have all ended, the oldest ones. While
    there are fewer, it takes a further budget, since there is nothing to learn yet.

    A run starts the tasks that it would start without a budget and no others. So it learns from each of them once, in
    steps of equal size, however long they take. Which turns a step plays depends on the responses only, not on how
    fast they are.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        environments: Where the trajectories are played.
        task_name: Names a task in records.
        rollouts: Has the event loop in which trajectories wait.
        last_step: Last step of the run, for which no further tasks are started.
    """

    _cuts: ClassVar[bool] = False
    """Whether a budget may end inside a response."""

    def __init__(
        self,
        tasks: Sequence[Task],
        settings: RolloutConfig,
        seed: int,
        *,
        environments: Environments,
        task_name: Callable[[Task], str],
        rollouts: Lasting,
        last_step: int,
    ):
        super().__init__(tasks, settings, seed, last_step=last_step)
        self._environments, self._task_name, self._loop = _Apart(environments), task_name, rollouts.loop
        self._groups: list[Group] = []  # in progress, oldest first

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Play until the groups of the step are complete; see the class. The collector is idle."""
        settings = self._settings
        self._refill(step, max(1, self._last_step - step + 1) * settings.groups - len(self._groups))
        spent = self._loop.run(self._play(models, on_turn))
        learned = self._complete[: settings.groups]
        self._groups = [group for group in self._groups if group not in learned]
        trajectories: list[Trajectory] = []
        for number, group in enumerate(learned):
            played = [half.trajectory for half in group.halves]
            for trajectory in played:
                trajectory.group = number
            trajectories += played
        successes_G, failures_G = outcomes(trajectories, len(learned))
        self._selector.observe(np.array([group.task for group in learned]), successes_G, failures_G)
        used_G = np.ones(len(learned), dtype=bool)
        if settings.keep_spread is not None:
            used_G &= widest(spreads(trajectories, used_G), settings.keep_spread)
        used_N = np.array([each.usable and used_G[each.group] for each in trajectories], dtype=bool)
        metrics = rollout_metrics(trajectories, filled_frac=used_G.sum() / settings.groups)
        metrics |= lag_metrics(trajectories, step)
        metrics["unfinished"] = float(sum(not half.ended for half in self._halves))
        metrics["spent"] = float(spent)
        numbers = [group.task for group in learned]
        return Experience(trajectories, used_N, metrics, [self._tasks[each] for each in numbers], numbers)

    def _refill(self, step: int, most: int) -> None:
        """Start tasks in the places that are free, not more than `most`."""
        free = sorted(set(range(self._settings.in_progress)) - {group.place for group in self._groups})[:most]
        for place, task in zip(free, itertools.islice(self._selector.choose(step), len(free)), strict=True):
            self._groups.append(self._new(place, task, self._seed * 100_003 + step))

    def _new(self, place: int, task: int, seed: int, sampled: Sequence[Sequence[Sampled]] = ()) -> Group:
        size = self._settings.group_size
        past = [*sampled, *([()] * (size - len(sampled)))]
        numbers = range(place * size, (place + 1) * size)
        return Group(place, task, seed, [self._half(each, own) for each, own in zip(numbers, past, strict=True)])

    def _half(self, number: int, sampled: Sequence[Sampled]) -> Half:
        return Half(number, by_turns=self._budget.turns is not None, sampled=sampled)

    def _start_of(self, group: Group, half: Half) -> Start:
        task = self._tasks[group.task]
        return Start(task, 0, self._task_name(task), conversation=half.number)

    @property
    def _budget(self) -> StepBudgetConfig:
        assert self._settings.step_budget is not None
        return self._settings.step_budget

    @property
    def _enough(self) -> bool:
        """Whether a step can learn from what is played."""
        return len(self._complete) >= min(self._settings.groups, len(self._groups))

    @property
    def _halves(self) -> list[Half]:
        return [half for group in self._groups for half in group.halves]

    @property
    def _complete(self) -> list[Group]:
        return [group for group in self._groups if all(half.ended for half in group.halves)]

    async def _play(self, models: Models, on_turn: OnTurn) -> int:
        """Play until a budget is spent and the groups of a step are complete; returns what was spent."""
        engine, halves = models.policy.sampler, self._halves
        self._progress = lambda: on_turn and on_turn(sum(not half.ended for half in halves), len(halves))
        least = self._settings.max_new_tokens if self._budget.tokens and not self._cuts else 1
        spent = 0
        try:
            for group in self._groups:
                for half in group.halves:
                    half.engine = engine
                    if not half.begun:
                        half.begin(self._play_one(models, group, half))
            while True:
                spent += await _spend(halves, self._budget.amount, least)
                if self._enough:
                    return spent
        finally:
            await engine.aclose()

    async def _play_one(self, models: Models, group: Group, half: Half) -> list[Trajectory]:
        policy, settings = models.policy.policy, self._settings
        return await play(
            half,
            [self._start_of(group, half)],
            self._environments,
            policy.format,
            sampling=make_sampling(settings, policy, seed=group.seed),
            max_context=policy.max_context,
            window=settings.remembered,
            on_turn=lambda *_: self._progress(),
            stride=settings.in_progress * settings.group_size,
            close=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of task selection and the half-played groups, for checkpoints."""
        halves = [
            {
                "place": each.place,
                "task": each.task,
                "seed": each.seed,
                "sampled": [half.state() for half in each.halves],
            }
            for each in self._groups
        ]
        return {**self._selector.state, "unfinished": halves} if halves else self._selector.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Half-played trajectories are played again so far.

        Their responses are those of the checkpoint; only their environments answer again.
        """
        self._selector.state = {name: value for name, value in state.items() if name != "unfinished"}
        for group in state.get("unfinished", ()):
            sampled = [[Sampled.of(each) for each in half] for half in group["sampled"]]
            self._groups.append(self._new(group["place"], group["task"], group["seed"], sampled))


async def _spend(halves: Sequence[Half], budget: int, least: int) -> int:
    """Let trajectories share a budget until it does not hold another response; returns what was spent.

    Args:
        halves: Trajectories, in the order in which a small budget goes round.
        budget: Turns or tokens.
        least: Those of the longest response.
    """
    left = budget
    while True:
        for half in halves:
            await half.idle()
        live = [half for half in halves if not half.ended][: left // least]
        if not live:
            return budget - left
        share = max(least, left // len(live))
        for half in live:
            half.grant(share)
        for half in live:
            await half.idle()
        left -= sum(share - half.share for half in live)


class _Apart:
    """Environments under keys of their own; see `Environments` for the methods."""

    def __init__(self, environments: Environments):
        self._environments = environments

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step."""
        return await self._environments.start(APART + key, task)

    async def step(self, key: int, response: str) -> Step:
        """Play one response."""
        return await self._environments.step(APART + key, response)

    def close(self, key: int) -> None:
        """Release an environment."""
        self._environments.close(APART + key)

    async def aclose(self) -> None:
        """Do nothing: the environments belong to the run."""
