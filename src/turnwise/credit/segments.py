"""Partition a flat axis into parts, and compute statistics per part.

A batch is ragged: groups differ in their number of trajectories, trajectories in responses, responses in tokens.
Nothing is padded: values lie in one flat array. A partition says which contiguous elements (`Segments`) or which
elements of equal label (`Labels`) form a part. Every statistic returns one value per part; `broadcast` copies it to
the elements of the part.

    >>> turns = Segments.from_lengths([2, 3])
    >>> turns.sum(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    array([ 3., 12.])
    >>> turns.broadcast(np.array([10.0, 20.0]))
    array([10., 10., 20., 20., 20.])

Sums never use differences of a cumulative sum, which lose precision.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from turnwise.base.errors import BatchError
from turnwise.base.shapes import Bool, Float, Int, Shaped

Ids = Int[np.ndarray, " elements"]
Values = Float[np.ndarray, " elements"]
PartValues = Float[np.ndarray, " parts"]
Elements = Shaped[np.ndarray, " elements"]
PartElements = Shaped[np.ndarray, " parts"]

TOGETHER = 2048
"""Segments that `suffix_sum` passes over at a time: a processor's cache holds their elements."""


def _readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class Partition:
    """Divide elements into non-empty parts. Subclasses define the parts; this class computes the statistics.

    Attributes:
        ids: `[elements]` index of each element's part, 0 .. num_parts - 1.
    """

    ids: Ids

    def __init__(self, ids: Ids, num_parts: int):
        self.ids = ids
        self._num_parts = num_parts

    def __len__(self) -> int:
        return self._num_parts

    @cached_property
    def lengths(self) -> Int[np.ndarray, " parts"]:
        """Count the elements of each part, `[parts]`."""
        return _readonly(np.bincount(self.ids, minlength=len(self)))

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Give every element its part's value: `[parts] -> [elements]`."""
        return values[self.ids]

    def first(self, values: Elements) -> PartElements:
        """Return the value of the first element of each part."""
        result = np.empty(len(self), dtype=values.dtype)
        result[self.ids[::-1]] = values[::-1]  # the last write wins, so the first element stays
        return result

    @property
    def begins(self) -> Bool[np.ndarray, " elements"]:
        """Whether an element is the first of its part, `[elements]`."""
        result = np.zeros(len(self.ids), dtype=bool)
        result[self.first(np.arange(len(self.ids)))] = True
        return result

    def sum(self, values: Values) -> PartValues:
        """Sum the values of each part."""
        return np.bincount(self.ids, weights=values, minlength=len(self))

    def mean(self, values: Values, *, count: Values | None = None) -> PartValues:
        """Average the values of each part; exactly the common value where a part is constant.

        A group whose trajectories all earn 0.1 must centre to 0, not to 1e-17, which dividing by `std + eps` would
        amplify.

        Args:
            values: `[elements]` values to average.
            count: `[elements]` how many times each element counts, positive; default once.
        """
        origin = self.first(values)
        excess = values - self.broadcast(origin)
        if count is None:
            return origin + self.sum(excess) / self.lengths
        return origin + self.sum(excess * count) / self.sum(count)

    def std(self, values: Values, *, ddof: int, count: Values | None = None) -> PartValues:
        """Compute the standard deviation of each part with divisor `count - ddof`; 0 where that is not positive."""
        square = (values - self.broadcast(self.mean(values, count=count))) ** 2
        divisor = (self.lengths if count is None else self.sum(count)) - ddof
        return np.sqrt(
            np.where(divisor > 0, self.sum(square if count is None else square * count), 0.0)
            / np.where(divisor > 0, divisor, 1)
        )

    def min(self, values: Values) -> PartValues:
        """Return the minimum of each part."""
        result = np.full(len(self), np.inf)
        np.minimum.at(result, self.ids, values)
        return result

    def max(self, values: Values) -> PartValues:
        """Return the maximum of each part."""
        return -self.min(-values)


class Labels(Partition):
    """Partition elements by equal label; the elements of a part need not be adjacent."""

    @classmethod
    def of(cls, *columns: np.ndarray) -> "Labels":
        """Partition elements by equality in all given columns.

        Args:
            columns: `[elements]` arrays, combined like the digits of a number.

        Returns:
            Labels with parts numbered in the order of the combined columns.
        """
        code = _numbered(columns[0])
        for column in columns[1:]:
            digit = _numbered(column)
            code = _numbered(code * (int(digit.max()) + 1) + digit)  # stays within 64 bits
        return cls(_readonly(code), int(code.max()) + 1)

    @classmethod
    def single(cls, num_elements: int) -> "Labels":
        """Put all elements into one part."""
        return cls(_readonly(np.zeros(num_elements, dtype=np.int64)), 1)


def _numbered(column: np.ndarray) -> Ids:
    """Number the distinct values of a column 0, 1, ... in ascending order."""
    if column.dtype.kind == "i" and column.min() >= 0 and (top := int(column.max())) <= 8 * len(column):
        present = np.zeros(top + 1, dtype=bool)  # small integers: counting is faster than sorting and takes less memory
        present[column] = True
        return (np.cumsum(present) - 1)[column]
    return np.unique(column, return_inverse=True)[1].reshape(-1)


