"""Mix stored trajectories into the groups of a step."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from turnwise.base.streams import Stream
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.extensions.stores.rows import Row, make_row
from turnwise.extensions.stores.settings import ReplayConfig
from turnwise.extensions.stores.store import Store
from turnwise.rollout.experience import Experience, Steps
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.metrics import costs
from turnwise.rollout.trajectory import Trajectory


class Replaying:
    """Replay successes (RLEP): each group gets up to `replays` stored successes of its task, drawn uniformly.

    Advantages are computed over the whole group, own trajectories and replays. A replay keeps the log-probabilities
    that it was sampled with, and ratios are relative to them. Success rates and task selection count own trajectories
    alone. Successes of a step are stored after it, so that no group gets its own.

    RLEP fills its store once, with successes of an earlier run (`store.start`). Adding successes of the run itself, and
    dropping old ones, is ours.

    Reference: Zhang et al., arXiv 2507.07451.
    """

    def __init__(self, source: Steps, store: Store[ReplayConfig], seed: int):
        self._source, self._store, self._seed = source, store, seed
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step, add replays to it, and store its successes."""
        experience, store = self._source.next(collector, models, step, on_turn), self._store
        store.add((), step=step)
        groups = np.unique([trajectory.group for trajectory in experience.used]).tolist()
        rows = {group: store.of(experience.numbers[group]) for group in groups}
        replays, replay_metrics = draw(rows, store.settings.replays, [self._seed, Stream.REPLAY, step], step)
        metrics = store.metrics(step) | replay_metrics
        won = [(number, each) for number, each in experience.ended if each.usable and each.success]
        store.add([make_row(number, step, each) for number, each in won], step=step)
        return with_more(experience, replays, metrics)


def draw(
    rows: Mapping[int, Sequence[Row]], most: int, seed: Sequence[int], step: int
) -> tuple[list[Trajectory], dict[str, float]]:
    """Draw replays for groups uniformly; returns them, and the metrics `replayed` and `replayed_age` (steps).

    Args:
        rows: For each group, the rows to draw from.
        most: Maximum number of replays per group; None: all.
        seed: Seed of the draws, to which the number of the group is added.
        step: The current step.
    """
    replays, ages = list[Trajectory](), list[int]()
    for group, own in rows.items():
        for place in np.random.default_rng([*seed, group]).permutation(len(own))[:most].tolist():
            replays.append(replayed(own[place], group))
            ages.append(step - own[place].step)
    return replays, {"replayed": float(len(replays)), "replayed_age": float(np.mean(ages)) if ages else 0.0}


def replayed(row: Row, group: int) -> Trajectory:
    """Return a stored trajectory as one of a group; `info` has the step that played it."""
    trajectory = row.trajectory
    turns = [dataclasses.replace(turn) for turn in trajectory.turns]  # else two replays of it would be a tree
    return dataclasses.replace(trajectory, group=group, turns=turns, info={**trajectory.info, "replayed": row.step})


def with_more(
    experience: Experience,
    more: Sequence[Trajectory],
    metrics: dict[str, float],
    more_used: np.ndarray | None = None,
    *,
    given_turns: int = 0,
    tasks: Sequence[Task] = (),
    numbers: Sequence[int] = (),
) -> Experience:
    """Add trajectories, each behind those of its group, and metrics; those that were played count as such.

    Args:
        experience: Experience of a step.
        more: Further trajectories.
        metrics: Further metrics.
        more_used: `[further trajectories]` bool, those that the step learns from; default all.
        given_turns: Turns of other trajectories that the environment played before those of these.
        tasks: Tasks of further groups.
        numbers: Their numbers.
    """
    together = [*experience.trajectories, *more]
    used_N = np.concatenate([experience.used_N, np.ones(len(more), dtype=bool) if more_used is None else more_used])
    played = [each for each in more if "replayed" not in each.info]
    counts = {"trajectories": float(sum(each.learns for each in played)), **costs(played)}
    counts["env_steps"] += given_turns
    counts = {name: experience.metrics.get(name, 0.0) + count for name, count in counts.items()}
    order = np.argsort([trajectory.group for trajectory in together], kind="stable")
    return dataclasses.replace(
        experience,
        trajectories=[together[place] for place in order],
        used_N=used_N[order],
        metrics=experience.metrics | counts | metrics,
        tasks=[*experience.tasks, *tasks],
        numbers=[*experience.numbers, *numbers],
        further=experience.further + len(numbers),
    )
