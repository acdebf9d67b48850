"""Convert arrays of other trainers to checked NumPy arrays, and back. Imports torch only if given its tensors."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import IntegrationError
from turnwise.credit.batch import encode_labels, looks_like_label
from turnwise.credit.columns import COLUMNS

Array = Any
"""A NumPy array, a torch tensor or nested lists."""
Labels = Sequence[Hashable] | np.ndarray | Any
"""One label per row."""


def as_table(name: str, given: Array) -> np.ndarray:
    """Convert to a `[rows, length]` array with the same dtype."""
    table = _numpy(given)
    if table.ndim != 2:
        raise IntegrationError(f"{name} has shape {table.shape}, expected [rows, length]")
    return table


def as_numbers(name: str, given: Array, shape: tuple[int, ...], real: np.ndarray) -> np.ndarray:
    """Convert to `[rows, length]` in its own precision, or to `[rows]` float64, finite in the `real` rows."""
    try:
        values = _numpy(given)
        values = values if values.dtype.kind == "f" else np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise IntegrationError(f"{name} must hold numbers: {error}") from None
    if values.shape not in (shape, shape[:1]):
        raise IntegrationError(f"{name} has shape {values.shape}, expected {shape} as response_mask, or {shape[:1]}")
    if values.ndim == 2:
        return values
    if (wrong := real[~np.isfinite(values[real])]).size:
        raise not_finite(name, (int(wrong[0]),), values)
    return values.astype(np.float64)


def not_finite(name: str, where: tuple[int, ...], values: np.ndarray) -> IntegrationError:
    """Build the error for a value that is not finite."""
    return IntegrationError(
        f"{name}{list(where)} is {values[where]}; drop or repair the trajectory before credit assignment"
    )


def as_whole(name: str, given: Array, shape: tuple[int, ...], where: np.ndarray) -> np.ndarray:
    """Convert the selected whole numbers of `[rows]` or `[rows, length]` to int64."""
    numbers = _numpy(given)
    if numbers.shape != shape:
        raise IntegrationError(f"{name} has shape {numbers.shape}, expected {shape} as response_mask")
    chosen = numbers[where].astype(np.float64)
    if not (chosen == np.round(chosen)).all():
        raise IntegrationError(f"{name} must hold whole numbers, got {chosen[chosen != np.round(chosen)][0]}")
    return chosen.astype(np.int64)


def as_column(name: str, given: Any, shape: tuple[int, ...], real: np.ndarray) -> np.ndarray:
    """Convert a column: numbers, or unchanged labels and texts, one per row."""
    array = _one_a_row(given)
    kind = COLUMNS[name].kind if name in COLUMNS else "label" if looks_like_label(array) else "value"
    if kind == "value":
        return as_numbers(name, given, shape, real)
    if array.shape != shape[:1]:
        raise IntegrationError(f"column {name!r} has shape {array.shape}, expected {shape[:1]}: one {kind} per row")
    return array


def as_codes(name: str, labels: Labels, num_rows: int, rows: np.ndarray) -> np.ndarray:
    """Encode the labels of some rows as 0, 1, ... by first appearance."""
    array = _one_a_row(labels)
    if array.shape != (num_rows,):
        raise IntegrationError(
            f"{name} has shape {array.shape}, expected {(num_rows,)}: one label per row of response_mask"
        )
    return encode_labels(name, array[rows], rows)


def dtype_of(mask: Array, rewards: Array) -> np.dtype:
    """Return the precision in which to compute values for `like`."""
    name = str(getattr(rewards, "dtype", "")).removeprefix("torch.")
    exact = name == "float64" or not (name == "float32" or hasattr(mask, "new_tensor"))
    return np.dtype(np.float64 if exact else np.float32)


def like(values: np.ndarray, mask: Array, rewards: Array) -> Array:
    """Convert values to the mask's kind of array and device, and to the rewards' dtype if it is a float."""
    if hasattr(mask, "new_tensor"):
        import torch  # already installed; from_numpy shares memory

        is_float = hasattr(rewards, "is_floating_point") and rewards.is_floating_point()
        return torch.from_numpy(values).to(mask.device, rewards.dtype if is_float else torch.float32)
    dtype = getattr(rewards, "dtype", None)
    return values.astype(dtype, copy=False) if isinstance(dtype, np.dtype) and dtype.kind == "f" else values


def _numpy(given: Array) -> np.ndarray:
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        if given.is_floating_point() and given.element_size() < 4:
            given = given.float()  # NumPy has no bfloat16
    return np.asarray(given)


def _one_a_row(given: Any) -> np.ndarray:
    """Convert to an array; a list becomes an array of objects, since NumPy would turn mixed labels into strings."""
    return _numpy(given) if hasattr(given, "tolist") else np.fromiter(given, dtype=object, count=len(given))
