"""Modulate advantages by properties of their responses."""

import zlib
from typing import Literal

import numpy as np

from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.options import choice
from turnwise.credit.segments import Labels, Partition
from turnwise.credit.transform import Credit, block

Scope = Literal["group", "trajectory", "batch"]
"""Responses that are compared: those of the prompt (all turns of all its trajectories), trajectory, or batch."""


def normalized_entropy(
    batch: Batch, *, scope: Scope = "group", min_range: float = 0.0, needed_by: str = "normalized_entropy"
) -> tuple[Float[np.ndarray, " R"], Partition]:
    """Normalise the entropy of every response to 0 (lowest in scope) .. 1 (highest), and return the partition used.

        h = (H - min(H)) / (max(H) - min(H))        0 everywhere in a scope where max(H) - min(H) < min_range, or 0

    Args:
        batch: A batch with the column `entropy` (nats, mean over the response's tokens).
        scope: Responses that are compared with each other: those of the group, trajectory or batch.
        min_range: Smallest range of entropy (nats) below which all responses count alike.
        needed_by: Name of the caller, for the error message.
    """
    choice("scope", scope, Scope)
    entropy_R = batch.column("entropy", needed_by=needed_by)
    partition: Partition
    if scope == "batch":
        partition = Labels.single(batch.num_responses)
    else:
        partition = batch.group_responses if scope == "group" else batch.trajectories
    low = partition.min(entropy_R)
    spread = partition.max(entropy_R) - low
    flat = (spread < min_range) | (spread == 0)
    normalized_R = (entropy_R - partition.broadcast(low)) / partition.broadcast(np.where(flat, 1.0, spread))
    return np.where(partition.broadcast(flat), 0.0, normalized_R), partition


def entropy_coefficient(
    batch: Batch,
    *,
    temperature: float = 1.0,
    scope: Scope = "group",
    min_range: float = 0.1,
    needed_by: str = "entropy_coefficient",
) -> Float[np.ndarray, " R"]:
    """Compute AEM's coefficient of every response.

        h     = (H - min(H)) / (max(H) - min(H))                 over the responses in scope, see `normalized_entropy`
        alpha = exp(-temperature * h) / mean(exp(-temperature * h))
        alpha = 1 everywhere in a scope where max(H) - min(H) < min_range

    `H` is the column `entropy`. The mean of alpha over a scope is 1, and max(alpha) / min(alpha) = exp(temperature).

    Args:
        batch: A batch with the column `entropy` (nats, mean over the response's tokens).
        temperature: lambda in the paper. Negative reverses the rule; 0 switches it off.
        scope: Responses that are compared with each other: those of the group, trajectory or batch.
        min_range: Smallest range of entropy (nats) below which all responses count alike.
        needed_by: Name of the caller, for the error message.

    Returns:
        `[responses]` positive coefficients.
    """
    normalized_R, partition = normalized_entropy(batch, scope=scope, min_range=min_range, needed_by=needed_by)
    weight_R = np.exp(-temperature * normalized_R)
    return weight_R / partition.broadcast(partition.mean(weight_R))


@block(
    needs=("entropy",),
    across_groups=lambda options: options["scope"] == "batch" or options["shuffle"],
    coefficient=True,
)
def modulate_by_entropy(
    credit_R: Credit,
    batch: Batch,
    *,
    temperature: float = 1.0,
    scope: Scope = "group",
    min_range: float = 0.1,
    shuffle: bool = False,
    seed: int = 0,
) -> Credit:
    """Multiply by AEM's coefficient (`entropy_coefficient`): confident responses count more, uncertain ones less.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch, with the column `entropy`.
        temperature: lambda in the paper; negative for the reversed ablation.
        scope: Responses that are compared with each other: those of the group, trajectory or batch.
        min_range: Smallest range of entropy, in nats.
        shuffle: Shuffled ablation: permute the coefficients at random within each group.
        seed: Seed of the permutation. It depends on the seed and the entropies, so that no state is needed.
    """
    alpha_R = entropy_coefficient(
        batch, temperature=temperature, scope=scope, min_range=min_range, needed_by="modulate_by_entropy"
    )
    if shuffle:
        generator = np.random.default_rng([seed, zlib.crc32(batch.columns["entropy"].tobytes())])
        dealt = np.lexsort((generator.random(batch.num_responses), batch.group_responses.ids))
        alpha_R = alpha_R[dealt]  # group_responses is contiguous, so each group keeps its own coefficients
    return alpha_R


Keep = Literal["all", "positive", "negative"]
"""Responses that keep their credit, by the sign of `A * (alpha - 1)`."""


@block(needs=("entropy",), scales=True, traced=True)
def mask_by_drift(
    credit_R: Credit,
    batch: Batch,
    *,
    keep: Keep = "positive",
    temperature: float = 1.0,
    scope: Scope = "group",
    min_range: float = 0.1,
) -> Credit:
    """Keep the responses with `A * (alpha - 1)` of the given sign, which move entropy in one direction; others get 0.

    For AEM's second analysis. By the theorem of `credit.entropy`, with alpha - 1 instead of H - S, entropy falls if
    only "positive" responses are kept and rises with "negative" ones. Where alpha is 1, only "all" keeps the response.

    Args:
        credit_R: `[responses]` advantages; only their sign decides what is kept.
        batch: Their batch, with the column `entropy`.
        keep: Sign of `A * (alpha - 1)` to keep.
        temperature: lambda in the paper.
        scope: Responses that are compared with each other: those of the group, trajectory or batch.
        min_range: Smallest range of entropy, in nats.
    """
    if keep == "all":
        return np.ones(len(credit_R))
    alpha_R = entropy_coefficient(
        batch, temperature=temperature, scope=scope, min_range=min_range, needed_by="mask_by_drift"
    )
    drift_R = credit_R * (alpha_R - 1.0)
    return (drift_R > 0.0 if keep == "positive" else drift_R < 0.0).astype(np.float64)


@block(needs=("entropy",), traced=True)
def add_clarity_bonus(
    credit_R: Credit, batch: Batch, *, weight: float = 0.1, temperature: float = 1.0, scope: Scope = "batch"
) -> Credit:
    """Add a bonus for a confident next response: `A_t + weight * exp(-temperature * h_{t+1})`.

    `h` is the normalised entropy, see `normalized_entropy`. The last response of a trajectory gets no bonus.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch, with the column `entropy`.
        weight: Bonus if the next response has the lowest entropy in scope.
        temperature: How fast the bonus falls with entropy.
        scope: Responses that are compared with each other: those of the group, trajectory or batch.
    """
    normalized_R, _ = normalized_entropy(batch, scope=scope, needed_by="add_clarity_bonus")
    return credit_R + weight * batch.trajectories.following(np.exp(-temperature * normalized_R))
