"""Define which values a baseline compares with each other, and what counts as one value."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from turnwise.batch import Batch
from turnwise.errors import BatchError, ConfigError, did_you_mean
from turnwise.segments import Labels, Partition

Over = Literal["trajectories", "responses", "tokens"]
"""What a statistic counts: one value per trajectory, response (long trajectories weigh more), or token."""

Same = str | Sequence[str] | None
"""A column, or several, in which responses must agree to be compared."""

Scope = Literal["group", "batch"]
"""Values that are compared: those of the prompt's group, or of the whole batch."""


def choice(name: str, value: object, options: object) -> None:
    """Raise if a value is not one of a `Literal`'s options, with a suggestion."""
    known = get_args(options)
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not one of {known}.{did_you_mean(str(value), map(str, known))}")


def needs_length(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the column that counting tokens needs."""
    return ("length",) if options["over"] == "tokens" else ()


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
            names = (same,) if isinstance(same, str) else tuple(same or ())
            if "turn" in names:
                raise ConfigError(f"{needed_by}: same={same!r} compares responses; use over='responses' with it")
            self.values = batch.trajectories.first(credit_R)
            within = [batch.groups.ids] if scope == "group" else []
            labels = [_label_of_trajectories(batch, name, needed_by=needed_by) for name in names]
            self.partition = (
                Labels.of(*within, *labels) if labels else batch.groups if within else Labels.single(len(self.values))
            )
            varies = np.flatnonzero(credit_R != self.broadcast(self.values))
            if len(varies):
                raise BatchError(
                    f"{needed_by} counts one value per trajectory, but the credit varies within it "
                    f"({batch.place(int(varies[0]))}); use outcome_return() before it, or over='responses'"
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


def _label_of_trajectories(batch: Batch, name: str, *, needed_by: str) -> np.ndarray:
    """Return a column that is the same on all turns of a trajectory, one label per trajectory."""
    label_R = batch.column(name, needed_by=needed_by)
    label_N = batch.trajectories.first(label_R)
    varies = np.flatnonzero(label_R != batch.trajectories.broadcast(label_N))
    if len(varies):
        raise BatchError(
            f"{needed_by} compares whole trajectories with the same {name}, but {name} varies within one "
            f"({batch.place(int(varies[0]))}); make each {name} a trajectory, or use over='responses'"
        )
    return label_N


def alike(batch: Batch, *, same: Same = None, scope: Scope = "group", needed_by: str) -> Partition:
    """Partition responses into those of a group, or of the batch, that agree in some columns."""
    names = (same,) if isinstance(same, str) else tuple(same or ())
    if scope == "group" and not names:
        return batch.group_responses
    columns = [batch.column(name, needed_by=needed_by) for name in names]
    within = [batch.group_responses.ids] if scope == "group" else []
    return Labels.of(*within, *columns) if within or columns else Labels.single(batch.num_responses)
