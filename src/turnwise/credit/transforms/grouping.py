"""Define which values a baseline compares with each other, and what counts as one value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from turnwise.base.errors import BatchError, ConfigError
from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.options import choice
from turnwise.credit.segments import Labels, Partition

Over = Literal["trajectories", "responses", "tokens"]
"""What a statistic counts: one value per trajectory, response (long trajectories count more), or token."""

Same = str | Sequence[str] | None
"""A column, or several, in which responses must agree to be compared."""

Scope = Literal["group", "batch"]
"""Values that are compared: those of the prompt's group, or of the whole batch."""


def needs_length(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the column that counting tokens needs."""
    return ("length",) if options["over"] == "tokens" else ()


class VariedCredit(BatchError):
    """The responses of a trajectory have different credit, and a block compares one value per trajectory."""


class Members:
    """Values to compare: the credit, counted once per trajectory, response or token, in groups.

    Args:
        credit_R: `[responses]` the credit so far.
        batch: Its batch.
        over: What counts as one value. With "trajectories", all responses of a trajectory must have the same credit.
        same: Compare only what agrees in this column or these columns ("state_key", "turn", "role", ...). With
            "trajectories", a column must be the same on all turns of a trajectory.
        scope: Within the prompt's group, or over the whole batch.
        needed_by: Name of the caller, for error messages.

    Attributes:
        values: `[members]` credit of each member.
        count: `[members]` how many times each counts; None for once.
        partition: Members that are compared with each other.
    """

    def __init__(
        self,
        credit_R: Float[np.ndarray, " R"],
        batch: Batch,
        *,
        over: Over = "trajectories",
        same: Same = None,
        scope: Scope = "group",
        needed_by: str,
    ):
        choice("over", over, Over)
        choice("scope", scope, Scope)
        self._batch, self._over = batch, over
        self.count: np.ndarray | None = None
        self.partition: Partition
        if over == "trajectories":
            names = _names(same)
            if "turn" in names:
                raise ConfigError(f"{needed_by}: same={same!r} compares responses; use over='responses' with it")
            labels = [_label_of_trajectories(batch, name, needed_by=needed_by) for name in names]
            self.partition = _agreeing(batch.groups if scope == "group" else None, labels, batch.num_trajectories)
            self.values = of_trajectories(
                batch,
                credit_R,
                lambda row: (
                    f"{needed_by} counts one value per trajectory, but the credit varies within it "
                    f"({batch.place(row)}); use outcome_return() before it, or over='responses'"
                ),
                VariedCredit,
            )
            return
        self.values = credit_R
        if over == "tokens":
            self.count = np.asarray(batch.column("length", needed_by=f"{needed_by}(over='tokens')"))
        self.partition = alike(batch, same=same, scope=scope, needed_by=needed_by)

    def mean(self) -> np.ndarray:
        """Return the mean of the values that each member is compared with, `[members]`."""
        return self.partition.broadcast(self.partition.mean(self.values, count=self.count))

    def std(self, *, ddof: int) -> np.ndarray:
        """Return the standard deviation of the values that each member is compared with, `[members]`."""
        return self.partition.broadcast(self.partition.std(self.values, ddof=ddof, count=self.count))

    def is_lone(self) -> np.ndarray:
        """Return whether a member has no other member to compare with, `[members]`."""
        return self.partition.broadcast(self.partition.lengths == 1)

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Copy one value per member to the responses."""
        return self._batch.trajectories.broadcast(values) if self._over == "trajectories" else values


def of_trajectories(
    batch: Batch, value_R: np.ndarray, problem: Callable[[int], str], error: type[BatchError] = BatchError
) -> np.ndarray:
    """Return the value that all responses of a trajectory have, one per trajectory.

    Args:
        batch: A batch.
        value_R: `[responses]` values of any kind.
        problem: Describes the problem of a response whose value is not that of its trajectory's first one.
        error: Kind of the error.

    Raises:
        BatchError: A value varies within a trajectory.
    """
    value_N = batch.trajectories.first(value_R)
    varies = np.flatnonzero(value_R != batch.trajectories.broadcast(value_N))
    if len(varies):
        raise error(problem(int(varies[0])))
    return value_N


def _label_of_trajectories(batch: Batch, name: str, *, needed_by: str) -> np.ndarray:
    return of_trajectories(
        batch,
        batch.column(name, needed_by=needed_by),
        lambda row: (
            f"{needed_by} compares whole trajectories with the same {name}, but {name} varies within one "
            f"({batch.place(row)}); make each {name} a trajectory, or use over='responses'"
        ),
    )


def _names(same: Same) -> tuple[str, ...]:
    return (same,) if isinstance(same, str) else tuple(same or ())


def _agreeing(within: Partition | None, labels: Sequence[np.ndarray], size: int) -> Partition:
    """Partition what is in one part of `within` (None: all `size` elements) into what agrees in all labels."""
    if labels:
        return Labels.of(*([] if within is None else [within.ids]), *labels)
    return Labels.single(size) if within is None else within


def alike(batch: Batch, *, same: Same = None, scope: Scope = "group", needed_by: str) -> Partition:
    """Partition responses into those of a group, or of the batch, that agree in some columns."""
    columns = [batch.column(name, needed_by=needed_by) for name in _names(same)]
    return _agreeing(batch.group_responses if scope == "group" else None, columns, batch.num_responses)
