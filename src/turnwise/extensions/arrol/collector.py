"""Prune trajectories while they are generated, by an estimate of their success (ARRoL)."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pydantic

from turnwise.base.errors import ConfigError, EngineFault, EnvironmentFault
from turnwise.base.shapes import Bool, Float
from turnwise.base.streams import Stream
from turnwise.engines.base import Engine, Generation, Sampling, give_back
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.rollout.collectors import Independent
from turnwise.rollout.groups import Group, TaskBatch
from turnwise.rollout.settings import RolloutConfig, checked_options
from turnwise.rollout.trajectory import Trajectory

RARE_FRAC = 0.2
"""Share of a trajectory's tokens whose least probabilities are a feature."""


Decide = Callable[[Float[np.ndarray, "N F"], Bool[np.ndarray, " N"]], Bool[np.ndarray, " N"]]
"""Function from the features of all trajectories, and which of them wait, to which continue."""


class Options(pydantic.BaseModel, extra="forbid", strict=True):
    """Options of the collector; see `Pruning`."""

    tokens: int = pydantic.Field(default=512, ge=1)
    keep: float = pydantic.Field(default=0.5, gt=0, le=1)
    warmup: int = pydantic.Field(default=20, ge=0)
    explore: float = pydantic.Field(ge=0, le=1)
    memory: int = pydantic.Field(ge=1)


