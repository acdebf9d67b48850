"""Rows with further columns, such as values, and checks of examples worked by hand."""

import dataclasses
from functools import cached_property

import numpy as np
from tests.known_wrong.checks import Check, Credit, table
from tests.properties.strategies import Rows

import turnwise as tw


@dataclasses.dataclass(frozen=True)
class Known(Rows):
    """Rows with further columns: `more` holds a dictionary a row."""

    more: np.ndarray

    @cached_property
    def built(self) -> tuple[tw.Batch, np.ndarray]:
        """The batch with these columns only, and the order that leads back."""
        columns = {name: [row[name] for row in self.more] for name in self.more[0]}
        return tw.Batch.from_arrays(group=self.group, trajectory=self.trajectory, reward=self.reward, columns=columns)


def known(rewards, **columns) -> Known:
    """Rows from `rewards[g][n][t]` and flat columns."""
    rows = table(rewards)
    more = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    fields = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    return Known(**fields, more=np.array(more, dtype=object))


def column(rows: Rows, name: str) -> np.ndarray:
    """A further column."""
    assert isinstance(rows, Known)
    return np.array([row[name] for row in rows.more], dtype=np.float64)


def following(rows: Rows, values: np.ndarray, end: float = 0.0) -> np.ndarray:
    """Each row's value one turn later in its trajectory."""
    names = rows.names()
    later = [next((k for k in range(row + 1, len(rows)) if names[k] == names[row]), None) for row in range(len(rows))]
    return np.array([end if k is None else values[k] for k in later])


def worked(name: str, rows: Rows, expected, atol: float = 1e-5) -> Check:
    """A check that an example worked by hand comes out."""

    def check(credit: Credit) -> None:
        np.testing.assert_allclose(credit(rows), expected, rtol=1e-5, atol=atol)

    check.__name__ = name
    return check
