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
from jaxtyping import Bool, Float

from turnwise.batch import Batch
from turnwise.errors import RunError, did_you_mean
from turnwise.objective.losses import Aggregate, token_weights

Unit = Literal["sequence", "trajectory", "pair"]
"""Unit that a micro-batch must not split: a sequence, all sequences of a trajectory, or of a pair of trajectories."""
UNITS: tuple[Unit, ...] = ("sequence", "trajectory", "pair")


@dataclasses.dataclass(frozen=True)
class StepView:
    """Inputs of loss terms for one step.

    Attributes:
        batch: Responses of the step, with the columns that the terms need.
        advantage_R: `[responses]` advantages.
        step: Number of the step, from 1.
        steps: Steps of the whole run.
        seed: Seed of the run.
        mini_batches: Optimiser steps per pass. Each mini-batch is weighed up to estimate the whole step.
        max_new_tokens: Largest number of tokens of a response, the constant of `aggregate = "constant"`.
    """

    batch: Batch
    advantage_R: Float[np.ndarray, " R"]
    step: int = 1
    steps: int = 1
    seed: int = 0
    mini_batches: int = 1
    max_new_tokens: int = 1

    def column(self, name: str, needed_by: str) -> np.ndarray:
        """Return a column of the batch."""
        return self.batch.column(name, needed_by=needed_by)

    def weights(self, aggregate: Aggregate, kept_T: Bool[np.ndarray, " T"] | None = None) -> Float[np.ndarray, " T"]:
        """Compute the weight of every token in the loss of a mini-batch; see `token_weights`."""
        assert self.batch.tokens is not None
        weight_T = token_weights(
            self.batch.tokens,
            self.batch.trajectories,
            aggregate=aggregate,
            constant=self.max_new_tokens,
            kept=kept_T,
        )
        return weight_T * self.mini_batches


@dataclasses.dataclass(frozen=True)
class Pass:
    """Results of a forward pass on some tokens.

    Attributes:
        logprob: `[tokens]` log-probability under the current weights, with gradient (nats).
        entropy: `[tokens]` entropy of the policy, with gradient (nats).
        where: `[tokens]` indices among the step's tokens.
    """

    logprob: Float[torch.Tensor, " t"]
    entropy: Float[torch.Tensor, " t"]
    where: torch.Tensor

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
    """

    loss: Loss
    matters_N: Bool[np.ndarray, " N"]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    pair_N: np.ndarray | None = None


class Term(Protocol):
    """Interface of a loss term.

    Attributes:
        name: Name in recipes, errors and checkpoints.
        unit: Unit that a micro-batch must not split.
        needs: Columns of the batch that the term reads.
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


@dataclasses.dataclass(frozen=True)
class StepLoss:
    """Sum of loss terms, prepared for a step.

    Attributes:
        parts: Prepared terms, in order.
        unit_N: `[trajectories]` unit number; a micro-batch must not split a unit. None: each sequence is a unit.
        matters_N: `[trajectories]` whether the loss depends on the trajectory.
        metrics: Metrics of the step that are computed once.
    """

    parts: Sequence[TermLoss]
    unit_N: np.ndarray | None
    matters_N: Bool[np.ndarray, " N"]
    metrics: Mapping[str, float]

    def loss(self, given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
        """Compute the loss on some tokens and its metrics, which add up over micro-batches."""
        (loss, metrics), *others = (part.loss(given) for part in self.parts)
        for other, more in others:
            loss = loss + other
            metrics |= more
        return loss, metrics | {"loss": loss.item()}


class Objective:
    """Loss of a run: a sum of terms and their states."""

    def __init__(self, terms: Sequence[Term]):
        self.terms = {term.name: term for term in terms}

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that each term needs."""
        return {f"loss term {name!r}": tuple(term.needs) for name, term in self.terms.items()}

    def prepare(self, step: StepView) -> StepLoss:
        """Prepare all terms for a step."""
        parts = [term.prepare(step) for term in self.terms.values()]
        matters_N = np.any([part.matters_N for part in parts], axis=0)
        metrics: dict[str, float] = {}
        for part in parts:
            metrics |= part.metrics
        return StepLoss(parts, self._unit_N(parts, len(matters_N)), matters_N, metrics)

    def _unit_N(self, parts: Sequence[TermLoss], num_trajectories: int) -> np.ndarray | None:
        unit = max((term.unit for term in self.terms.values()), key=UNITS.index)
        if unit == "sequence":
            return None
        unit_N = np.arange(num_trajectories)
        for part in parts:
            if part.pair_N is not None:
                unit_N = _joined(unit_N, part.pair_N)
        return unit_N

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the terms by name."""
        return {name: term.state_dict() for name, term in self.terms.items()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the states that `state_dict` returned.

        Raises:
            RunError: A state belongs to a term that this run does not have.
        """
        if state is None or "tokens" in state:  # up to version 0.1
            state = {"policy": state["tokens"], "entropy_rule": state["entropy"]} if state else {}
        for name, value in state.items():
            if name in self.terms:
                self.terms[name].load_state_dict(value)
            elif value is not None:
                raise RunError(
                    f"the checkpoint has a state of loss term {name!r}, which this run lacks."
                    f"{did_you_mean(name, self.terms)}"
                )


def _joined(unit_N: np.ndarray, pair_N: np.ndarray) -> np.ndarray:
    """Merge units: trajectories that share a number in either array get the same unit."""
    unit_N = unit_N.copy()
    for pair in np.unique(pair_N):
        members = np.unique(unit_N[pair_N == pair])
        unit_N[np.isin(unit_N, members)] = members[0]
    return np.unique(unit_N, return_inverse=True)[1]


def as_tensor(column_T: np.ndarray) -> torch.Tensor:
    """Convert a column to a tensor for the forward passes."""
    return torch.tensor(column_T, dtype=torch.float32)