class Pruning(Independent):
    """Play groups of trajectories, and stop some of them after their first tokens.

    A trajectory waits once it has generated `tokens` tokens, even inside a response. When all others wait or have
    ended, each group keeps the share `keep` of its trajectories, starting with those that have ended. Of the others it
    keeps those that bring the estimated success rate of all kept ones closest to one half. The rest end there: they are
    recorded as "pruned", and not learned from.

    The estimate is a logistic regression on the mean log-probability of the first tokens and on that of the least
    likely fifth of them, fitted to the last `memory` kept trajectories. The paper trains a network on hidden states
    inside the engine; we know only the form of that network and of the rule of survival. Both are ours here.

    Args:
        environments: Where the trajectories are played.
        settings: The `[rollout]` of a recipe.
        task_name: Names a task in records.
        options: tokens: Generated tokens after which a trajectory waits; 512 in the paper. keep: share of a group that
            is kept; 0.5 in the paper. warmup: steps in which nothing is pruned; about 20 in the paper. explore:
            Probability of keeping a trajectory that would be pruned, so that its kind has labels. memory: trajectories
            that the estimate is fitted to.

    Raises:
        ConfigError: An option is missing, unknown or impossible, or does not fit the rest of `[rollout]`.

    Reference: ARRoL, arXiv 2603.24840, of which we know the abstract and a summary.
    """

    def __init__(
        self,
        environments: Environments,
        settings: RolloutConfig,
        task_name: Callable[[Task], str] = str,
        **options: Any,
    ):
        super().__init__(environments, settings, task_name)
        self._options = _checked(options, settings)
        self._labelled: list[list[float]] = []  # features of kept trajectories, and whether each succeeded

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups, which know the estimate so far; see `Collector.plan`."""
        prunes, estimate = batch.planned_version >= self._options.warmup, Estimate(self._labelled)
        groups = await super().plan(batch)
        lots = np.random.default_rng([batch.seed, Stream.PRUNING]).random(groups[0].stride if groups else 0)
        return [
            dataclasses.replace(group, plan=_Plan(estimate, lots[group.first : group.first + group.size], prunes))
            for group in groups
        ]

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group; see `Collector.play`. An evaluation prunes nothing."""
        if not group.training:
            return await super().play(group)
        plan: _Plan = group.plan

        failed: set[int] = set()

        def decide(seen: Float[np.ndarray, "N F"], waits_N: Bool[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
            kept_N = np.ones(group.size, dtype=bool)
            if plan.prunes:
                failed_N = np.isin(np.arange(group.size), [*failed])
                kept_N = survivors(plan.estimate(seen), waits_N, self._options.keep, failed_N)
            return kept_N | (plan.lots < self._options.explore)

        about = self._options.tokens, decide, group.first, group.stride, group.waits.changed
        own: Any = _Noting(group.engine, failed, group)
        engine = Waiting(own, group.size, *about)
        group.waits.count = engine.count

        def watched(live: int, total: int) -> None:
            engine.watch(live)
            if group.on_turn:
                group.on_turn(live, total)

        environments = _Noting(group.environments, failed, group)
        played = await self._play_starts(
            group, group.starts(), engine=engine, environments=environments, on_turn=watched
        )
        policy = group.models.policy
        for number, trajectory in enumerate(played):
            if number in engine.pruned:
                turn = trajectory.turns[-1]
                turn.add(engine.pruned[number])
                turn.response = policy.policy.format.text(turn.response_ids)
                turn.version = policy.version  # even of a response without tokens, which no engine has stamped
                trajectory.failure, trajectory.ended, trajectory.learns = None, "pruned", False
        return played

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Label the trajectories that ended by themselves; see `Collector.learn`."""
        for trajectory in (each for _, own in played for each in own if each.usable):
            logprobs = [logprob for turn in trajectory.turns for logprob in turn.behavior_logprobs]
            self._labelled.append([*_features(logprobs[: self._options.tokens]), float(trajectory.success)])
        self._labelled = self._labelled[-self._options.memory :]

    def state_dict(self) -> dict[str, Any]:
        """Return the labelled trajectories, for checkpoints."""
        return {"labelled": [list(row) for row in self._labelled]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._labelled = [list(row) for row in state["labelled"]]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How a group is pruned: the estimate of success, a draw per trajectory, and whether any is pruned."""

    estimate: "Estimate"
    lots: np.ndarray
    prunes: bool


class Waiting:
    """An engine whose conversations wait for a decision after their first tokens; see `Engine` for the other methods.

    Args:
        engine: Generates.
        number: Number of trajectories.
        tokens: Generated tokens after which a trajectory waits.
        decide: Decides which trajectories continue, given features of all and which of them wait.
        first: Number of the first trajectory among those that are numbered together.
        stride: Their number; conversation c belongs to trajectory `c % stride - first`.
        on_wait: Called when a trajectory begins to wait.

    Attributes:
        pruned: The generated part of the response in which each pruned trajectory ended.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        tokens: int,
        decide: Decide,
        first: int = 0,
        stride: int | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ):
        self._on_wait = on_wait
        self._engine, self._number, self._tokens, self._decide = engine, number, tokens, decide
        self._first, self._stride = first, stride or number
        self.aclose, self.update_weights, self.close = engine.aclose, engine.update_weights, engine.close
        self._logprobs: list[list[float]] = [[] for _ in range(number)]  # of the first tokens of each trajectory
        self._waits: dict[int, asyncio.Future[bool]] = {}
        self._decided: set[int] = set()
        self._live = number
        self.pruned: dict[int, Generation] = {}

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; see `Engine.generate`."""
        number = conversation % self._stride - self._first
        left = self._tokens - len(self._logprobs[number])
        if number in self._decided or left >= sampling.max_new_tokens:
            made = await self._engine.generate(conversation, prompt_ids, sampling)
            self._logprobs[number] += made.logprobs if number not in self._decided else []
            return made
        first = Generation([], [], True)
        if left > 0:
            limited = dataclasses.replace(sampling, max_new_tokens=left)
            first = await self._engine.generate(conversation, prompt_ids, limited)
            self._logprobs[number] += first.logprobs
            if not first.truncated:
                return first
        self._decided.add(number)
        give_back(self._engine, conversation)
        self._waits[number] = asyncio.get_running_loop().create_future()
        self._on_wait()
        self.watch(self._live)
        if not await self._waits[number]:
            self.pruned[number] = first
            raise EngineFault("pruned")
        begun = dataclasses.replace(sampling, begun=len(first.token_ids))
        rest = await self._engine.generate(conversation, [*prompt_ids, *first.token_ids], begun)
        return first.joined(rest)

    @property
    def _waiting(self) -> list[int]:
        return [number for number, future in self._waits.items() if not future.done()]

    def count(self) -> int:
        """Return how many trajectories wait."""
        return len(self._waiting)

    def watch(self, live: int) -> None:
        """Note how many trajectories have not ended, and decide once all of them wait."""
        self._live = live
        waiting = self._waiting
        if waiting and len(waiting) == live:
            kept_N = self._decide(self.features(), np.isin(np.arange(self._number), waiting))
            for number in waiting:
                self._waits[number].set_result(bool(kept_N[number]))

    def features(self) -> Float[np.ndarray, "N F"]:
        """Return the mean log-probability of each trajectory's first tokens, and that of the least likely of them."""
        return np.array([_features(logprobs) for logprobs in self._logprobs])


def _features(logprobs: Sequence[float]) -> tuple[float, float]:
    if not logprobs:
        return 0.0, 0.0
    rare = np.sort(logprobs)[: max(1, round(RARE_FRAC * len(logprobs)))]
    return float(np.mean(logprobs)), float(rare.mean())


class Estimate:
    """Estimate the probability of success by a logistic regression with a ridge of 1 on scaled features.

    Args:
        labelled: Rows of features and 1 for a success, else 0. If all labels are equal, all get that value.
    """

    def __init__(self, labelled: Sequence[Sequence[float]], *, rounds: int = 20):
        self._share, self._weights = 0.5, None
        if not labelled:
            return
        table = np.array(labelled)
        label, seen = table[:, -1], table[:, :-1]
        self._share = float(label.mean())
        if not 0 < self._share < 1:
            return
        self._mean, self._scale = seen.mean(0), seen.std(0) + 1e-8
        design = self._design(seen)
        ridge = np.diag([0.0, *np.ones(seen.shape[1])])
        self._weights = np.zeros(design.shape[1])
        for _ in range(rounds):  # Newton's method
            chance = _sigmoid(design @ self._weights)
            slope = design.T @ (label - chance) - ridge @ self._weights
            curve = (design * (chance * (1 - chance))[:, None]).T @ design + ridge + 1e-9 * np.eye(design.shape[1])
            self._weights = self._weights + np.linalg.solve(curve, slope)

    def __call__(self, seen: Float[np.ndarray, "N F"]) -> Float[np.ndarray, " N"]:
        """Estimate the probability of success of trajectories from their features."""
        if self._weights is None:
            return np.full(len(seen), self._share)
        return _sigmoid(self._design(seen) @ self._weights)

    def _design(self, seen: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(seen)), (seen - self._mean) / self._scale])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


