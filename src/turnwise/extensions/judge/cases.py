"""Define the cases that a judge decides, and what it reads of a trajectory."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Two trajectories of one task; the verdict is a score of each, higher is better: `(first, second)`."""

    task: str  # the first observation, which states the task
    first: str  # what happened in the trajectory that is shown first
    second: str  # what happened in the other one


@dataclasses.dataclass(frozen=True, slots=True)
class Rating:
    """A trajectory up to one of its turns; the verdict is how far the task is solved then, from 0 to 10."""

    task: str  # the first observation, which states the task
    text: str  # what happened so far; empty before the first response


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A criterion of a rubric; the verdict is 1 for yes, 0 for no, -1 if it does not apply."""

    task: str  # the first observation, which states the task
    text: str  # what happened, up to the turn that the criterion is about
    criterion: str  # what is to be met
    about: str  # "the last turn" or "the whole attempt"
    repeat: int = 0  # number of the repeat, from 0; each is a separate question


Case = Comparison | Rating | Question
"""What a judge decides."""
Verdict = tuple[float, float] | float | None
"""Two scores for a comparison, one for a rating or a question, None if the judge failed."""
ANSWERS = {"yes": 1.0, "no": 0.0, "not applicable": -1.0, "n/a": -1.0}
"""Answers to a question."""
Ask = Callable[[Sequence[Case]], Sequence[Any]]
"""A judge: takes cases and returns a verdict for each."""


def task_of(trajectory: Trajectory) -> str:
    """Return the task as the policy read it."""
    return (*trajectory.given, *trajectory.turns)[0].observation


def transcript(trajectory: Trajectory, num_turns: int | None = None, *, observations: bool = True) -> str:
    """Write out the turns that a trajectory was given, and its own first turns, by default all.

    Args:
        trajectory: The trajectory.
        num_turns: Number of its own turns to include.
        observations: Whether to include the environment's answers.
    """
    every = (*trajectory.given, *trajectory.turns)
    turns = every if num_turns is None else every[: len(trajectory.given) + num_turns]
    after = [turn.observation for turn in every[1:]] + [trajectory.last_observation]
    lines = []
    for number, (turn, answer) in enumerate(zip(turns, after, strict=False), 1):
        lines.append(f"Turn {number}: {turn.response.strip()}")
        if observations and answer.strip():
            lines.append(f"Answer {number}: {answer.strip()}")
    return "\n".join(lines)
