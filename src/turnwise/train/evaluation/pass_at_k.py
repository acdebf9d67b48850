"""Estimate pass@k: the chance that at least one of k independent trajectories of a task succeeds."""

from collections.abc import Sequence

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Float, Int

BUDGETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Values of k in tables and figures, as far as there are enough trajectories."""


def pass_at_k(
    successes: Int[np.ndarray, "..."], trajectories: Int[np.ndarray, "..."], k: Sequence[int]
) -> Float[np.ndarray, "... k"]:
    """Estimate pass@k without bias from n trajectories per task, c of which succeeded; returns `[tasks, k]`.

        pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod over j < k of (n - c - j) / (n - j)

    C(n - c, k) / C(n, k) is the chance that k of the n trajectories, drawn without replacement, all failed. Every
    factor of the product lies in [0, 1], so nothing overflows, and the estimate is exactly 1 where fewer than k failed.

    Args:
        successes: c of each task.
        trajectories: n of each task.
        k: Numbers of trajectories; each in [1, n].

    Raises:
        ConfigError: A k is below 1, or a task has fewer trajectories.

    Reference: Chen et al., "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, section 2.1.
    """
    least = int(trajectories.min(initial=np.iinfo(np.int64).max))
    if wrong := [each for each in k if not 1 <= each <= least]:
        raise ConfigError(f"k={wrong[0]}, expected a number from 1 to {least}, the fewest trajectories of a task")
    if (successes < 0).any() or (successes > trajectories).any():
        raise ConfigError("successes must lie between 0 and the trajectories of their task")
    drawn = np.arange(max(k, default=0))
    failures = np.clip((trajectories - successes)[..., None] - drawn, 0, None)
    left = np.clip(trajectories[..., None] - drawn, 1, None)
    none = np.cumprod(failures / left, axis=-1)
    return 1.0 - none[..., np.asarray(k, dtype=np.int64) - 1]


def budgets(most: int) -> list[int]:
    """List the values of k up to `most`, which is the last."""
    return [k for k in BUDGETS if k < most] + [most]
