"""Add up the loss terms of a run."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from turnwise.base.errors import RunError, did_you_mean
from turnwise.base.shapes import Bool
from turnwise.credit.segments import components
from turnwise.objective.terms import UNITS, Loss, Pass, StepView, Term, TermLoss


@dataclasses.dataclass(frozen=True)
class StepLoss:
    """Sum of loss terms, prepared for a step."""

    parts: Mapping[str, TermLoss]  # prepared terms by name, in order
    # `[trajectories]` unit number; a micro-batch must not split a unit. None: each sequence is a unit.
    unit_N: np.ndarray | None
    matters_N: Bool[np.ndarray, " N"]  # `[trajectories]` whether the loss depends on the trajectory
    metrics: Mapping[str, float]  # metrics of the step that are computed once

    @property
    def missing(self) -> Loss | None:
        """Return the loss whose gradient the clip leaves out; None if nothing asks for it."""
        return next((part.missing for part in self.parts.values() if part.missing), None)

    def loss(self, given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
        """Compute the loss on some tokens and its metrics, which add up over micro-batches."""
        (loss, metrics), *others = (part.loss(given) for part in self.parts.values())
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
        return self.combine({name: term.prepare(step) for name, term in self.terms.items()})

    def combine(self, parts: Mapping[str, TermLoss]) -> StepLoss:
        """Add up prepared terms; one that knows fewer trajectories than others does not depend on the last ones."""
        matters_N = np.zeros(max(len(part.matters_N) for part in parts.values()), dtype=bool)
        for part in parts.values():
            matters_N[: len(part.matters_N)] |= part.matters_N
        metrics = {name: value for part in parts.values() for name, value in part.metrics.items()}
        return StepLoss(parts, self._unit_N(parts.values(), len(matters_N)), matters_N, metrics)

    def split(self, chosen: Callable[[Term], bool]) -> tuple["Objective", "Objective"]:
        """Return the terms that are chosen, and the others; states stay with the terms."""
        terms = self.terms.values()
        return Objective([each for each in terms if chosen(each)]), Objective([e for e in terms if not chosen(e)])

    def _unit_N(self, parts: Iterable[TermLoss], num_trajectories: int) -> np.ndarray | None:
        unit = max((term.unit for term in self.terms.values()), key=UNITS.index)
        if unit == "sequence":
            return None
        unit_N = np.arange(num_trajectories)
        for part in parts:
            if part.pair_N is not None:
                more = int(part.pair_N.max()) + 1 + np.arange(num_trajectories - len(part.pair_N))
                unit_N = _joined(unit_N, np.concatenate([part.pair_N, more]))
        return unit_N

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the terms by name."""
        return {name: term.state_dict() for name, term in self.terms.items()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the states that `state_dict` returned.

        Raises:
            RunError: A state belongs to a term that this run does not have.
        """
        if state is None or state.keys() == {"tokens", "entropy"}:  # up to version 0.1
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
    num_units = int(unit_N.max()) + 1
    return components(np.stack([unit_N, num_units + pair_N]), num_units + int(pair_N.max()) + 1)[unit_N]
