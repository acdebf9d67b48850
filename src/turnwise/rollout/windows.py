"""Learn in each step from the tokens played in it, also from those of half-played trajectories (T-PPO)."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from turnwise.environments.base import Task
from turnwise.environments.suites import Suite
from turnwise.models.format import Format
from turnwise.rollout.ahead import Lasting, Rollouts
from turnwise.rollout.collectors import Collector, OnTurn
from turnwise.rollout.environments import Environments
from turnwise.rollout.experience import Experience, lag_metrics, outcomes
from turnwise.rollout.half import Half, Sampled
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.models import Models
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.source import Source
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.rollout.unfinished import Group, Unfinished


class Watched(Half):
    """A trajectory in progress whose turns steps look at.

    Attributes:
        into: The trajectory, which gets its turns while it is played.
        ends: Generated tokens of the trajectory at the ends of the steps so far.
        told: Whether a step had the trajectory after its end.
    """

    def __init__(self, number: int, *, by_turns: bool, sampled: Sequence[Sampled] = ()):
        super().__init__(number, by_turns=by_turns, sampled=sampled, cuts=True)
        self.into = Trajectory(0, "")
        self.ends: list[int] = []
        self.told = False

    def window(self, fmt: Format) -> Trajectory | None:
        """Return what is new since the last call, as a trajectory whose other turns are marked as learned.

        A trajectory that has ended comes whole, since a critic learns its return at all of its turns. Of one that goes
        on, earlier tokens are part of the first prompt. None: nothing is new.
        """
        version_T = [each.generation.version for each in self.sampled for _ in each.generation.token_ids]
        if self.told or not (self.ended or len(version_T) > sum(self.ends[-1:])):
            return None
        turns = cut(self._turns(fmt), self.ends, version_T, fmt)
        self.ends.append(len(version_T))
        self.told = self.ended
        if self.ended:
            return dataclasses.replace(self.into, turns=turns)
        first = next(number for number, turn in enumerate(turns) if not turn.learned)
        context = [*_context(turns[:first]), *turns[first].prompt_ids]
        if not turns[first].fresh:
            turns[first] = dataclasses.replace(turns[first], prompt_ids=context, fresh=True)
        return dataclasses.replace(self.into, turns=turns[first:], ended="unfinished")

    def _turns(self, fmt: Format) -> list[Turn]:
        """Return the turns so far, with the first tokens of the response that waits inside."""
        turns = [turn for turn in self.into.turns if turn.response_ids]
        if self.open is not None:
            waiting = dataclasses.replace(self.into.turns[-1], response_ids=[], behavior_logprobs=[])
            waiting.add(self.open)
            turns.append(dataclasses.replace(waiting, response=fmt.text(waiting.response_ids), truncated=False))
        return turns


def cut(turns: Sequence[Turn], ends: Sequence[int], version_T: Sequence[int], fmt: Format) -> list[Turn]:
    """Cut turns where steps ended, and mark those before the last of these ends as learned.

    The reward of a response is on its last piece, and so is its validity.

    Args:
        turns: Turns of a trajectory.
        ends: Generated tokens at the ends of the steps.
        version_T: `[tokens]` version of the weights that sampled each token.
        fmt: Decodes the pieces.
    """
    pieces: list[Turn] = []
    start = 0
    for turn in turns:
        end = start + len(turn.response_ids)
        bounds = [0, *(each - start for each in dict.fromkeys(ends) if start < each < end), end - start]
        for a, b in itertools.pairwise(bounds):
            last, part = b == end - start, slice(a, b)
            entropies = turn.behavior_entropies
            piece = dataclasses.replace(
                turn,
                prompt_ids=[] if a else turn.prompt_ids,
                fresh=turn.fresh and not a,
                response_ids=turn.response_ids[part],
                behavior_logprobs=turn.behavior_logprobs[part],
                behavior_entropies=None if entropies is None else entropies[part],
                behavior_state=None if a else turn.behavior_state,
                version=version_T[start + a],
                learned=bool(ends) and start + b <= ends[-1],
            )
            if len(bounds) > 2:
                piece.response = fmt.text(piece.response_ids)
            if not last:
                piece.reward, piece.valid, piece.truncated = 0.0, True, False
            pieces.append(piece)
        start = end
    return pieces


def _context(turns: Sequence[Turn]) -> list[int]:
    """Return the tokens of the conversation after these turns."""
    ids: list[int] = []
    for turn in turns:
        ids = [*([] if turn.fresh else ids), *turn.prompt_ids, *turn.response_ids]
    return ids


class Windows(Unfinished):
    """Collect the tokens that each step plays, within a budget, and continue half-played trajectories.

    A step divides its budget among the trajectories in progress, as `Unfinished` does. With a budget of tokens it may
    end inside a response, which goes on from there in the next step, on its weights. A step learns from each token that
    it has played, and from no other. A group that has ended makes room for another task in the next step.
    """

    _cuts = True

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Play until the budget is spent; see the class. The collector is idle."""
        fmt = models.policy.policy.format
        self._refill(step, self._settings.in_progress)
        spent = self._loop.run(self._play(models, on_turn))
        trajectories: list[Trajectory] = []
        ended: list[Trajectory] = []
        tasks: list[int] = []
        for group in self._groups:
            halves = cast(list[Watched], group.halves)
            ended += [half.into for half in halves if half.ended and not half.told]
            windows = [half.window(fmt) for half in halves]
            if new := [window for window in windows if window is not None]:
                trajectories += [dataclasses.replace(window, group=len(tasks)) for window in new]
                tasks.append(group.task)
        done = self._complete
        whole = [dataclasses.replace(half.trajectory, group=g) for g, each in enumerate(done) for half in each.halves]
        self._selector.observe(np.array([each.task for each in done], dtype=np.int64), *outcomes(whole, len(done)))
        metrics = self._metrics(trajectories, ended, step) | {"spent": float(spent)}
        self._groups = [group for group in self._groups if group not in done]
        used_N = np.array([each.usable for each in trajectories], dtype=bool)
        return Experience(trajectories, used_N, metrics, [self._tasks[each] for each in tasks], tasks)

    def _metrics(self, trajectories: Sequence[Trajectory], ended: Sequence[Trajectory], step: int) -> dict[str, float]:
        """Return metrics of what the step played, with success, reward and turns of the trajectories that ended."""
        new = [
            dataclasses.replace(each, turns=[turn for turn in each.turns if not turn.learned]) for each in trajectories
        ]
        told = rollout_metrics(new) | lag_metrics(new, step)
        told["env_steps"] -= sum(not half.ended and half.open is not None for half in self._halves)
        of_ended = rollout_metrics(ended)
        for name in ("trajectories", "success", "reward", "turns"):
            told[name] = of_ended[name]
        counts = {"ended": len(ended), "unfinished": sum(not half.ended for half in self._halves)}
        return told | {name: float(count) for name, count in counts.items()}

    @property
    def _enough(self) -> bool:
        return True

    def _half(self, number: int, sampled: Sequence[Sampled]) -> Watched:
        return Watched(number, by_turns=self._budget.turns is not None, sampled=sampled)

    def _start_of(self, group: Group, half: Half) -> Start:
        start, into = super()._start_of(group, half), cast(Watched, half).into
        into.task = start.name
        return dataclasses.replace(start, into=into)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of task selection and the half-played trajectories, with what steps have learned of them."""
        learned = [[(half.ends, half.told) for half in cast(list[Watched], group.halves)] for group in self._groups]
        return super().state_dict() | ({"learned": learned} if learned else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; see `Unfinished`."""
        super().load_state_dict({name: value for name, value in state.items() if name != "learned"})
        for group, learned in zip(self._groups, state.get("learned", ()), strict=True):
            for half, (ends, told) in zip(cast(list[Watched], group.halves), learned, strict=True):
                half.ends, half.told = list(ends), told


def make_source(
    tasks: Sequence[Task],
    settings: RolloutConfig,
    seed: int,
    last_step: int,
    rollouts: Rollouts,
    environments: Environments,
    suite: Suite,
) -> Source:
    """Make the source of a run.

    Args:
        tasks: Tasks to train on.
        settings: The `[rollout]` of a recipe.
        seed: Seed of the run.
        last_step: Last step of the run.
        rollouts: Decides where and when batches are played.
        environments: Where they are played.
        suite: Names a task in records.
    """
    if not isinstance(rollouts, Lasting):
        return Source(tasks, settings, seed, last_step=last_step, rollouts=rollouts)
    kind = Windows if settings.learns_played else Unfinished
    return kind(
        tasks,
        settings,
        seed,
        environments=environments,
        task_name=suite.task_name,
        rollouts=rollouts,
        last_step=last_step,
    )
