"""Define the imitation term of the loss: maximise the likelihood of demonstrations among a step's trajectories."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float

from turnwise.objective.losses import Aggregate
from turnwise.objective.terms import Pass, Stateless, StepView, TermLoss, Unit, as_tensor

OWN, TAUGHT = "own", "taught"
"""Columns of a step with demonstrations, 0 or 1 per response: whether the other terms learn from it, and whether the
imitation term does. A response of a group that is taught by its demonstration instead has neither."""


class TaughtView(StepView):
    """Inputs of loss terms for a step with demonstrations, which no other term than the imitation term weighs."""

    def weights(self, aggregate: Aggregate, kept_T: Bool[np.ndarray, " T"] | None = None) -> Float[np.ndarray, " T"]:
        """Compute the weight of every token; all but the policy's own have 0, and no part in a denominator."""
        batch = self.batch
        assert batch.tokens is not None
        own_R = batch.columns[OWN] > 0
        own_T = batch.tokens.broadcast(own_R)
        weight_T = super().weights(aggregate, own_T if kept_T is None else own_T & kept_T)
        num_own = batch.trajectories.first(own_R).sum()
        return weight_T * (batch.num_trajectories / max(num_own, 1)) if aggregate == "constant" else weight_T


class ImitationTerm(Stateless):
    """Loss on demonstrations.

        weight * mean over the demonstrations' tokens of -log pi(token)

    The mean runs over all demonstrated tokens of the step, and over no others; 0 without demonstrations.

    Args:
        weight: Coefficient of the term.
    """

    name: ClassVar[str] = "imitation"
    unit: Unit = "sequence"
    needs: Sequence[str] = ()

    def __init__(self, weight: float):
        self._weight = weight

    def prepare(self, step: StepView) -> TermLoss:
        """Fix the weight of every demonstrated token."""
        batch = step.batch
        assert batch.tokens is not None
        taught_R = batch.column(TAUGHT, needed_by=self.name)
        taught_T = batch.tokens.broadcast(taught_R)
        count = float(taught_T.sum())
        share_T = as_tensor(taught_T * (step.mini_batches / max(count, 1.0)))

        def loss(given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
            value = -(given.here(share_T) * given.logprob).sum()
            return self._weight * value, {"imitation_loss": value.item()}

        taught_N = batch.trajectories.first(taught_R) > 0
        metrics = {"imitated": float(taught_N.sum()), "imitated_tokens": count}
        return TermLoss(loss, taught_N, metrics)