class _Noting:
    """An engine, or environments, that note whose trajectory they fail; both number it by the first argument."""

    def __init__(self, inner: Any, failed: set[int], group: Group):
        self._inner, self._failed, self._group = inner, failed, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, *given: Any) -> Generation:
        return await self._noted(self._inner.generate, *given)

    async def start(self, *given: Any) -> Step:
        return await self._noted(self._inner.start, *given)

    async def step(self, *given: Any) -> Step:
        return await self._noted(self._inner.step, *given)

    async def _noted(self, call: Callable[..., Awaitable[Any]], number: int, *given: Any) -> Any:
        try:
            return await call(number, *given)
        except (EngineFault, EnvironmentFault):
            self._failed.add(number % self._group.stride - self._group.first)
            raise


def survivors(
    chance_N: Float[np.ndarray, " N"],
    waits_N: Bool[np.ndarray, " N"],
    keep: float,
    failed_N: Bool[np.ndarray, " N"] | None = None,
) -> Bool[np.ndarray, " N"]:
    """Choose which trajectories of a group continue, so that about half of the kept ones can be expected to succeed.

    Trajectories that have ended are kept, unless they failed, since nothing is learned from those. One at a time, the
    most or the least likely of the others is added, whichever suits the mean that the missing ones should have; last,
    the one that is nearest to what is missing.

    Args:
        chance_N: Estimated probability of success of each.
        waits_N: Which of them wait.
        keep: Share of the group to keep, rounded to a whole number.
        failed_N: Which of them failed; default: none.
    """
    kept_N = ~waits_N if failed_N is None else ~waits_N & ~failed_N
    rest = [int(number) for number in np.argsort(chance_N, kind="stable") if waits_N[number]]
    most = round(keep * len(chance_N))
    while rest and (missing := most - int(kept_N.sum())) > 0:
        needed = (most / 2 - float(chance_N[kept_N].sum())) / missing
        nearest = int(np.argmin(np.abs(chance_N[rest] - needed)))
        highest = needed > (chance_N[rest[0]] + chance_N[rest[-1]]) / 2
        kept_N[rest.pop(nearest if missing == 1 else -1 if highest else 0)] = True
    return kept_N


def _checked(options: dict[str, Any], settings: RolloutConfig) -> Options:
    checked = checked_options("arrol", Options, options)
    if (number := round(checked.keep * settings.group_size)) < 2:
        raise ConfigError(
            f"rollout.collector.keep={checked.keep:g} leaves {number} of rollout.group_size={settings.group_size} "
            "trajectories, expected 2 or more; raise one of them"
        )
    return checked
