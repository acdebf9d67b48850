"""Update the policy from its own trajectories and from demonstrations, in the same passes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace, Traced
from turnwise.extensions.demonstrations.taught import Lesson, Taught
from turnwise.extensions.demonstrations.term import OWN, TAUGHT, TaughtView
from turnwise.objective.scorer import Scorer
from turnwise.objective.terms import StepView
from turnwise.objective.tokens import Sequences
from turnwise.train.update import Learner, Measured

SCORES = ("logprob_T", "entropy_T")
"""Endings of the columns whose values demonstrations get from a scoring pass, so that no ratio to them overflows."""


@dataclasses.dataclass
class Imitating(Learner):
    """Update a policy from a step and its lesson.

    Attributes:
        source: Knows the lesson of each step.
    """

    source: Taught | None = None
    view: ClassVar[type[StepView]] = TaughtView

    def update(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        measured: Measured,
        credit: Trace,
        step: int,
        *,
        before_change: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Take the optimiser steps of a training step and return their metrics; see `Learner.update`."""
        assert self.source is not None
        lesson, scores = self.source.lesson, None
        if lesson.demonstrations:
            sequences = Sequences.from_trajectories(lesson.demonstrations)
            scores = Scorer(sequences, self.precision, self.temperature, self.budget)(model)
            measured = dataclasses.replace(measured, sequences=joined(measured.sequences, sequences))
        batch, credit = with_lesson(measured.batch, credit, lesson, scores)
        measured = dataclasses.replace(measured, batch=batch)
        return super().update(model, optimizer, measured, credit, step, before_change=before_change)


def with_lesson(
    batch: Batch, credit: Trace, lesson: Lesson, scores: tuple[np.ndarray, np.ndarray] | None
) -> tuple[Batch, Trace]:
    """Add the demonstrations to a step, each a group of its own with advantage 0, and mark what each term learns from.

    Args:
        batch: Responses of the step.
        credit: Their credit.
        lesson: Demonstrations, and the trajectories that they replace.
        scores: `[tokens]` log-probabilities and entropies of the demonstrations (nats), if there are any.
    """
    assert batch.tokens is not None
    turns = [turn for trajectory in lesson.demonstrations for turn in trajectory.turns]
    lengths = [len(trajectory.turns) for trajectory in lesson.demonstrations]
    tokens = [len(turn.response_ids) for turn in turns]
    own_R = ~batch.trajectories.broadcast(lesson.left_N)
    columns: dict[str, Any] = {}
    for name, column in batch.columns.items():
        fill: Any = "" if column.dtype == object else -1 if column.dtype.kind == "i" else 0.0
        more = np.full(sum(tokens) if name.endswith("_T") else len(turns), fill, dtype=column.dtype)
        for ending, values in zip(SCORES, scores or (), strict=False):
            more = values if name.endswith(ending) else more
        columns[name] = np.concatenate([column, more])
    columns[OWN] = np.concatenate([own_R, np.zeros(len(turns))])
    columns[TAUGHT] = np.concatenate([np.zeros(len(own_R)), np.ones(len(turns))])
    joined_batch = Batch(
        _longer(batch.groups, [1] * len(lengths)),
        _longer(batch.trajectories, lengths),
        np.concatenate([batch.reward_R, np.zeros(len(turns))]),
        columns,
        _longer(batch.tokens, tokens),
    )
    advantage_R = np.concatenate([np.where(own_R, credit.advantage_R, 0.0), np.zeros(len(turns))])
    within_T, kept_R = credit.within_T(batch.tokens), credit.kept_R
    if within_T is not None:
        within_T = np.concatenate([np.where(batch.tokens.broadcast(own_R), within_T, 0.0), np.zeros(sum(tokens))])
    if kept_R is not None:
        kept_R = np.concatenate([kept_R, np.ones(len(turns), dtype=bool)])
    ones = np.ones(len(advantage_R))
    whole = Traced("lesson", advantage_R, ones, advantage_R, within_T=within_T, kept_R=kept_R)
    return joined_batch, Trace(advantage_R, (whole,))


def _longer(segments: Segments, lengths: Sequence[int]) -> Segments:
    return Segments.from_lengths(np.concatenate([segments.lengths, np.array(lengths, dtype=np.int64)]))


def joined(one: Sequences, other: Sequences) -> Sequences:
    """Return the sequences of both, the trajectories of the second numbered after those of the first."""
    tree = None
    if one.tree is not None or other.tree is not None:
        first, second = (np.arange(len(each)) if each.tree is None else each.tree for each in (one, other))
        tree = np.concatenate([first, second + first.max() + 1])
    return Sequences(
        [*one.token_ids, *other.token_ids],
        [*one.generated, *other.generated],
        _longer(one.tokens, other.tokens.lengths.tolist()),
        np.concatenate([one.trajectory, other.trajectory + one.trajectory[-1] + 1]),
        tree,
    )
