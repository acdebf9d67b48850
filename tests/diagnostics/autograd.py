"""Gradients of whole groups by autograd, one response at a time, for what sketches and sums them."""

import numpy as np
import torch

from turnwise.credit.batch import Batch
from turnwise.lab.diagnostics.stage import Stage
from turnwise.models.policy import trainable
from turnwise.objective.tokens import Sequences, generated_logprobs


def group_gradients(
    stage: Stage, batch: Batch, sequences: Sequences, advantage_R: np.ndarray, *, temperature: float
) -> np.ndarray:
    """Gradient of the sum of advantages times log-probabilities, `[groups, weights]`."""
    assert batch.tokens is not None
    advantage_T = batch.tokens.broadcast(advantage_R)
    rows = []
    for group in range(batch.num_groups):
        total = torch.zeros(())
        for number in np.flatnonzero(batch.groups.ids[sequences.trajectory] == group).tolist():
            index = np.array([number])
            logprob, _ = generated_logprobs(stage.policy.model, sequences, index, temperature=temperature)
            total = total + (torch.from_numpy(advantage_T[sequences.token_index(index)]).to(logprob) * logprob).sum()
        gradient = torch.autograd.grad(total, trainable(stage.policy.model))
        rows.append(torch.cat([part.flatten() for part in gradient]).double().numpy())
    return np.stack(rows)
