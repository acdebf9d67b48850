"""Find and sum the responses of a padded `[rows, length]` table without copying it.

A large step has tens of millions of padded cells, so they are processed in blocks that fit in the CPU cache.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from turnwise.base.errors import IntegrationError

BLOCK = 1 << 17
"""Cells per block."""


class Spans:
    """Hold responses of padded rows as stretches of adjacent cells. A response with masked tokens has several.

    Attributes:
        starts: First cell of each stretch, counted through all rows.
        stops: Cell after the end of each stretch.
        response: Response of each stretch, increasing.
        row_R: Row of each response, increasing.
        lengths_R: Tokens of each response.
        last_cells: Last cell of each response.
    """

    def __init__(self, starts: np.ndarray, stops: np.ndarray, response: np.ndarray, shape: tuple[int, int]):
        self.starts, self.stops, self.response, self.shape = starts, stops, response, shape
        first = np.flatnonzero(np.diff(response, prepend=-1))
        self.row_R = starts[first] // shape[1]
        self.last_cells = stops[np.append(first[1:], len(starts)) - 1] - 1 if len(starts) else stops
        self.lengths_R = np.bincount(response, weights=stops - starts).astype(np.int64)

    def of_cells(self, cells: np.ndarray) -> np.ndarray:
        """Return the response of each cell, -1 outside of responses."""
        at = np.searchsorted(self.starts, cells, side="right") - 1
        inside = (at >= 0) & (cells < self.stops[at])
        return np.where(inside, self.response[at], -1)

    def sum(self, table: np.ndarray) -> np.ndarray:
        """Sum a table over each response in float64, `[responses]`. Cells outside of responses are not read."""
        cuts = np.stack([self.starts, self.stops], axis=1)
        sums = np.empty(len(self.starts))
        for rows in blocks(self.shape):
            first, last = np.searchsorted(self.starts, (rows.start * self.shape[1], rows.stop * self.shape[1]))
            if first == last:
                continue
            flat, at = table[rows].ravel(), cuts[first:last].ravel() - rows.start * self.shape[1]
            at = at[: len(at) - (at[-1] == len(flat))]  # a stretch may end at the end of the table
            sums[first:last] = np.add.reduceat(flat, at, dtype=np.float64)[::2]
        return np.bincount(self.response, weights=sums)

    def spread(self, values_R: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Make a table with the value of each response at its tokens, 0 elsewhere."""
        values = np.zeros(2 * len(self.starts) + 1, dtype=dtype)
        values[1::2] = values_R[self.response]
        cuts = np.stack([self.starts, self.stops], axis=1).ravel()
        lengths = np.diff(cuts, prepend=0, append=self.shape[0] * self.shape[1])
        return np.repeat(values, lengths).reshape(self.shape)


def find_responses(mask: np.ndarray, *, by_run: bool, ids: np.ndarray | None = None) -> Spans:
    """Find the responses of each row.

    Args:
        mask: `[rows, length]` of 0 and 1.
        by_run: Each run of ones is a response; else all generated tokens of a row are one.
        ids: `[rows, length]` number of each generated token's response, increasing along a row; replaces `by_run`.

    Raises:
        IntegrationError: The mask holds other values, or the numbers decrease.
    """
    length = mask.shape[1]
    parts = [np.zeros(0, dtype=np.int64)]  # first cell of each stretch of equal cells in a row
    values = [np.zeros(0, dtype=mask.dtype)]  # their value
    buffer = np.empty(block_size(mask.shape), dtype=bool)
    for rows in blocks(mask.shape):
        flat = mask[rows].ravel()
        differs = buffer[: len(flat)]
        np.not_equal(flat[1:], flat[:-1], out=differs[1:])
        differs[::length] = True
        at = np.flatnonzero(differs)
        values.append(flat[at])  # while the block is in the cache
        parts.append(at + rows.start * length)
    cuts, value = np.concatenate(parts), np.concatenate(values)
    ones = value == 1
    if (wrong := value[~ones & (value != 0)]).size:
        raise IntegrationError(f"response_mask must hold 0 and 1, got {wrong[0]}")
    starts, stops = cuts[ones], np.append(cuts[1:], mask.size)[ones]
    if ids is not None:
        return _by_number(starts, stops, ids)
    row = starts // max(length, 1)
    return Spans(
        starts, stops, np.arange(len(starts)) if by_run else np.cumsum(np.diff(row, prepend=-1) != 0) - 1, mask.shape
    )


