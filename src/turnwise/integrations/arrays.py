"""Arrays of other trainers, NumPy's or torch's, as checked NumPy arrays, and back. Torch is never imported here."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from turnwise.batch import encode_labels, looks_like_label  # what counts as equal labels is decided in one place
from turnwise.columns import COLUMNS
from turnwise.errors import IntegrationError

Array = Any
"""A NumPy array, a torch tensor or nested lists."""
Labels = Sequence[Hashable] | np.ndarray | Any
"""One label a row."""


def as_mask(response_mask: Array) -> np.ndarray:
    """`[rows, length]` bool."""
    mask = _numpy(response_mask)
    if mask.ndim != 2:
        raise IntegrationError(f"response_mask has shape {mask.shape}, expected [rows, length]")
    if not ((mask == 0) | (mask == 1)).all():
        raise IntegrationError(f"response_mask must hold 0 and 1, got {mask[(mask != 0) & (mask != 1)][0]}")
    return mask == 1


def as_numbers(name: str, given: Array, mask: np.ndarray) -> np.ndarray:
    """`[rows]` or `[rows, length]` float64, finite wherever there is a response."""
    try:
        values = np.asarray(_numpy(given), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise IntegrationError(f"{name} must hold numbers: {error}") from None
    if values.shape not in (mask.shape, mask.shape[:1]):
        raise IntegrationError(
            f"{name} has shape {values.shape}, expected {mask.shape} as response_mask, or {mask.shape[:1]}"
        )
    counted = mask if values.ndim == 2 else mask.any(1)
    if (wrong := np.argwhere(counted & ~np.isfinite(values))).size:
        where = tuple(wrong[0].tolist())
        raise IntegrationError(
            f"{name}{list(where)} is {values[where]}; drop or repair the trajectory before credit assignment"
        )
    return values


def as_whole(name: str, given: Array, shape: tuple[int, ...], where: np.ndarray) -> np.ndarray:
    """Whole numbers as int64: those of `[rows]` or `[rows, length]` that `where` selects."""
    numbers = _numpy(given)
    if numbers.shape != shape:
        raise IntegrationError(f"{name} has shape {numbers.shape}, expected {shape} as response_mask")
    chosen = numbers[where].astype(np.float64)
    if not (chosen == np.round(chosen)).all():
        raise IntegrationError(f"{name} must hold whole numbers, got {chosen[chosen != np.round(chosen)][0]}")
    return chosen.astype(np.int64)


def as_column(name: str, given: Any, mask: np.ndarray) -> np.ndarray:
    """A column: numbers, 0 where they are masked, or labels and texts as they came, one a row."""
    array = _one_a_row(given)
    kind = COLUMNS[name].kind if name in COLUMNS else "label" if looks_like_label(array) else "value"
    if kind == "value":
        values = as_numbers(name, given, mask)
        return np.where(mask, values, 0.0) if values.ndim == 2 else values
    if array.shape != mask.shape[:1]:
        raise IntegrationError(f"column {name!r} has shape {array.shape}, expected {mask.shape[:1]}: one {kind} a row")
    return array


def as_codes(name: str, labels: Labels, num_rows: int, rows: np.ndarray) -> np.ndarray:
    """Labels of some rows as numbers, 0, 1, ... by first appearance."""
    array = _one_a_row(labels)
    if array.shape != (num_rows,):
        raise IntegrationError(
            f"{name} has shape {array.shape}, expected {(num_rows,)}: one label a row of response_mask"
        )
    return encode_labels(name, array[rows], rows)


def like(values: np.ndarray, mask: Array, rewards: Array) -> Array:
    """Values as the mask's kind of array, on its device, in the rewards' dtype where that is a float of this kind."""
    if hasattr(mask, "new_tensor"):
        is_float = hasattr(rewards, "is_floating_point") and rewards.is_floating_point()
        return mask.new_tensor(values, dtype=rewards.dtype if is_float else mask.float().dtype)
    dtype = getattr(rewards, "dtype", None)
    return values.astype(dtype) if isinstance(dtype, np.dtype) and dtype.kind == "f" else values


def _numpy(given: Array) -> np.ndarray:
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = given.double() if given.is_floating_point() else given  # NumPy has no bfloat16
    return np.asarray(given)


def _one_a_row(given: Any) -> np.ndarray:
    """An array of its own kind, or of objects: NumPy would turn a list of mixed labels into strings."""
    return _numpy(given) if hasattr(given, "tolist") else np.fromiter(given, dtype=object, count=len(given))
