"""Count diverging replays, and stop whatever needs replays if most of them diverge."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from turnwise.base.errors import ConfigError, RunError
from turnwise.environments.base import Task
from turnwise.environments.hosts import agents_of
from turnwise.rollout.agents import Request
from turnwise.rollout.failures import placed_failure
from turnwise.rollout.plays import play_starts
from turnwise.rollout.starts import REPLAY, make_starts
from turnwise.rollout.trajectory import Trajectory

LEAST = 16
"""Replays before which no rate is judged."""
MOST = 0.5
"""Share of replays that may diverge. Diverging ones are lost, which may bias outcomes."""
CHECKED = 8
"""Tasks that an agent plays twice before anything that needs replays."""


def is_diverged(trajectory: Trajectory) -> bool:
    """Return whether a trajectory failed because its given turns were answered differently."""
    return REPLAY in (trajectory.failure or "")


class Replays:
    """Count replays.

    Attributes:
        played: Trajectories that began with given turns, or where another one had begun.
        diverged: Those of them that were answered differently.
    """

    def __init__(self) -> None:
        self.played = self.diverged = 0
        self._last = ""

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Count trajectories.

        Raises:
            RunError: Most replays diverge; the message has the rate and the first difference of the last one.
        """
        for trajectory in trajectories:
            self.played += 1
            if is_diverged(trajectory):
                self.diverged, self._last = self.diverged + 1, placed_failure(trajectory) or ""
        if self.played >= LEAST and self.diverged > MOST * self.played:
            raise RunError(
                f"{self.diverged} of {self.played} replays diverged ({self.diverged / self.played:.0%}), and at most "
                f"{MOST:.0%} may; `turnwise check-harness` (for an agent) or `turnwise check-env` says what varies; "
                f"the last one: {self._last}"
            )


def refuse_varying(wanted: str, tasks: Sequence[Task], task_name: Callable[[Task], str], request: Request) -> None:
    """Let an agent play its first tasks twice with the same responses, and refuse it if most plays differ.

    Environments that are not agents declare whether they repeat, so they play nothing.

    Args:
        wanted: What needs replays, for the error.
        tasks: Tasks, of which the first are played.
        task_name: Names a task.
        request: How they are played.

    Raises:
        ConfigError: Most tasks went differently; the message has the rate and the first difference.
    """
    if not agents_of(request.environments):
        return
    starts = make_starts(tasks[:CHECKED], 1, task_name)
    pairs = zip(starts, play_starts(starts, request), strict=True)
    good = [(start, first) for start, first in pairs if first.usable]
    again = [
        dataclasses.replace(start, turns=tuple(dataclasses.replace(turn, reward=0.0) for turn in first.turns))
        for start, first in good
    ]
    differences = [
        f"task {start.name}: {difference}"
        for (start, first), second in zip(good, play_starts(again, request), strict=True)
        if (difference := _difference(first, second))
    ]
    if len(differences) > MOST * len(good):
        same = len(good) - len(differences)
        raise ConfigError(
            f"{wanted} replays turns, but the agent repeats in only {same} of {len(good)} tasks "
            f"({same / len(good):.0%}) when they are played twice with the same responses; {1 - MOST:.0%} are needed. "
            f"`turnwise check-harness` says what varies; the first difference: {differences[0]}"
        )


def _difference(first: Trajectory, second: Trajectory) -> str:
    """Describe how a second play of the same turns differs; empty if it does not."""
    if second.failure is not None:
        return placed_failure(second) or second.failure
    if len(second.turns) != len(first.turns):
        return f"{len(first.turns)} calls, then {len(second.turns)}"
    return f"reward {first.reward:g}, then {second.reward:g}" * (first.reward != second.reward)
