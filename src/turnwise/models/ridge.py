"""Fit values by ridge regression on the hidden states of the last steps, in closed form."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from turnwise.credit.segments import Segments


class Ridge:
    """Remember sums of hidden states and targets of the last steps, and regress on them.

        minimise  sum_i (w . x_i + b - y_i)^2 + num * penalty * sum_j scale_j w_j^2
        scale_j: mean variance of the features in j's block

    A step is remembered by its second moments, so that memory grows with the square of the hidden size only.

    Args:
        steps: Steps to remember.
        penalty: Penalty per example, relative to the mean variance of a feature.
        blocks: Number of features in each block of features in one unit; default: all are one block.
    """

    def __init__(self, steps: int, penalty: float, blocks: Sequence[int] = ()):
        self._moments: deque[np.ndarray] = deque(maxlen=steps)
        self._penalty, self._blocks = penalty, blocks

    def fit(
        self, hidden: Float[np.ndarray, "examples size"], target: Float[np.ndarray, " examples"]
    ) -> tuple[Float[np.ndarray, " size"], float]:
        """Remember the examples of a step, and return weights and bias fitted to all remembered steps."""
        extended = np.column_stack([hidden, target, np.ones(len(target))]).astype(np.float64)
        self._moments.append(extended.T @ extended)
        total = np.sum(self._moments, axis=0)
        num, size = total[-1, -1], len(total) - 2
        mean = total[-1, :-1] / num
        covariance = total[:-1, :-1] / num - np.outer(mean, mean)
        blocks = Segments.from_lengths(self._blocks or [size])
        scale = np.maximum(blocks.broadcast(blocks.mean(np.diag(covariance)[:size])), 1e-12)
        penalised = covariance[:size, :size] + self._penalty * np.diag(scale)
        weight = np.linalg.solve(penalised, covariance[:size, size])
        return weight, float(mean[size] - weight @ mean[:size])

    def state_dict(self) -> list[np.ndarray]:
        """Return the moments of the remembered steps."""
        return list(self._moments)

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Restore the moments that `state_dict` returned."""
        self._moments.clear()
        self._moments.extend(np.asarray(moments) for moments in state)
