"""Define the imitation term of the loss: maximise the likelihood of demonstrations, read with a step's trajectories."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from turnwise.credit.segments import Segments
from turnwise.extensions.demonstrations.taught import Lesson, Taught
from turnwise.objective.objective import Objective, StepLoss
from turnwise.objective.part import prepare_part
from turnwise.objective.terms import Pass, Stateless, StepView, TermLoss, Unit
from turnwise.objective.tokens import Sequences


class ImitationTerm(Stateless):
    """Loss on demonstrations.

        weight * mean over the demonstrations' tokens of -log pi(token)

    The mean runs over all demonstrated tokens of the step, and over no others; 0 without demonstrations. Their tokens
    and trajectories are numbered after those of the step.
    """

    name: ClassVar[str] = "imitation"
    unit: Unit = "sequence"
    whole: ClassVar[bool] = True
    needs: Sequence[str] = ()

    def __init__(self, weight: float):
        self._weight = weight
        self.taught: Sequences | None = None  # demonstrations of the step; None without any

    def prepare(self, step: StepView) -> TermLoss:
        """Fix the weight of every demonstrated token."""
        assert step.batch.tokens is not None
        first, count = step.batch.tokens.num_elements, self.taught.tokens.num_elements if self.taught else 0
        share = step.mini_batches / max(count, 1)

        def loss(given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
            taught = (given.where >= first).to(given.logprob)
            value = -(share * taught * given.logprob).sum()
            return self._weight * value, {"imitation_loss": value.item()}

        number = int(self.taught.trajectory[-1]) + 1 if self.taught else 0
        taught_N = np.arange(step.batch.num_trajectories + number) >= step.batch.num_trajectories
        return TermLoss(loss, taught_N, {"imitated": float(number), "imitated_tokens": float(count)})


def prepare_lesson(
    objective: Objective, step: StepView, sequences: Sequences, lesson: Lesson
) -> tuple[StepLoss, Sequences]:
    """Prepare a loss for a step with demonstrations, which only the imitation term sees.

    Args:
        objective: The loss terms.
        step: What the policy has played.
        sequences: Its tokens.
        lesson: Demonstrations, and the trajectories that no policy term sees; a critic learns their returns.

    Returns:
        The loss, and its sequences with those of the demonstrations after them.
    """
    left_N, demonstrations = lesson.left_N, lesson.demonstrations
    taught = Sequences.from_trajectories(demonstrations) if demonstrations else None
    rows, parts = np.flatnonzero(~step.batch.trajectories.broadcast(left_N)), dict[str, TermLoss]()
    for name, term in objective.terms.items():
        if isinstance(term, ImitationTerm):
            term.taught = taught
        sees_all = isinstance(term, ImitationTerm) or not getattr(term, "of_policy", True)
        parts[name] = term.prepare(step) if sees_all else prepare_part(term.prepare, step, rows)
    return objective.combine(parts), joined(sequences, taught) if taught else sequences


def joined(one: Sequences, other: Sequences) -> Sequences:
    """Return the sequences of both; trajectories of the second are numbered after those of the first."""
    tree = None
    if one.tree is not None or other.tree is not None:
        first, second = (np.arange(len(each)) if each.tree is None else each.tree for each in (one, other))
        tree = np.concatenate([first, second + first.max() + 1])
    return Sequences(
        [*one.token_ids, *other.token_ids],
        [*one.generated, *other.generated],
        Segments.from_lengths(np.concatenate([one.tokens.lengths, other.tokens.lengths])),
        np.concatenate([one.trajectory, other.trajectory + one.trajectory[-1] + 1]),
        tree,
    )


class RunLessons:
    """The lessons of a run; see `turnwise.train.update.Lessons`."""

    def __init__(self, source: Taught):
        self._source = source

    @property
    def left_N(self) -> np.ndarray:
        """Trajectories of the step that the policy does not learn from."""
        return self._source.lesson.left_N

    def prepare(self, objective: Objective, step: StepView, sequences: Sequences) -> tuple[StepLoss, Sequences]:
        """Prepare a loss for the step with its demonstrations."""
        return prepare_lesson(objective, step, sequences, self._source.lesson)
