"""Measure how much of the gradient of a task's trajectories helps other tasks.

    transfer = E <h_k, h*_l> / sqrt(E |h_k|^2 E <h*_k, h*_l>)        k, l: groups of different tasks

h_k is the gradient of group k with a method's credit, h*_k that with the true advantages. This is the cosine between
one group's gradient and the expected true gradient, which is what a step on new tasks gains from. Fidelity of the
gradient compares h_k with h*_k: what both share only because of the sampled responses counts there, but not here.
Perfect credit does not reach 1, since tasks differ: its own transfer is the most that credit can achieve.
"""

from collections.abc import Mapping

import numpy as np

from turnwise.base.shapes import Float
from turnwise.lab.diagnostics.fidelity import Fidelities, with_intervals

Gradients = Float[np.ndarray, "G size"]


def measure_transfer(
    gradients: Mapping[str, Gradients], true_GS: Gradients, square_G: Float[np.ndarray, " G"], perfect: str
) -> Fidelities | None:
    """Measure transfer of each method's gradient, with intervals by the jackknife over groups.

    Args:
        gradients: `[groups, size]` gradient of each group by method; the first is what others are compared with.
        true_GS: The same with the estimated true advantages.
        square_G: `[groups]` unbiased estimate of the squared true gradient of each group.
        perfect: Name for the true advantages among the methods.

    Returns:
        Transfer by method and of the true advantages; None unless true gradients of different groups are shown to
        agree: chosen by an estimate above zero alone, what is common, and so all transfer, would look too large.
    """
    across = _across(true_GS, true_GS)
    common = across[0]
    if not (common > 0 and square_G.sum() > 0):
        return None
    found = {
        name: _ratio(_across(made_GS, true_GS), (made_GS**2).sum(1), common) for name, made_GS in gradients.items()
    }
    measured = with_intervals(found | {perfect: _ratio(across, square_G, common)})
    return measured if measured.by_method[perfect].low > 0 else None


def _across(one_GS: Gradients, other_GS: Gradients) -> tuple[float, Float[np.ndarray, " G"]]:
    """Return the mean product over pairs of different groups, and the same without each group in turn.

    Of sums, since the products of all pairs would fill memory:

        sum_{k != l} <h_k, h*_l> = <sum_k h_k, sum_l h*_l> - sum_k <h_k, h*_k>
    """
    size, own_G = len(one_GS), (one_GS * other_GS).sum(1)
    one_S, other_S = one_GS.sum(0), other_GS.sum(0)
    total = one_S @ other_S - own_G.sum()
    without_G = total - other_GS @ one_S - one_GS @ other_S + 2 * own_G
    return float(total / (size * (size - 1))), without_G / ((size - 1) * (size - 2))


def _ratio(
    across: tuple[float, Float[np.ndarray, " G"]], square_G: Float[np.ndarray, " G"], common: float
) -> tuple[float, Float[np.ndarray, " G"]]:
    """Divide by the size of the gradients; the size of what is common stays fixed in the jackknife."""
    value, without_G = across
    size_G = (square_G.sum() - square_G) / (len(square_G) - 1)
    mean = float(square_G.mean())
    return (
        value / np.sqrt(mean * common) if mean > 0 else 0.0,
        np.divide(without_G, np.sqrt(np.maximum(size_G, 0.0) * common), out=np.zeros_like(without_G), where=size_G > 0),
    )
