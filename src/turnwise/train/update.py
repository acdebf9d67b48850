"""Update policy and critic from advantages, in optimiser steps over micro-batches."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from turnwise.credit.batch import Batch
from turnwise.credit.trace import Trace
from turnwise.models.below import kept_states
from turnwise.models.policy import autocast
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget, clip_groups, culprits, damp, norm_of_gradient
from turnwise.objective.objective import Objective, StepLoss
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Loss, Pass, StepView
from turnwise.objective.tokens import Sequences, States, generated_logprobs
from turnwise.objective.values import ValueTerm
from turnwise.train.critic import states_of, teach_alone
from turnwise.train.schedule import draws, mini_batches, set_learning_rate

NORMS = ("grad_norm", "critic_grad_norm", "clip_damping")  # means over the optimiser steps that were taken
METRICS: tuple[str, ...] = ("grad_norm", "clipped_frac", "kl_old", "log_ratio_abs", "kl_reference", "loss")
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


class Lessons(Protocol):
    """What a step learns from in addition to its trajectories, such as demonstrations."""

    @property
    def left_N(self) -> np.ndarray:
        """`[trajectories]` bool, those that the policy does not learn from."""
        ...

    def prepare(self, objective: Objective, step: StepView, sequences: Sequences) -> tuple[StepLoss, Sequences]:
        """Prepare a loss, and its sequences with those of the lesson after them."""
        ...


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
        max_new_tokens: Maximum response length (tokens).
        value: Loss term of a critic, which learns in the same passes by its own optimiser.
        lessons: What steps learn from in addition, if anything.
    """

    objective: Objective
    settings: UpdateConfig
    precision: ModelConfig
    budget: Budget
    temperature: float = 1.0
    seed: int = 0
    steps: int = 1
    max_new_tokens: int = 1
    value: ValueTerm | None = None
    lessons: Lessons | None = None

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
        """Take the optimiser steps of a training step and return their metrics.

        Trajectories that the objective does not depend on are skipped, such as those whose advantages are all 0.
        Gradients of the last optimiser step stay in the model. `before_change` is called before the first one.

        Raises:
            Diverged: The loss or its gradient is not finite.
        """
        settings, critic = self.settings, self.value.critic if self.value else None
        if changed := critic is not None:  # it learns from here on
            before_change()
        objective, sequences = self.prepare(measured, credit, step)
        totals, generator = dict.fromkeys(METRICS, 0.0), draws(self.seed, step)
        set_learning_rate(optimizer, settings, step, self.steps, credit.rate)

        def loss_of(sequence_indices: np.ndarray, loss: Loss = objective.loss) -> tuple[torch.Tensor, dict[str, float]]:
            where = torch.from_numpy(sequences.token_index(sequence_indices))
            seen: list[States] = []
            options: dict[str, Any] = {"temperature": self.temperature} | ({"watch": seen.append} if critic else {})
            with autocast(model, self.precision):
                logprob, entropy = generated_logprobs(model, sequences, sequence_indices, **options)
            states = states_of(sequences, sequence_indices, self.precision, seen)
            return loss(Pass(logprob, entropy, where, states))

        def accumulate(part: np.ndarray, of: Loss, max_tokens: int) -> dict[str, float]:
            """Compute the gradient of a loss on a mini-batch."""
            optimizer.zero_grad()
            if critic and critic.learns_along:
                critic.network.zero_grad()
            sums: dict[str, float] = {}
            for indices in sequences.micro_batches(max_tokens, only=part, unit_N=objective.unit_N):
                loss, metrics = loss_of(indices, of)
                (loss * (len(parts) / settings.mini_batches)).backward()  # there may be fewer units than mini-batches
                for name, value in metrics.items():
                    sums[name] = sums.get(name, 0.0) + value
            return sums

        spend = functools.partial(self.budget.spend, shortest=sequences.shortest)
        taught: dict[str, float] = {}
        if self.value and critic:
            about = objective.parts["value"], measured.batch, measured.sequences, settings
            taught = teach_alone(self.value, *about, self.precision, self.budget, generator, step)
            if step <= critic.settings.warmup_steps:
                return {**totals, **objective.metrics, **taught}
        units_N = sequences.whole_trees(objective.unit_N)
        model.train()
        for _ in range(settings.epochs):
            parts = mini_batches(objective.matters_N, units_N, settings.mini_batches, generator)
            for part in parts:
                damping = {}
                if objective.missing:
                    spend(functools.partial(accumulate, part, objective.missing))
                    damping["clip_damping"] = 1 / max(1.0, norm_of_gradient(model))
                sums = spend(functools.partial(accumulate, part, objective.loss)) | damping
                damp(model, damping.get("clip_damping", 1.0))
                norm = clip_groups(optimizer, settings.max_grad_norm)
                finite = math.isfinite(sums["loss"]) and math.isfinite(norm)
                if critic and critic.learns_along and finite:
                    sums["critic_grad_norm"] = critic.step()
                    finite = math.isfinite(sums["critic_grad_norm"])
                if not finite:
                    raise culprits(
                        lambda n: loss_of(np.flatnonzero(sequences.trajectory == n))[0], part.tolist(), model
                    )
                if not changed:
                    before_change()
                    changed = True
                optimizer.step()
                for name, value in (sums | {"grad_norm": norm}).items():
                    num_parts = len(parts) if name in NORMS else settings.mini_batches
                    totals[name] = totals.get(name, 0.0) + value / (settings.epochs * num_parts)
        model.eval()
        if below := kept_states(model):
            below.end_update()
        return {**taught, **totals, **objective.metrics}

    def prepare(self, measured: Measured, credit: Trace, step: int) -> tuple[StepLoss, Sequences]:
        """Prepare the loss of a step, and its sequences with those of its lesson."""
        about_run = self.steps, self.seed, self.settings.mini_batches, self.max_new_tokens
        view = StepView(measured.batch, credit, step, *about_run)
        if self.lessons:
            return self.lessons.prepare(self.objective, view, measured.sequences)
        return self.objective.prepare(view), measured.sequences
