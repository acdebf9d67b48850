"""Find rows of a padded batch that are copies of other rows, and check that they agree."""

from collections.abc import Mapping

import numpy as np

from turnwise.base.errors import IntegrationError
from turnwise.integrations.stretches import Stretches

RELATIVE, ABSOLUTE = 1e-2, 1e-3
"""Tolerance between copies, which may have been scored separately in bfloat16."""


class Rows:
    """Hold the rows that are not padding, and find copies among them.

    Attributes:
        real: Row numbers in the table.
        first_R: First response of each row.
        counts: Number of responses of each row.
        row_R: Row of each response in the table.
        place_R: Row of each response as an index into `real`.
    """

    def __init__(self, responses: Stretches):
        self.row_R = responses.row_R
        self.first_R = np.flatnonzero(np.diff(self.row_R, prepend=-1))
        self.real = self.row_R[self.first_R]
        self.counts = np.diff(self.first_R, append=len(self.row_R))
        self.place_R = np.repeat(np.arange(len(self.real)), self.counts)

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
