"""Score trajectories with a model, without gradient."""

import dataclasses
from typing import Any

import numpy as np

from turnwise.models.policy import autocast
from turnwise.models.settings import ModelConfig
from turnwise.objective.contexts import Contexts
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import Sequences, score
from turnwise.objective.values import Values


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Score the generated tokens of some sequences."""

    sequences: Sequences  # sequences to score
    settings: ModelConfig  # `[model]` section of a recipe, for its precision
    temperature: float  # divisor of the logits
    budget: Budget  # padded tokens per micro-batch
    # A critic's values of the step, read along the pass of the model that the critic reads
    values: Values | None = None
    contexts: Contexts | None = None  # keeps what the pass of its model computes, for probes

    def __call__(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return `[tokens]` log-probabilities and entropies under a model (nats), float64."""
        along = self.values if self.values is not None and model is self.values.critic.model else None
        contexts = self.contexts if self.contexts is not None and model is self.contexts.model else None

        def run(max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
            with autocast(model, self.settings):
                return score(
                    model,
                    self.sequences,
                    temperature=self.temperature,
                    max_tokens=max_tokens,
                    watch=along.watch if along else None,
                    contexts=contexts,
                )

        return self.budget.spend(run, shortest=self.sequences.shortest)
