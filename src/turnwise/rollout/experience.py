"""Define the experience of a step: the trajectories that it played, those that it learns from, and metrics."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from turnwise.credit.segments import Labels
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.selection import GroupFilter, kept, widest
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Experience:
    """Trajectories that a step has played."""

    trajectories: list[Trajectory]  # all trajectories, those of a group adjacent, groups numbered from 0
    # `[trajectories]` bool, those that the step learns from: usable ones of groups that pass the filter
    used_N: np.ndarray
    metrics: dict[str, float]  # rollout metrics over all trajectories
    tasks: Sequence[Task] = ()  # tasks, one per group
    numbers: Sequence[int] = ()  # number of each group's task, among the tasks of the source
    further: int = 0  # how many of the groups, the last ones, were played in addition to those that the pool chose
    # Trajectories that have ended in the step, with the numbers of their tasks; default: all
    whole: Sequence[tuple[int, Trajectory]] | None = None

    @property
    def ended(self) -> Sequence[tuple[int, Trajectory]]:
        """Return the trajectories that have ended in the step, each with the number of its task."""
        return [(self.numbers[each.group], each) for each in self.trajectories] if self.whole is None else self.whole

    @property
    def outcomes(self) -> tuple[np.ndarray, np.ndarray]:
        """Count successes and failures of the groups that the pool chose, without replays; see `outcomes`."""
        own, num_own = [each for each in self.trajectories if "replayed" not in each.info], self.num_own
        successes_G, failures_G = outcomes(own, len(self.numbers))
        return successes_G[:num_own], failures_G[:num_own]

    @property
    def num_own(self) -> int:
        """Groups that the pool chose."""
        return len(self.numbers) - self.further

    @property
    def usable(self) -> bool:
        """Whether any trajectory is usable, even if the filter dropped it."""
        return any(trajectory.usable for trajectory in self.trajectories)

    @property
    def used(self) -> list[Trajectory]:
        """Trajectories that the step learns from."""
        return list(itertools.compress(self.trajectories, self.used_N))

    def recorded(self, columns: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
        """Expand columns of used responses to columns of all recorded responses, with None for unused ones."""
        used = np.repeat(self.used_N, [max(1, len(trajectory.turns)) for trajectory in self.trajectories])
        result = {}
        for name, values in columns.items():
            filled: list[float | None] = [None] * len(used)
            for row, value in zip(np.flatnonzero(used), values, strict=True):
                filled[row] = float(value)
            result[name] = filled
        return result


class Steps(Protocol):
    """Collects the experience of each step; `Pool` does."""

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for checkpoints."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        ...


def outcomes(trajectories: Sequence[Trajectory], num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Count successes and failures of each group, `[groups]` int each; unusable trajectories count as neither."""
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    group_N = np.array([trajectory.group for trajectory in usable], dtype=np.int64)
    success_N = np.array([trajectory.success for trajectory in usable], dtype=bool)
    successes_G = np.bincount(group_N[success_N], minlength=num_groups)
    return successes_G, np.bincount(group_N, minlength=num_groups) - successes_G


def spreads(trajectories: Sequence[Trajectory], used_G: np.ndarray) -> np.ndarray:
    """Compute the deviation of the rewards of each used group's usable trajectories, `[groups]`; 0 for others."""
    spread_G = np.zeros(len(used_G))
    usable = [each for each in trajectories if each.usable and used_G[each.group]]
    if usable:
        group, own_N = np.unique([each.group for each in usable], return_inverse=True)
        spread_G[group] = Labels(own_N, len(group)).std(np.array([each.reward for each in usable]), ddof=1)
    return spread_G


def lag_metrics(trajectories: Sequence[Trajectory], step: int) -> dict[str, float]:
    """Compute how many training steps the weights that sampled the turns are behind those at the start of the step.

    A turn without a response, whose engine failed, has none.
    """
    versions = [[turn.version for turn in trajectory.turns if turn.response_ids] for trajectory in trajectories]
    lag = np.array([step - 1 - version for own in versions for version in own] or [0])
    spans = [len({*own}) > 1 for own in versions]
    return {"lag_mean": float(lag.mean()), "lag_max": float(lag.max()), "spans_versions_frac": float(np.mean(spans))}


def learned_from(
    trajectories: Sequence[Trajectory],
    group_filter: GroupFilter,
    num_groups: int,
    *,
    first: int,
    keep_spread: float | None = None,
) -> np.ndarray:
    """Return which trajectories of groups numbered from `first` a step learns from, `[trajectories]` bool.

    They are the usable ones of groups that pass the filter, and of these the widest, if `keep_spread` says so.
    """
    own = [dataclasses.replace(trajectory, group=trajectory.group - first) for trajectory in trajectories]
    kept_G = kept(group_filter, *outcomes(own, num_groups))
    if keep_spread is not None:
        kept_G = kept_G & widest(spreads(own, kept_G), keep_spread)
    return np.array([trajectory.usable and kept_G[trajectory.group] for trajectory in own], dtype=bool)
