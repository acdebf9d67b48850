"""The one primitive under most published baselines: which values are compared with each other, and what counts as one value."""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from turnwise.batch import Batch
from turnwise.errors import BatchError, ConfigError, did_you_mean
from turnwise.segments import Labels, Partition

Over = Literal["trajectories", "responses"]
"""What a statistic counts: one value a trajectory, or one a response (then long trajectories weigh more)."""


def choice(name: str, value: object, options: object) -> None:
    """Reject a value that is none of a `Literal`'s options, with a suggestion."""
    known = get_args(options)
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not one of {known}.{did_you_mean(str(value), map(str, known))}")


class Members:
    """Values to compare: the credit, counted once a trajectory or once a response, in groups.

    Args:
        credit_R: `[responses]` the credit so far.
        batch: Its batch.
        over: What counts as one value. With "trajectories" the credit must be the same for all responses of a trajectory.
        same: Compare only responses of a group that agree in this column ("state_key", "turn", "role", ...).

    Attributes:
        values: `[members]` the values.
        partition: Which members are compared.
    """

    def __init__(
        self, credit_R: Float[np.ndarray, " R"], batch: Batch, *, over: Over, same: str | None, needed_by: str
    ):
        choice("over", over, Over)
        self._batch, self._over = batch, over
        self.partition: Partition
        if over == "trajectories":
            if same is not None:
                raise ConfigError(f"{needed_by}: same={same!r} compares responses; use over='responses' with it")
            self.values = batch.trajectories.first(credit_R)
            self.partition = batch.groups
            varies = np.flatnonzero(credit_R != self.broadcast(self.values))
            if len(varies):
                raise BatchError(f"{needed_by} counts one value a trajectory, but the credit varies within it "
                                 f"({batch.place(int(varies[0]))}); use outcome_return() before it, or over='responses'")  # fmt: skip
        else:
            self.values = credit_R
            group_R = batch.group_responses
            self.partition = (
                group_R if same is None else Labels.of(group_R.ids, batch.column(same, needed_by=needed_by))
            )

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Carry one value a member to the responses."""
        return self._batch.trajectories.broadcast(values) if self._over == "trajectories" else values
