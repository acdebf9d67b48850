"""Define loss terms, whose sum is the loss of a step.

A term first sees the whole step (`prepare`) and fixes the weight of every token. Denominators are global, so that
micro-batch size, accumulation and packing cannot change the gradient. The prepared term then computes the loss on any
of the step's tokens.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.base.shapes import Bool, Float
from turnwise.credit.batch import Batch
from turnwise.credit.trace import Trace
from turnwise.objective.losses import Aggregate, token_weights
from turnwise.objective.tokens import States

Unit = Literal["sequence", "trajectory", "pair"]
"""Unit that a micro-batch must not split: a sequence, all sequences of a trajectory, or of a pair of trajectories."""
UNITS: tuple[Unit, ...] = ("sequence", "trajectory", "pair")


@dataclasses.dataclass(frozen=True)
class StepView:
    """Inputs of loss terms for one step.

    Attributes:
        batch: Responses of the step, with the columns that the terms need.
        credit: Advantages, with what blocks report about tokens and a critic's targets.
        step: Number of the step, from 1.
        steps: Steps of the whole run.
        seed: Seed of the run.
        mini_batches: Optimiser steps per pass. Each mini-batch is scaled up to estimate the whole step.
        max_new_tokens: Largest number of tokens of a response, the constant of `aggregate = "constant"`.
    """

    batch: Batch
    credit: Trace
    step: int = 1
    steps: int = 1
    seed: int = 0
    mini_batches: int = 1
    max_new_tokens: int = 1

    @property
    def advantage_T(self) -> Float[np.ndarray, " T"]:
        """Return the advantage of every token."""
        assert self.batch.tokens is not None
        return self.credit.advantage_T(self.batch.tokens)

    def column(self, name: str, needed_by: str) -> np.ndarray:
        """Return a column of the batch."""
        return self.batch.column(name, needed_by=needed_by)

    def weights(self, aggregate: Aggregate, kept_T: Bool[np.ndarray, " T"] | None = None) -> Float[np.ndarray, " T"]:
        """Compute each token's weight in a mini-batch's loss, 0 if the method leaves it out; see `token_weights`."""
        assert self.batch.tokens is not None
        if (kept_R := self.credit.kept_R) is not None:
            kept_T = self.batch.tokens.broadcast(kept_R) & (True if kept_T is None else kept_T)
        spans = self.batch.tokens, self.batch.trajectories
        weight_T = token_weights(*spans, aggregate=aggregate, constant=self.max_new_tokens, kept=kept_T)
        return weight_T * self.mini_batches

    def shares(self, aggregate: Aggregate) -> Float[np.ndarray, " T"]:
        """Compute each token's weight in a metric: as in the loss, but so that those of a mini-batch sum to about 1."""
        return (weight_T := self.weights(aggregate)) * (self.mini_batches / max(weight_T.sum(), 1e-30))


@dataclasses.dataclass(frozen=True)
class Pass:
    """Results of a forward pass on some tokens.

    Attributes:
        logprob: `[tokens]` log-probability under the current weights, with gradient (nats).
        entropy: `[tokens]` entropy of the policy, with gradient (nats).
        where: `[tokens]` indices among the step's tokens.
        states: Function that returns the pass's hidden states; given another model, it runs that on the same tokens.
    """

    logprob: Float[torch.Tensor, " t"]
    entropy: Float[torch.Tensor, " t"]
    where: torch.Tensor
    states: Callable[[PreTrainedModel | None], States] | None = None

    def here(self, column_T: torch.Tensor) -> torch.Tensor:
        """Select the values of a column at these tokens."""
        return column_T[self.where].to(self.logprob.device)


Loss = Callable[[Pass], tuple[torch.Tensor, dict[str, float]]]
"""Function from a forward pass to a loss and its metrics; both add up over micro-batches."""


@dataclasses.dataclass(frozen=True)
class TermLoss:
    """Loss term prepared for a step.

    Attributes:
        loss: Function that computes the loss on any of the step's tokens.
        matters_N: `[trajectories]` whether the term depends on the trajectory. The passes skip other trajectories, but
            the denominators count them.
        metrics: Metrics of the step that are computed once.
        pair_N: `[trajectories]` number of the trajectory's pair, for a term with the unit "pair".
        missing: Function whose gradient is the one that a clip leaves out, if `update.clip_correction` asks for it.
    """

    loss: Loss
    matters_N: Bool[np.ndarray, " N"]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    pair_N: np.ndarray | None = None
    missing: Loss | None = None


class Term(Protocol):
    """Interface of a loss term.

    Attributes:
        name: Name in recipes, errors and checkpoints.
        unit: Unit that a micro-batch must not split.
        needs: Columns of the batch that the term reads.
        whole, of_policy: Optional. Whether it compares whole trajectories (no), and shapes the policy (yes).
    """

    name: ClassVar[str]
    unit: Unit
    needs: Sequence[str]

    def prepare(self, step: StepView) -> TermLoss:
        """Prepare the term for a whole step, and update its state, if any."""
        ...

    def state_dict(self) -> Any:
        """Return the state of the term as plain data; None without state."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Restore the state that `state_dict` returned."""
        ...


class Stateless:
    """Implement `state_dict` and `load_state_dict` without state."""

    def state_dict(self) -> Any:
        """Return None."""

    def load_state_dict(self, state: Any) -> None:
        """Ignore the state."""


def as_tensor(column_T: np.ndarray) -> torch.Tensor:
    """Convert a column to a tensor for the forward passes."""
    return torch.tensor(column_T, dtype=torch.float32)
