"""Replay what a group lacks, and play a task again with an earlier failure in the prompt."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise.base.streams import Stream
from turnwise.engines.models import Models
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.stores.lessons import RESPONSE
from turnwise.extensions.stores.reminded import with_lines
from turnwise.extensions.stores.replay import draw, with_more
from turnwise.extensions.stores.rows import Row, make_row
from turnwise.extensions.stores.settings import R3Config
from turnwise.extensions.stores.store import Store
from turnwise.rollout.collectors import make_request
from turnwise.rollout.experience import Experience, Steps, learned_from, outcomes
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.plays import play_starts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start, Within
from turnwise.rollout.trajectory import Trajectory

FAILED = "An earlier attempt at the task below failed. It began as the task does, and went on:"
AGAIN = "Find the mistake, and solve the task:"


class ReplayAndReflection:
    """R3's replay and reflection.

        replay:      a group whose trajectories all succeeded, or all failed, gets up to `replays` stored ones of its
                     task with the other outcome, drawn uniformly
        reflection: a task of the step whose mean success in earlier steps is below `tau` is played by one more group,
                     whose prompt shows a stored failure of that task and asks for a solution

    Learning from a group that was dropped for its single outcome, once it has replays, is ours.
    All usable trajectories of the step's own groups are stored after it, so no group gets its own. Replays keep the
    log-probabilities that they were sampled with. With the method `r3`, `beside = "replayed"` ranks the failures of a
    group that has only failures and replays.

    The sources give no values for `replays` and `tau`, and describe single responses. That the prompt shows the last
    `transcript` characters of the failure, its wording, and that reflections get no replays and are not stored, are
    ours.

    Reference: Jiang et al., R3, arXiv 2601.19620.
    """

    def __init__(
        self,
        source: Steps,
        store: Store[R3Config],
        tasks: Sequence[Task],
        environments: Environments,
        rollout: RolloutConfig,
        seed: int,
    ):
        self._source, self._store, self._tasks, self._seed = source, store, tasks, seed
        self._environments, self._rollout = environments, rollout
        self.history = np.zeros((2, len(tasks)))
        """`[2, tasks]` failures and successes of each task in earlier steps."""

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step, replay, reflect, and store."""
        experience, store = self._source.next(collector, models, step, on_turn), self._store
        store.add((), step=step)
        first, metrics = len(experience.numbers), store.metrics(step)
        outcome_G = outcomes(experience.trajectories, first)
        lacked, seed = self._lacked(experience, outcome_G), [self._seed, Stream.REFLECTION, step, 0]
        replays, replay_metrics = draw(lacked, store.settings.replays, seed, step)
        metrics |= replay_metrics
        completed = [each.usable and each.group in {one.group for one in replays} for each in experience.trajectories]
        experience = dataclasses.replace(experience, used_N=experience.used_N | np.array(completed, dtype=bool))
        failures = [row for number in dict.fromkeys(experience.numbers) if (row := self._failure(number, step))]
        played = self._play(failures, first, collector, models, step, on_turn)
        passing = self._rollout.filter_at(step)
        used_N = learned_from(played, passing, len(failures), first=first, keep_spread=self._rollout.keep_spread)
        metrics["reflections"] = float(len(failures))
        if any(each.usable for each in played):
            metrics["reflection_success"] = float(np.mean([each.success for each in played if each.usable]))
        own = [each for each in experience.trajectories if each.usable]
        store.add([make_row(experience.numbers[each.group], step, each) for each in own], step=step)
        tasks_G, num_tasks = np.array(experience.numbers), len(self._tasks)
        self.history += [np.bincount(tasks_G, of_G, minlength=num_tasks) for of_G in outcome_G[::-1]]
        experience = with_more(experience, replays, metrics)
        numbers = [row.task for row in failures]
        tasks = [self._tasks[number] for number in numbers]
        return with_more(experience, played, {}, used_N, tasks=tasks, numbers=numbers)

    def _lacked(self, experience: Experience, outcome_G: tuple[np.ndarray, np.ndarray]) -> dict[int, list[Row]]:
        """Return, for each group with a single outcome, the stored trajectories of its task with the other."""
        rows = dict[int, list[Row]]()
        successes_G, failures_G = outcome_G
        for group in np.flatnonzero((successes_G > 0) != (failures_G > 0)).tolist():
            lacks = successes_G[group] == 0
            stored = self._store.of(experience.numbers[group])
            rows[group] = [row for row in stored if row.trajectory.success == lacks]
        return rows

    def _failure(self, number: int, step: int) -> Row | None:
        """Return a stored failure of a task, if it mostly failed in earlier steps and the store still has one."""
        failed, succeeded = self.history[:, number]
        tau = self._store.settings.tau
        if not failed or succeeded / (failed + succeeded) >= tau:
            return None
        rows = [row for row in self._store.of(number) if not row.trajectory.success]
        draws = np.random.default_rng([self._seed, Stream.REFLECTION, step, 1, number])
        return rows[int(draws.integers(len(rows)))] if rows else None

    def _play(
        self, failures: Sequence[Row], first: int, collector: Collector, models: Models, step: int, on_turn: OnTurn
    ) -> list[Trajectory]:
        most = self._store.settings.transcript
        starts = [
            Start(_again(self._tasks[row.task], row, most), group, f"{row.trajectory.task}, again")
            for group, row in enumerate(failures, first)
            for _ in range(self._rollout.group_size)
        ]
        if not starts:
            return []
        seed = int(np.random.SeedSequence([self._seed, Stream.REFLECTION, step, 2]).generate_state(1)[0])
        request = make_request(models, self._environments, self._rollout, seed=seed, on_turn=on_turn)
        played = play_starts(starts, request, collector)
        for each in played:
            each.info = {**each.info, "reflection": failures[each.group - first].step}
        return played

    def state_dict(self) -> dict[str, Any]:
        """Return the source's state and the history; the store is saved separately."""
        return {**self._source.state_dict(), "history": self.history.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.history = np.array(state["history"])
        self._source.load_state_dict({name: value for name, value in state.items() if name != "history"})


class ReflectedEnvironments:
    """Put lines before the first observation of a task; see `Environments` for the methods."""

    def __init__(self, environments: Environments, lines: Sequence[str]):
        self._environments, self._lines = environments, lines
        self.step, self.close, self.aclose = environments.step, environments.close, environments.aclose

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step, with the lines."""
        return with_lines(await self._environments.start(key, task), self._lines)


def _again(task: Task, failure: Row, most: int) -> Within:
    """Put the lines that show a failure around its task."""
    lines = shown(failure.trajectory, most)
    return Within(task, functools.partial(ReflectedEnvironments, lines=lines))


def shown(failure: Trajectory, characters: int) -> tuple[str, ...]:
    """Return the lines that show a failure: its last responses with their answers, and the question."""
    answers = [*(turn.observation for turn in failure.turns[1:]), failure.last_observation]
    lines = [
        line
        for turn, answer in zip(failure.turns, answers, strict=True)
        for line in (f"{RESPONSE}{' '.join(turn.response.split())}", " ".join(answer.split()))
    ]
    return FAILED, *_last([line for line in lines if line], characters), AGAIN


def _last(lines: Sequence[str], characters: int) -> list[str]:
    """Return the last lines, at most this many characters in total; of the last line, its end."""
    kept, left = list[str](), characters
    for line in reversed(lines):
        if len(line) > left and kept:
            break
        kept.append(line[-left:])
        left -= len(line)
    return kept[::-1]
