"""Continue trajectories from their turns or tokens with the policy, to estimate values by Monte Carlo.

A state is the whole history of responses, so histories that trajectories of a group share are continued once for all.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from turnwise.base.blocking import blocking
from turnwise.base.errors import EnvironmentFault, RunError
from turnwise.base.shapes import Float, Int
from turnwise.base.streams import Stream
from turnwise.engines.models import Models
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.branching.copies import Copies, forkable
from turnwise.extensions.continuations.settings import ContinuationsConfig
from turnwise.rollout.collect import play
from turnwise.rollout.collectors import make_request
from turnwise.rollout.context import make_context
from turnwise.rollout.failures import placed_failure
from turnwise.rollout.groups import OnTurn
from turnwise.rollout.metrics import env_steps
from turnwise.rollout.record import write_table
from turnwise.rollout.replays import Replays
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start, Within, fork, replay, return_of, wrappers
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.extension import Extension

SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("group", "turn", "token", "continuation")),
        ("task", pa.string()),
        ("return", pa.float64()),
        ("success", pa.bool_()),
        ("ended", pa.string()),
        *((name, pa.int32()) for name in ("tokens", "env_steps")),
        ("failure", pa.string()),
    ]
)
"""Columns of a record of continuations. A failed one has no return, and its cause."""


@dataclasses.dataclass(frozen=True, slots=True)
class Histories:
    """Histories in which the responses of some trajectories were given, or went on.

    Attributes:
        starts: One per history: where its continuations begin, with the trajectory that reached it first as origin.
        before_R: `[responses]` history of each response; with cuts, `[cuts]` history of each cut.
        after_R: The next history of the same trajectory; -1 if the trajectory ended.
    """

    starts: list[Start]
    before_R: Int[np.ndarray, " R"]
    after_R: Int[np.ndarray, " R"]

    @classmethod
    def of(
        cls, trajectories: Sequence[Trajectory], tasks: Sequence[Task], cuts: Sequence[Sequence[int]] | None = None
    ) -> "Histories":
        """Number the histories of trajectories.

        Args:
            trajectories: Trajectories of some groups.
            tasks: One per group.
            cuts: Places to cut each response at, ascending; 0 is before it. Default: 0 for all.
        """
        numbers: dict[Hashable, int] = {}
        of_responses = iter(cuts) if cuts is not None else itertools.repeat((0,))
        starts: list[Start] = []
        before: list[int] = []
        after: list[int] = []
        for row, trajectory in enumerate(trajectories):
            played: tuple[tuple[int, ...], ...] = ()
            first, limits = len(before), wrappers(trajectory.played)
            for place, turn in enumerate(trajectory.turns):
                for cut in next(of_responses):
                    # what goes on within other limits has other values
                    key = (trajectory.group, limits, played, tuple(turn.response_ids[:cut]))
                    if key not in numbers:
                        numbers[key] = len(starts)
                        start = fork(trajectory, place, tasks[trajectory.group], cut)
                        starts.append(dataclasses.replace(start, origin=row))
                    before.append(numbers[key])
                played = (*played, tuple(turn.response_ids))
            after += [*before[first + 1 :], -1][: len(before) - first]
        return cls(starts, np.array(before, dtype=np.int64), np.array(after, dtype=np.int64))


class Continuations:
    """Continue trajectories from their turns, and count what that costs.

    The draws depend on the run's seed, the training step, and the places of history and continuation only.

    Args:
        settings: Section `[continuations]` of the recipe.
        rollout: Section `[rollout]` of the recipe; continuations are sampled as its trajectories are.
        environments: Where continuations are played.
        models: The policy of the run, with its engine.
        seed: Seed of the run.
        on_turn: Progress callback.

    Attributes:
        num_tokens: Generated tokens so far.
        settings: The section of the recipe.
        folder: Folder within that of a run, in which `finish` writes.
    """

    folder = "continuations"

    def __init__(
        self,
        settings: ContinuationsConfig,
        rollout: RolloutConfig,
        environments: Environments,
        models: Models,
        seed: int,
        on_turn: OnTurn = None,
    ):
        self.settings, self._rollout, self._environments = settings, rollout, environments
        self._models, self._seed, self._on_turn = models, seed, on_turn
        self._played: list[Trajectory] = []
        self._tokens: list[int] = []  # first tokens of a response that each continuation was given
        self._answered: tuple[Sequence[Trajectory], Any, np.ndarray] | None = None
        self._num_replayed = 0
        self._replays = Replays()
        self.num_tokens = 0

    def __call__(
        self, trajectories: Sequence[Trajectory], tasks: Sequence[Task], cuts: Sequence[Sequence[int]] | None = None
    ) -> Float[np.ndarray, "R K"]:
        """Continue from before each response; repeated calls for the same trajectories return the same values.

        Args:
            trajectories: Trajectories to continue, whose turns can all be replayed.
            tasks: Their tasks, one per group.
            cuts: Places to continue each response from, ascending; default: 0, before it.

        Returns:
            `[responses, continuations]` sums of the rewards from the response on, or `[cuts, continuations]`. nan where
            a continuation failed, for example because a replay disagreed, and for turns from `continuations.turns` on.

        Raises:
            RunError: All continuations failed, or most replays diverged.
        """
        if self._answered and self._answered[0] is trajectories and self._answered[1] == cuts:
            return self._answered[2]
        found, number = Histories.of(trajectories, tasks, cuts), self.settings.number
        most = self.settings.turns
        own_H = [len(start.turns) - len(trajectories[start.origin or 0].given) for start in found.starts]
        chosen_H = np.array([most is None or own < most for own in own_H], dtype=bool)
        starts = [
            dataclasses.replace(found.starts[history], conversation=place * number + continuation)
            for place, history in enumerate(np.flatnonzero(chosen_H).tolist())
            for continuation in range(number)
        ]
        played = blocking(self._play(starts))
        self._replays.add(played)
        if played and all(one.failure is not None for one in played):
            raise RunError(f"all {len(played)} continuations failed; the last one: {placed_failure(played[-1])}")
        self._played += played
        self._tokens += [start.token for start in starts]
        self.num_tokens += sum(map(_num_tokens, played))
        return_HK = np.full((len(found.starts), number), np.nan)
        return_HK[chosen_H] = np.reshape([return_of(one) for one in played], (-1, number))
        self._answered = trajectories, cuts, return_HK[found.before_R]
        return self._answered[2]

    async def _play(self, starts: Sequence[Start]) -> list[Trajectory]:
        engine, rollout = self._models.policy.sampler, self._rollout
        step = self._models.policy.version  # of the weights
        draws = np.random.default_rng([self._seed, Stream.CONTINUATIONS, step])
        how: Any = {"seed": int(draws.integers(2**62)), "on_turn": self._on_turn, "stride": len(starts), "close": False}
        size = self.settings.at_once or rollout.groups * rollout.group_size
        played: list[Trajectory] = []
        async with forkable(self._environments, engine) as environments:
            if isinstance(environments, Copies):
                starts = await self._copied(environments, starts)
            request = make_request(self._models, environments, rollout, **how)
            for first in range(0, len(starts), size):
                played += await play(starts[first : first + size], request)
        return played

    async def _copied(self, copies: Copies, starts: Sequence[Start]) -> list[Start]:
        """Replay each trajectory once and keep copies, in which its continuations begin.

        Returns:
            The starts. Where a trajectory's environment has no copies, or a replay failed, they have no origin, and
            each of its continuations replays.
        """
        last = {start.origin: start for start in starts}  # the histories of a trajectory are in order
        keys = {origin: len(starts) + place for place, origin in enumerate(last)}
        copied = await asyncio.gather(*(self._keep(copies, keys[origin], start) for origin, start in last.items()))
        found = {origin: keys[origin] for origin, is_copied in zip(last, copied, strict=True) if is_copied}
        copies.keeping = False
        return [dataclasses.replace(start, origin=found.get(start.origin)) for start in starts]

    async def _keep(self, copies: Copies, key: int, start: Start) -> bool:
        """Replay the turns of a start, and return whether there are copies of all its states."""
        fmt, window = self._models.policy.policy.format, self._rollout.remembered
        if isinstance(start.task, Within):  # wrappers of an environment are not copied with it
            return False

        async def answer(text: str) -> Step:
            self._num_replayed += 1
            return await copies.step(key, text)

        try:
            step = await copies.start(key, start.task)
            if copies.has(key, 0):
                await replay(start, step, make_context(fmt, key, window=window, stride=1), fmt, answer)
            return copies.has(key, len(start.turns))
        except EnvironmentFault:
            return False
        finally:
            copies.close(key)

    def finish(self, path: Path) -> dict[str, float]:
        """Write the continuations of a step to a Parquet file; forget them, and return what they cost."""
        number, played, tokens = self.settings.number, self._played, self._tokens
        replayed, self._num_replayed = self._num_replayed, 0
        diverged, self._replays = self._replays.diverged, Replays()
        self._played, self._tokens, self._answered = [], [], None
        rows = [
            {
                "group": one.group,
                "turn": one.shared,
                "token": token,
                "continuation": place % number,
                "task": one.task,
                "return": None if one.failure else return_of(one),
                "success": one.success,
                "ended": one.ended,
                "tokens": _num_tokens(one),
                "env_steps": env_steps([one]),
                "failure": one.failure,
            }
            for place, (token, one) in enumerate(zip(tokens, played, strict=True))
        ]
        if rows:
            write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA))
        num_failed = sum(one.failure is not None for one in played)
        return {
            "continued_states": len(played) / number,
            "continued_env_steps": float(replayed + env_steps(played)),
            "continued_failed_frac": num_failed / max(1, len(played)),
            **({"continued_diverged": float(diverged)} if diverged else {}),
        }


def _num_tokens(continuation: Trajectory) -> int:
    return sum(turn.num_generated for turn in continuation.turns[continuation.shared :])


class Continued(Extension):
    """Continue from turns as `[continuations]` says."""

    def service(self, models: Models, environments: Environments) -> Continuations:
        """Return what plays the continuations."""
        config, on_turn = self.context.config, self.context.on_turn
        return Continuations(self.settings, config.rollout, environments, models, config.run.seed, on_turn)