class Segments(Partition):
    """Partition a sorted axis into contiguous segments, stored as offsets.

    Attributes:
        offsets: `[segments + 1]` index of the first element of each segment, then the number of elements.

    Raises:
        BatchError: The offsets do not increase; segments must not be empty.
    """

    def __init__(self, offsets: Sequence[int] | np.ndarray):
        self.offsets = _readonly(np.array(offsets, dtype=np.int64))
        if self.offsets.ndim != 1 or len(self.offsets) < 2 or self.offsets[0] != 0:
            raise BatchError(f"offsets must be a vector [0, ..., num_elements] of two or more, got {offsets!r}")
        empty = np.flatnonzero(np.diff(self.offsets) <= 0)
        if len(empty):
            start, end = self.offsets[empty[0] : empty[0] + 2]
            raise BatchError(f"segment {empty[0]} is empty (offsets {start} to {end}); leave it out")

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | np.ndarray) -> "Segments":
        """Build from the number of elements of each segment."""
        given = np.asarray(lengths)
        if given.size and (given.dtype.kind not in "iu" or given.min() < 0):
            wrong = next((x for x in given.flat if isinstance(x, str) or not x >= 0 or x != int(x)), None)
            if wrong is not None:
                raise BatchError(f"a segment cannot have {wrong} elements; lengths are whole numbers, 1 or more")
        return cls(np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]))

    @classmethod
    def from_sorted_ids(cls, ids: np.ndarray) -> "Segments":
        """Build from one label per element; equal labels must be adjacent."""
        starts = np.flatnonzero(np.diff(ids)) + 1
        return cls(np.concatenate([[0], starts, [len(ids)]]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Segments(lengths={self.lengths.tolist()})"

    @property
    def num_elements(self) -> int:
        """Return the length of the flat axis."""
        return int(self.offsets[-1])

    @cached_property
    def lengths(self) -> Int[np.ndarray, " parts"]:
        """Count the elements of each segment, `[segments]`."""
        return _readonly(np.diff(self.offsets))

    @cached_property
    def ids(self) -> Ids:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the index of each element's segment, `[elements]`."""
        return _readonly(np.repeat(np.arange(len(self)), self.lengths))

    @cached_property
    def positions(self) -> Ids:
        """Return the index of each element within its segment, `[elements]`, from 0."""
        return _readonly(np.arange(self.num_elements) - self.broadcast(self.offsets[:-1]))

    def of(self, inner: "Segments") -> "Segments":
        """Partition the inner elements: `groups.of(trajectories)` partitions the responses by group."""
        return Segments(inner.offsets[self.offsets])

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Give every element its segment's value."""
        return np.repeat(values, self.lengths)

    def first(self, values: Elements) -> PartElements:
        """Return the value of the first element of each segment."""
        return values[self.offsets[:-1]]

    def last(self, values: Elements) -> PartElements:
        """Return the value of the last element of each segment."""
        return values[self.offsets[1:] - 1]

    def sum(self, values: Values) -> PartValues:
        """Sum the values of each segment."""
        return np.add.reduceat(values, self.offsets[:-1])

    def min(self, values: Values) -> PartValues:
        """Return the minimum of each segment."""
        return np.minimum.reduceat(values, self.offsets[:-1])

    def max(self, values: Values) -> PartValues:
        """Return the maximum of each segment."""
        return np.maximum.reduceat(values, self.offsets[:-1])

    def following(self, values: Values, *, end: float | PartValues = 0.0) -> Values:
        """Return the value of the next element of the segment; `end` (scalar or per segment) after the last one."""
        result = np.empty_like(values)
        result[:-1] = values[1:]
        result[self.offsets[1:] - 1] = end
        return result

    def preceding(self, values: Values, *, start: float | PartValues = 0.0) -> Values:
        """Return the value of the previous element of the segment; `start` (scalar or per segment) before the first."""
        result = np.empty_like(values)
        result[1:] = values[:-1]
        result[self.offsets[:-1]] = start
        return result

    def at_last(self, values: float | PartValues) -> Values:
        """Return a segment's value at its last element, and 0 at the others."""
        return self.following(np.zeros(self.num_elements), end=values)

    def next_where(self, chosen: np.ndarray) -> Ids:
        """Return the index of the first chosen element from each one on, itself included; -1: its segment has none."""
        none = len(chosen)
        index = np.minimum.accumulate(np.where(chosen, np.arange(none), none)[::-1])[::-1]
        return np.where(index < self.broadcast(self.offsets[1:]), index, -1)

    def suffix_sum(self, values: Values, *, discount: float | Values = 1.0) -> Values:
        """Compute the discounted sum from each element to the end of its segment.

        `result[t] = values[t] + discount[t] * result[t + 1]`. The loop runs over positions from the end. Each step
        covers all segments that are long enough, `TOGETHER` at a time, so the cost is linear in the number of elements.

        Args:
            values: `[elements]` values to sum.
            discount: Factor on what follows an element, scalar or `[elements]`.
        """
        result, factor = np.array(values, dtype=np.float64), np.asarray(discount)
        order = np.argsort(-self.lengths, kind="stable")
        for start in range(0, len(order), TOGETHER):
            part = order[start : start + TOGETHER]
            ends, lengths = self.offsets[1:][part] - 1, self.lengths[part]
            num_longer = np.searchsorted(-lengths, -np.arange(1, lengths[0]))  # segments longer than the distance
            for distance, count in enumerate(num_longer.tolist(), start=1):
                here = ends[:count] - distance
                result[here] += (factor[here] if factor.ndim else factor) * result[here + 1]
        return result


def components(edges: np.ndarray, size: int) -> Ids:
    """Number the connected parts of a graph: items that edges join, directly or not, have the same number.

    Args:
        edges: `[2, edges]` items that each edge joins.
        size: Number of items.
    """
    label = np.arange(size)
    while True:  # the least label spreads along edges
        spread = label.copy()
        least = np.minimum(label[edges[0]], label[edges[1]])
        np.minimum.at(spread, edges[0], least)
        np.minimum.at(spread, edges[1], least)
        if (spread == label).all():
            return np.unique(label, return_inverse=True)[1]
        label = spread
