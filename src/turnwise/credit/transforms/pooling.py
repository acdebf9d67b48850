"""Compare responses within sets other than a prompt's group."""

import zlib

import numpy as np

from turnwise.base.errors import BatchError, ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Labels
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.baselines import Lone
from turnwise.credit.transforms.grouping import Same, Scope, alike


@block(needs_option="column")
def take_column(credit_R: Credit, batch: Batch, *, column: str = "step_reward") -> Credit:
    """Replace the credit by a column of the batch.

    Args:
        credit_R: Not used.
        batch: The batch.
        column: Name of a column of values.
    """
    values_R = batch.column(column, needed_by="take_column")
    if values_R.dtype != np.float64:
        raise BatchError(f"take_column needs values, but column {column!r} holds names; use another column")
    return values_R.copy()


@block(needs_option="same")
def center_by_distinct(credit_R: Credit, batch: Batch, *, same: Same = None, scope: Scope = "group") -> Credit:
    """Subtract the mean of the distinct values: a value shared by several responses counts once.

    Values that differ by less than 1e-9 of the largest count as equal, to ignore rounding.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        same: Compare only responses that agree in this column, or in all of these.
        scope: Within the prompt's group, or over the whole batch.
    """
    pool_R = alike(batch, same=same, scope=scope, needed_by="center_by_distinct").ids
    order = np.lexsort((credit_R, pool_R))
    values, pool = credit_R[order], pool_R[order]
    is_new = np.append(True, (np.diff(pool) != 0) | (np.diff(values) > 1e-9 * np.abs(credit_R).max()))
    pools = Labels.of(pool[is_new])
    centered = values[is_new] - pools.broadcast(pools.mean(values[is_new]))
    result_R = np.empty_like(credit_R)
    result_R[order] = centered[np.cumsum(is_new) - 1]
    return result_R


@block(across_groups=lambda options: True)
def standardize_in_random_groups(
    credit_R: Credit, batch: Batch, *, size: int = 16, seed: int = 0, eps: float = 1e-6, lone: Lone = "zero"
) -> Credit:
    """Standardise the responses of the batch within random groups: `(r - mean) / (std + eps)`.

    Groups ignore task, trajectory and turn. The last group may be smaller. The grouping depends on
    `seed` and on the batch's numbers, so it differs between batches and needs no state.

    Args:
        credit_R: `[responses]` values that mean the same in every task and at every turn.
        batch: Their batch.
        size: Responses per group.
        seed: Seed of the grouping.
        eps: Added to the sample standard deviation.
        lone: A single response gets 0 ("zero"), or its own value ("keep").
    """
    if size < 1:
        raise ConfigError(
            f"standardize_in_random_groups: size={size} must be at least 1; it counts responses per group"
        )
    numbers = batch.reward_R.tobytes() + credit_R.tobytes()
    generator = np.random.default_rng([seed, zlib.crc32(numbers)])
    group_R = np.empty(batch.num_responses, dtype=np.int64)
    group_R[generator.permutation(batch.num_responses)] = np.arange(batch.num_responses) // size
    groups = Labels.of(group_R)
    deviation_R = groups.broadcast(groups.std(credit_R, ddof=1)) + eps
    result_R = (credit_R - groups.broadcast(groups.mean(credit_R))) / deviation_R
    is_lone_R = groups.broadcast(groups.lengths) == 1
    return np.where(is_lone_R, credit_R, result_R) if lone == "keep" else result_R
