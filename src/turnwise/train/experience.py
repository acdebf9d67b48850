"""The rollout of a step: choose tasks, play them, keep the groups worth learning from, and refill."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from turnwise.config import Config
from turnwise.environments.base import Task
from turnwise.environments.suites import Suite
from turnwise.policy import Policy
from turnwise.rollout.collect import blocking, collect
from turnwise.rollout.engine import Engine, Sampling
from turnwise.rollout.record import Trajectory
from turnwise.rollout.worlds import InProcessWorlds, Worlds
from turnwise.train.selection import TaskSelector, kept
from turnwise.train.step import rollout_metrics


@dataclasses.dataclass(frozen=True)
class Experience:
    """What a step has played.

    Attributes:
        trajectories: All of them, those of a group adjacent, groups numbered from 0.
        used_N: `[trajectories]` bool, which of them the step learns from: usable ones of groups that the filter kept.
        metrics: What the rollout shows, over everything that was played.
    """

    trajectories: list[Trajectory]
    used_N: np.ndarray
    metrics: dict[str, float]

    @property
    def usable(self) -> bool:
        """Whether anything came back, be it nothing to learn from."""
        return any(trajectory.usable for trajectory in self.trajectories)

    @property
    def used(self) -> list[Trajectory]:
        """The trajectories that the step learns from."""
        return list(itertools.compress(self.trajectories, self.used_N))

    def recorded(self, columns: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
        """Credit columns, with a gap for the responses of trajectories that were left out."""
        used = np.repeat(self.used_N, [max(1, len(trajectory.turns)) for trajectory in self.trajectories])
        result = {}
        for name, values in columns.items():
            filled: list[float | None] = [None] * len(used)
            for row, value in zip(np.flatnonzero(used), values, strict=True):
                filled[row] = float(value)
            result[name] = filled
        return result


def gather(
    engine: Engine,
    policy: Policy,
    suite: Suite,
    tasks: Sequence[Task],
    selector: TaskSelector,
    config: Config,
    *,
    step: int,
    worlds: Worlds | None = None,
    on_turn: Callable[[int, int], None] | None = None,
) -> Experience:
    """Play batches of `rollout.groups` tasks until as many groups have passed `rollout.filter`, or `rollout.max_batches` are spent.

    Without a filter one batch is enough. What passes beyond `rollout.groups` is left out, as in DAPO's release, so that steps are
    alike. A batch of which a fault left nothing ends the step: further ones would only fail too. Without `worlds` they are in this
    process.
    """
    settings = config.rollout
    max_batches = 1 if settings.filter == "none" else settings.max_batches
    worlds = worlds or InProcessWorlds(suite.environment)
    order = selector.choose(step)
    chosen: list[int] = []
    trajectories: list[Trajectory] = []
    num_batches = 0
    while True:
        numbers = list(itertools.islice(order, settings.groups))
        seed = (config.run.seed * 100_003 + step) * max_batches + num_batches  # no two batches of a run share one
        played = play(engine, policy, suite, [tasks[number] for number in numbers], worlds, config, seed, on_turn)
        for trajectory in played:
            trajectory.group += len(chosen)
        num_batches += 1
        chosen += numbers
        trajectories += played
        successes_G, failures_G = _outcomes(trajectories, len(chosen))
        kept_G = kept(settings.filter, successes_G, failures_G)
        broken = not any(trajectory.usable for trajectory in played)
        if broken or num_batches == max_batches or kept_G.sum() >= settings.groups:
            break
    selector.observe(np.array(chosen), successes_G, failures_G)
    used_G = kept_G & (np.cumsum(kept_G) <= settings.groups)
    metrics = rollout_metrics(trajectories) | {
        "batches": float(num_batches),
        "kept_frac": float(kept_G.mean()),
        "filled_frac": float(used_G.sum() / settings.groups),
    }
    used_N = np.array([trajectory.usable and used_G[trajectory.group] for trajectory in trajectories], dtype=bool)
    return Experience(trajectories, used_N, metrics)


def sampling(config: Config, policy: Policy, *, seed: int) -> Sampling:
    """How a run draws its responses."""
    settings = config.rollout
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        stop_ids=(policy.format.stop_id,),
        stop=settings.stop,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=seed,
    )


def play(
    engine: Engine,
    policy: Policy,
    suite: Suite,
    tasks: Sequence[Task],
    worlds: Worlds,
    config: Config,
    seed: int,
    on_turn: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Play a group of `rollout.group_size` trajectories for each task; those of a group are adjacent, groups numbered from 0."""
    settings = config.rollout
    played = collect(
        engine,
        tasks,
        worlds,
        policy.format,
        group_size=settings.group_size,
        sampling=sampling(config, policy, seed=seed),
        max_context=policy.max_context,
        window=settings.remembered,
        task_name=suite.task_name,
        on_turn=on_turn,
    )
    return blocking(played)


def _outcomes(trajectories: Sequence[Trajectory], num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Successes and failures of each group, `[groups]` int; what a fault or the context left unusable is neither."""
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    group_N = np.array([trajectory.group for trajectory in usable], dtype=np.int64)
    success_N = np.array([trajectory.success for trajectory in usable], dtype=bool)
    successes_G = np.bincount(group_N[success_N], minlength=num_groups)
    return successes_G, np.bincount(group_N, minlength=num_groups) - successes_G