def _by_number(starts: np.ndarray, stops: np.ndarray, ids: np.ndarray) -> Spans:
    """Split and join runs by the number of each token."""
    lengths = stops - starts
    begins = np.cumsum(lengths) - lengths
    cells = np.arange(lengths.sum()) + np.repeat(starts - begins, lengths)
    row, number = cells // ids.shape[1], ids.ravel()[cells]
    same_row = np.diff(row, prepend=-1) == 0
    growth = np.diff(number, prepend=0)
    if (falls := np.flatnonzero((growth < 0) & same_row)).size:
        raise IntegrationError(
            f"turn_ids falls from {number[falls[0] - 1]} to {number[falls[0]]} within a row; it must increase "
            "from response to response"
        )
    fresh = ~same_row | (growth != 0)
    cut = fresh.copy()
    cut[begins] = True
    at = np.flatnonzero(cut)
    return Spans(
        cells[at], cells[at] + np.diff(at, append=len(cells)), (np.cumsum(fresh) - 1)[at], (ids.shape[0], ids.shape[1])
    )


def nonzero(table: np.ndarray) -> np.ndarray:
    """Return the cells that are not 0, including nan, counted through all rows."""
    width = table.shape[1]
    parts = [np.flatnonzero((table[rows] != 0).ravel()) + rows.start * width for rows in blocks(table.shape)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def num_nonzero(table: np.ndarray) -> int:
    """Count the cells that are not 0, including nan."""
    buffer = np.empty(block_size(table.shape), dtype=bool)
    total = 0
    for rows in blocks(table.shape):
        flat = table[rows].ravel()
        total += int(np.count_nonzero(np.not_equal(flat, 0, out=buffer[: len(flat)])))
    return total


def block_size(shape: tuple[int, ...]) -> int:
    """Return the cells of the largest block."""
    return max(1, BLOCK // max(1, shape[1])) * shape[1]


def blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Split rows into blocks of about `BLOCK` cells."""
    size = max(1, BLOCK // max(1, shape[1]))
    for start in range(0, shape[0], size):
        yield slice(start, min(start + size, shape[0]))


RELATIVE, ABSOLUTE = 1e-2, 1e-3
"""Tolerance between copies, which may have been scored separately in bfloat16."""


class PaddedRows:
    """Hold the rows that are not padding, and find copies among them."""

    def __init__(self, responses: Spans):
        self.row_R = responses.row_R  # row of each response in the table
        self.first_R = np.flatnonzero(np.diff(self.row_R, prepend=-1))  # first response of each row
        self.real = self.row_R[self.first_R]  # row numbers in the table
        self.counts = np.diff(self.first_R, append=len(self.row_R))  # number of responses of each row
        self.place_R = np.repeat(np.arange(len(self.real)), self.counts)  # row of each response as an index into `real`

    def originals(self, unit: np.ndarray, tables: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the first row of each row's unit, as indices into `real`. Copies must agree in the tables."""
        _, first, copy_of = np.unique(unit, return_index=True, return_inverse=True)
        original = first[copy_of.reshape(-1)]
        copies = np.flatnonzero(original != np.arange(len(original)))
        row, source = self.real[copies], self.real[original[copies]]
        for name, table in tables.items():
            _check_copies(name, row, source, table[row], table[source])
        return original

    def sources(self, original: np.ndarray, columns_R: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the response that each response copies, or itself. Copies must agree in the columns."""
        within_R = np.arange(len(self.row_R)) - self.first_R[self.place_R]
        source_R = self.first_R[original][self.place_R] + within_R
        for name, column in columns_R.items():
            _check_copies(name, self.row_R, self.row_R[source_R], column, column[source_R])
        return source_R


def check_one_group(trajectory: np.ndarray, group: np.ndarray, real: np.ndarray) -> None:
    """Raise if rows of one trajectory have different groups."""
    _, first, inverse = np.unique(trajectory, return_index=True, return_inverse=True)
    if (wrong := np.flatnonzero(group != group[first[inverse.reshape(-1)]])).size:
        other = first[inverse.reshape(-1)[wrong[0]]]
        raise IntegrationError(
            f"rows {real[other]} and {real[wrong[0]]} have the same trajectory but different groups; trajectory "
            "labels must differ between groups"
        )


def _check_copies(name: str, row: np.ndarray, original: np.ndarray, copied: np.ndarray, column: np.ndarray) -> None:
    same = np.isclose(copied, column, rtol=RELATIVE, atol=ABSOLUTE) if column.dtype.kind == "f" else copied == column
    if (wrong := np.flatnonzero(~(same.all(1) if same.ndim == 2 else same))).size:
        raise IntegrationError(
            f"rows {original[wrong[0]]} and {row[wrong[0]]} name the same response but differ in {name}; give "
            "different rows different turn= or trajectory= labels"
        )
