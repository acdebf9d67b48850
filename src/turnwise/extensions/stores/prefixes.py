"""Turn tasks that are too hard or too easy into tasks of medium difficulty by prefixes of stored trajectories."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise.base.streams import Stream
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.demonstrations.hints import DIGITS
from turnwise.extensions.demonstrations.library import alone
from turnwise.extensions.stores.replay import with_more
from turnwise.extensions.stores.rows import Row, make_row
from turnwise.extensions.stores.settings import PrefixesConfig
from turnwise.extensions.stores.store import Store
from turnwise.rollout.collectors import make_request
from turnwise.rollout.experience import Experience, Steps, learned_from, outcomes
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.plays import play_starts
from turnwise.rollout.replays import Replays
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import fork
from turnwise.rollout.trajectory import Trajectory

BAND = (0.3, 0.7)
"""Success rates of groups that need no prefix."""
TARGET, DEAD, CHANGE, WAIT, MEMORY = 0.5, 0.03, 0.05, 5, 0.05
"""Of adaptive ratios: wanted pass rate, distance from it that changes nothing, change, steps between two changes, and
the weight of a new pass rate in the running mean."""
KINDS = ("hard", "easy")


@dataclasses.dataclass
class Ratio:
    """Share of a trajectory, which follows the pass rate of the tasks that it makes."""

    value: float  # share of turns: those left to the policy (hard), or replayed (easy). Larger is harder in both cases.
    mean: float = TARGET  # running mean of the pass rate
    waits: int = 0  # steps until the value may change again

    def follow(self, pass_rate: float | None) -> None:
        """Record the pass rate of a step (None if it had no such task), and adjust the value when due."""
        self.waits = max(0, self.waits - 1)
        if pass_rate is None:
            return
        self.mean += MEMORY * (pass_rate - self.mean)
        if self.waits == 0 and abs(self.mean - TARGET) > DEAD:
            self.value += CHANGE if self.mean > TARGET else -CHANGE
            self.value, self.waits = min(max(self.value, CHANGE), 1 - CHANGE), WAIT


def replayed_turns(num_turns: int, kind: str, ratio: float, cap: int) -> int:
    """Return the number of turns that a prefix replays; 0: no prefix.

    hard: all but min(floor(num_turns * ratio), cap) of a success, at least one is left
    easy: min(floor(num_turns * ratio), cap) of a failure, at least one is left
    """
    part = min(int(round(num_turns * ratio, DIGITS)), cap)  # a ratio that grew to 0.4 in steps is below it
    return num_turns - max(1, part) if kind == "hard" else min(part, num_turns - 1)


class PrefixSampling:
    """Prefix Sampling: start groups at a turn of a trajectory of the step before.

    A task that a group solves rarely (success rate between 0 and 0.3) gets a head start: the beginning of one of its
    successes. One that it mostly solves (between 0.7 and 1) gets a handicap: the beginning of one of its failures. The
    next step replays each beginning in the environment, in addition to its own tasks, and plays `rollout.group_size`
    continuations as a separate group. The tokens of the beginning are part of the prompt: they have no loss and no
    credit. If the environment answers a replay differently, that trajectory is lost.

    With `adaptive`, both ratios follow the running mean of the pass rate towards 0.5. One mean per step, the start at
    0.5, and the bounds of the ratios, 0.05 and 0.95, are ours. A trajectory too short for a prefix has none.

    Reference: Prefix Sampling, arXiv 2605.05112.
    """

    def __init__(
        self,
        source: Steps,
        store: Store[PrefixesConfig],
        tasks: Sequence[Task],
        environments: Environments,
        rollout: RolloutConfig,
        seed: int,
    ):
        self._source, self._store, self._tasks, self._seed = source, store, tasks, seed
        self._environments, self._rollout, self._replays = environments, rollout, Replays()
        self.ratios = {"hard": Ratio(store.settings.remaining), "easy": Ratio(store.settings.handicap)}

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step, play the prefixes of the step before, and store new ones."""
        experience = self._source.next(collector, models, step, on_turn)
        rows = list(self._store.rows)
        groups = [(row, turns) for row in rows if (turns := self._turns(row))]
        played = self._play(groups, len(experience.numbers), collector, models, step, on_turn)
        used_N = learned_from(
            played,
            self._rollout.filter_at(step),
            len(groups),
            first=len(experience.numbers),
            keep_spread=self._rollout.keep_spread,
        )
        metrics = self._store.metrics(step) | self._learn(groups, played, len(experience.numbers))
        new = self._chosen(experience, step)
        self._store.clear()
        self._store.add(new, step=step)
        numbers = [row.task for row, _ in groups]
        tasks = [self._tasks[number] for number in numbers]
        given = sum(groups[each.group - len(experience.numbers)][1] for each in played)
        return with_more(experience, played, metrics, used_N, given_turns=given, tasks=tasks, numbers=numbers)

    def _turns(self, row: Row) -> int:
        kind = KINDS[not row.trajectory.success]
        return replayed_turns(len(row.trajectory.turns), kind, self.ratios[kind].value, self._store.settings.cap)

    def _play(
        self,
        groups: Sequence[tuple[Row, int]],
        first: int,
        collector: Collector,
        models: Models,
        step: int,
        on_turn: OnTurn,
    ) -> list[Trajectory]:
        starts = [
            dataclasses.replace(
                fork(row.trajectory, turns, self._tasks[row.task]),
                group=first + number,
                name=f"{row.trajectory.task}, from turn {turns}",  # another start, so another task to methods
            )
            for number, (row, turns) in enumerate(groups)
            for _ in range(self._rollout.group_size)
        ]
        if not starts:
            return []
        seed = int(np.random.SeedSequence([self._seed, Stream.PREFIXES, step]).generate_state(1)[0])
        request = make_request(models, self._environments, self._rollout, seed=seed, on_turn=on_turn)
        played = play_starts(starts, request, collector)
        self._replays.add(played)
        rows = [groups[each.group - first][0] for each in played]
        return [
            alone(each, step=row.step, success=row.trajectory.success) for each, row in zip(played, rows, strict=True)
        ]

    def _learn(self, groups: Sequence[tuple[Row, int]], played: Sequence[Trajectory], first: int) -> dict[str, float]:
        metrics = {"prefixes": float(len(groups))}
        if played:
            metrics["prefix_turns"] = float(np.mean([turns for _, turns in groups]))
            metrics["prefix_failed_frac"] = float(np.mean([each.failure is not None for each in played]))
        for kind in KINDS:
            of_kind = [each for each in played if groups[each.group - first][0].trajectory.success == (kind == "hard")]
            passed = [each.success for each in of_kind if each.usable]
            rate = float(np.mean(passed)) if passed else None
            if rate is not None:
                metrics[f"prefix_success_{kind}"] = rate
            if self._store.settings.adaptive:
                self.ratios[kind].follow(rate)
            metrics[f"prefix_ratio_{kind}"] = self.ratios[kind].value
        return metrics

    def _chosen(self, experience: Experience, step: int) -> list[Row]:
        """Choose the trajectories whose prefixes the next step plays, one per group that is too hard or too easy."""
        successes_G, failures_G = outcomes(experience.trajectories, len(experience.numbers))
        rate_G = successes_G / np.maximum(successes_G + failures_G, 1)
        draws = np.random.default_rng([self._seed, Stream.PREFIXES, step])
        rows = []
        for group in np.flatnonzero((rate_G > 0) & (rate_G < 1)).tolist():
            if BAND[0] <= rate_G[group] <= BAND[1]:
                continue
            wanted = rate_G[group] < BAND[0]
            members = [each for each in experience.trajectories if each.group == group and each.usable]
            like = [each for each in members if each.success == wanted]
            rows.append(make_row(experience.numbers[group], step, like[int(draws.integers(len(like)))]))
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the source's state and the ratios; the store is saved separately."""
        return {**self._source.state_dict(), "ratios": {k: dataclasses.asdict(r) for k, r in self.ratios.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.ratios = {kind: Ratio(**state["ratios"][kind]) for kind in KINDS}
        self._source.load_state_dict({name: value for name, value in state.items() if name != "ratios"})
