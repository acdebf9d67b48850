"""Compare the policy gradient of a method's credit with that of the true advantages.

    h_k = sum over responses r of group k of A_r g_r,  g_r = gradient of log pi(response r);    h*_k likewise with A*
    gradient fidelity = sum_k <h_k, h*_k> / sqrt(sum_k |h_k|^2 sum_k |h*_k|^2)

Fidelity treats responses as independent; here the effect of turns on each other through shared weights counts too. The
gradient of each response is computed once, by group, and all methods are weightings of it. A* comes from continuations
drawn independently of the trajectories, so only |h*|^2 is biased. An error of the value of history H moves h*_k along
d_H = sum over responses that end in H of g_r - sum over those given in H of g_r, hence

    |h*_k|^2 = |h_k of the estimates|^2 - sum over H of Var(V_H) |d_H|^2

Large gradients are projected to `SIZE` numbers, which keeps inner products up to |g||h| / sqrt(SIZE).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from turnwise.base.shapes import Float, Int
from turnwise.credit.batch import Batch
from turnwise.lab.diagnostics.fidelity import Fidelities, compare
from turnwise.lab.diagnostics.noise import Noise, draw_signs, noise_of, sketch
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.transfer import measure_transfer
from turnwise.lab.diagnostics.values import Truth
from turnwise.models.policy import autocast, trainable
from turnwise.objective.tokens import Sequences, generated_logprobs

SIZE = 2**14
"""Size of the projection of a response's gradient."""
PERFECT = "true advantages"
"""Name of perfect credit among the methods, for its signal and noise."""

Gradients = Float[np.ndarray, "R size"]
"""Gradient of the log-probability of each response of a group."""


@dataclasses.dataclass(frozen=True, slots=True)
class Errors:
    """How the estimates of the true advantages err."""

    before_R: Int[np.ndarray, " R"]  # `[responses]` history of each response
    after_R: Int[np.ndarray, " R"]  # `[responses]` history after it; -1 if the trajectory ended
    variance_H: Float[np.ndarray, " H"]  # `[histories]` variance of the estimated value

    def square(self, gradient_R: Gradients, responses: np.ndarray, known_R: np.ndarray) -> float:
        """Return the expected squared error of the gradient of some responses, `sum_H Var(V_H) |d_H|^2`."""
        before_R, after_R = self.before_R[responses][known_R], self.after_R[responses][known_R]
        on_R = after_R >= 0
        used = np.unique(np.concatenate([before_R, after_R[on_R]]))
        moved_H = np.zeros((len(used), gradient_R.shape[1]))
        np.subtract.at(moved_H, np.searchsorted(used, before_R), gradient_R[known_R])
        np.add.at(moved_H, np.searchsorted(used, after_R[on_R]), gradient_R[known_R][on_R])
        return float(self.variance_H[used] @ (moved_H**2).sum(1))


@dataclasses.dataclass(frozen=True, slots=True)
class GradientFidelity:
    """What the gradients of some methods have in common with the true one.

    Attributes:
        fidelities: Cosine with the true gradient of a group by method, and differences to the first method; None if the
            true gradients do not differ significantly from zero.
        transfer: Cosine with the expected true gradient, on other tasks; see `turnwise.lab.diagnostics.transfer`.
        noise: Signal and noise of one group's gradient by method, in units of the method.
    """

    fidelities: Fidelities | None
    transfer: Fidelities | None
    noise: dict[str, Noise]


def compare_gradients(
    gradients: Iterator[Gradients] | list[Gradients],
    credit: Mapping[str, Float[np.ndarray, " R"]],
    truth: Truth,
    errors: Errors,
    batch: Batch,
) -> GradientFidelity:
    """Measure how close the gradients of methods are to the true one.

    Args:
        gradients: One per group, in the order of the batch.
        credit: `[responses]` advantages by method; the first method is what others are compared with.
        truth: True advantages; responses whose advantage is unknown are left out.
        errors: Errors of the true advantages.
        batch: The responses.
    """
    offsets = batch.group_responses.offsets.tolist()
    weights = np.stack([*credit.values(), truth.advantage_R])
    rows: list[np.ndarray] = []
    sums: list[np.ndarray] = []
    for first, last, gradient_R in zip(offsets[:-1], offsets[1:], gradients, strict=True):
        known_R = truth.known_R[first:last]
        made = np.where(known_R, weights[:, first:last], 0.0) @ gradient_R
        square = made[-1] @ made[-1] - errors.square(gradient_R, np.arange(first, last), known_R)
        rows.append(made)
        sums.append(np.stack([made @ made[-1], (made**2).sum(1), np.full(len(made), square)], axis=1))
    tables, table = np.stack(rows, axis=1), np.stack(sums, axis=1)
    return GradientFidelity(
        compare({name: table[number] for number, name in enumerate(credit)}) if table[0, :, 2].sum() > 0 else None,
        measure_transfer(dict(zip(credit, tables, strict=False)), tables[-1], table[0, :, 2], PERFECT),
        {name: noise_of(one) for name, one in zip([*credit, PERFECT], tables, strict=True)},
    )


def response_gradients(
    stage: Stage,
    sequences: Sequences,
    batch: Batch,
    *,
    seed: int = 0,
    size: int = SIZE,
    on_group: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Gradients]:
    """Compute the gradient of the log-probability of each response, one backward pass each, group by group.

    Args:
        stage: The policy.
        sequences: Tokens of the responses.
        batch: The responses.
        seed: Seed of the projection.
        size: Numbers per gradient; a model with fewer weights is not projected.
        on_group: Called with the number of groups done and of all.
    """
    assert batch.tokens is not None, "the trainer's batches have tokens"
    model, config = stage.policy.model, stage.config
    weights = trainable(model)
    signs = draw_signs(weights, seed)
    group_S, offsets = batch.groups.ids[sequences.trajectory], batch.group_responses.offsets
    for group in range(batch.num_groups):
        result = np.zeros((offsets[group + 1] - offsets[group], size))
        for number in np.flatnonzero(group_S == group).tolist():
            index = np.array([number])
            response_T = batch.tokens.ids[sequences.token_index(index)]
            with autocast(model, config.model):
                logprob, _ = generated_logprobs(model, sequences, index, temperature=config.rollout.temperature)
            responses = np.unique(response_T).tolist()
            for response in responses:
                total = logprob[torch.from_numpy(response_T == response)].sum()
                gradient = torch.autograd.grad(total, weights, retain_graph=response != responses[-1])
                result[response - offsets[group]] = sketch(gradient, signs, size).numpy()
        on_group(group + 1, batch.num_groups)
        yield result
