"""Update the policy from advantages, in optimiser steps over micro-batches."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from turnwise.batch import Batch
from turnwise.models.policy import autocast, trainable
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget, culprits
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Objective, Pass, StepView
from turnwise.objective.tokens import Sequences, generated_logprobs

METRICS = ("grad_norm", "clipped_frac", "kl_old", "log_ratio_abs", "kl_reference", "loss")
"""Metrics of every update, 0 if no loss term provides them."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Hold what a step learns from.

    Attributes:
        batch: Responses with their columns.
        sequences: Tokens of the responses, as models read them.
        metrics: Seconds and tokens of each measure.
    """

    batch: Batch
    sequences: Sequences
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Learner:
    """Update a run's policy.

    Attributes:
        objective: Loss to minimise.
        settings: Section `[update]` of the recipe.
        precision: Section `[model]` of the recipe.
        budget: Padded tokens per micro-batch.
        temperature: Temperature of the rollout.
        seed: Seed of the run.
        steps: Number of steps of the run.
        max_new_tokens: Longest response (tokens).
    """

    objective: Objective
    settings: UpdateConfig
    precision: ModelConfig
    budget: Budget
    temperature: float = 1.0
    seed: int = 0
    steps: int = 1
    max_new_tokens: int = 1

    def update(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        measured: Measured,
        advantage_R: np.ndarray,
        step: int,
        *,
        before_change: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Take the optimiser steps of a training step and return their metrics.

        Trajectories that the objective does not depend on are skipped, such as those whose advantages are all 0.
        Gradients of the last optimiser step stay in the model. `before_change` is called before the first one.

        Raises:
            Diverged: The loss or its gradient is not finite.
        """
        settings, sequences = self.settings, measured.sequences
        view = StepView(
            measured.batch, advantage_R, step, self.steps, self.seed, settings.mini_batches, self.max_new_tokens
        )
        objective = self.objective.prepare(view)
        totals: dict[str, float] = dict.fromkeys(METRICS, 0.0)
        generator = np.random.default_rng([self.seed, 3, step])
        num_steps = settings.epochs * settings.mini_batches
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, self.steps)

        def loss_of(sequence_indices: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
            where = torch.from_numpy(sequences.token_index(sequence_indices))
            with autocast(model, self.precision):
                logprob, entropy = generated_logprobs(model, sequences, sequence_indices, temperature=self.temperature)
            return objective.loss(Pass(logprob, entropy, where))

        def accumulate(part: np.ndarray, max_tokens: int) -> dict[str, float]:
            """Compute the gradient of a mini-batch."""
            optimizer.zero_grad()
            sums: dict[str, float] = {}
            for indices in sequences.micro_batches(max_tokens, only=part, unit_N=objective.unit_N):
                loss, metrics = loss_of(indices)
                loss.backward()
                for name, value in metrics.items():
                    sums[name] = sums.get(name, 0.0) + value
            return sums

        model.train()
        changed = False
        for _ in range(settings.epochs):
            for part in _mini_batches(objective.matters_N, objective.unit_N, settings.mini_batches, generator):
                sums = self.budget.spend(functools.partial(accumulate, part), shortest=sequences.shortest)
                norm = torch.nn.utils.clip_grad_norm_(trainable(model), settings.max_grad_norm)
                if not (math.isfinite(sums["loss"]) and math.isfinite(norm)):
                    raise culprits(
                        lambda n: loss_of(np.flatnonzero(sequences.trajectory == n))[0], part.tolist(), model
                    )
                if not changed:
                    before_change()
                    changed = True
                optimizer.step()
                for name, value in (sums | {"grad_norm": float(norm)}).items():
                    totals[name] = totals.get(name, 0.0) + value / num_steps
        model.eval()
        return totals | dict(objective.metrics)


def _mini_batches(
    matters_N: np.ndarray, unit_N: np.ndarray | None, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Split trajectories into optimiser steps in random order. Units stay together; empty parts are dropped."""
    if unit_N is None:
        unit_N = np.arange(len(matters_N))
    units = generator.permutation(np.unique(unit_N[matters_N]))
    parts = [np.flatnonzero(np.isin(unit_N, part)) for part in np.array_split(units, count)]
    return [part for part in parts if len(part)]


def learning_rate(settings: UpdateConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 1."""
    rise = min(1.0, step / max(1, settings.warmup_steps))
    fall = 1.0 - (step - 1) / steps if settings.decay else 1.0
    return settings.learning_rate * rise * fall
