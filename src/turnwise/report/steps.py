"""A step's rollouts as arrays, and what each trajectory comes to."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.errors import DataError
from turnwise.segments import Segments
from turnwise.train.columns import SCORED

READ = (
    "group", "trajectory", "turn", "task", "observation", "response", "reward", "valid", "truncated", "state_key", "success",
    "ended", "failure", "info", "response_ids", "behavior_logprobs",
)  # fmt: skip
"""Columns that every rollout file has, of which the page shows something."""
CREDIT = (*SCORED, "alpha", "advantage")
"""Columns that it may have, if the step learned something."""
TOKEN_ENTROPY = "behavior_entropies"
"""List column with the entropies of the tokens, where the run kept them."""
OUTCOMES = ("won", "lost", "out of turns", "context full", "failed")
"""How a trajectory ends, best first; the page colours them in this order."""


@dataclasses.dataclass(frozen=True)
class Step:
    """The rollouts of a step, a row a response.

    Attributes:
        number: Which step.
        table: What was recorded, without prompts.
        trajectories: Segments of rows, one a trajectory.
    """

    number: int
    table: pa.Table
    trajectories: Segments

    def values(self, name: str) -> np.ndarray:
        """A numeric column as float64, nan where there is none."""
        if name not in self.table.column_names:
            return np.full(self.table.num_rows, np.nan)
        return self.table[name].cast(pa.float64()).to_numpy()

    @property
    def learned_R(self) -> np.ndarray:
        """`[rows]` bool: responses that the step learned from."""
        return ~np.isnan(self.values("advantage"))

    @property
    def has_token_entropies(self) -> bool:
        """Whether the run's engine measured the entropies of the tokens; one that does not leaves the column empty."""
        return TOKEN_ENTROPY in self.table.column_names and self.table[TOKEN_ENTROPY].null_count < self.table.num_rows


def read_step(path: Path) -> Step:
    """Read a rollout file.

    Raises:
        DataError: It cannot be read, or lacks a column.
    """
    try:
        known = set(pq.read_schema(path).names)
        missing = [name for name in READ if name not in known]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}; it was written by another version of turnwise")
        table = pq.read_table(path, columns=[name for name in (*READ, *CREDIT, TOKEN_ENTROPY) if name in known])
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from None
    return Step(step_number(path), table, Segments.from_sorted_ids(table["trajectory"].to_numpy()))


def step_number(path: Path) -> int:
    """The step in the name of a rollout file, such as step-000012.parquet."""
    return int(path.stem.split("-")[1])


def outcomes(step: Step) -> np.ndarray:
    """`[trajectories]` int: how each ended, as a place in `OUTCOMES`."""
    first = np.concatenate([[0], np.cumsum(step.trajectories.lengths)[:-1]])
    ended = step.table["ended"].to_numpy()[first]
    success = step.trajectories.first(step.values("success")) > 0
    return np.select([ended == "failed", success, ended == "truncated", ended == "context"], [4, 0, 2, 3], default=1)


def index_columns(step: Step) -> dict[str, pa.Array]:
    """One value a trajectory: where it is, how it ended, and what to find it by."""
    parts = step.trajectories
    first = pa.array(np.concatenate([[0], np.cumsum(parts.lengths)[:-1]]))
    played = step.values("turn").copy()
    played[step.table["response_ids"].combine_chunks().value_lengths().to_numpy() == 0] = -1  # lost before it began
    numbers = {
        "step": np.full(len(parts), step.number),
        "group": parts.first(step.values("group")),
        "trajectory": parts.first(step.values("trajectory")),
        "outcome": outcomes(step),
        "turns": parts.max(played) + 1,
        "invalid": parts.sum(1.0 - step.values("valid")) * (parts.max(played) >= 0),
    }
    values = {
        "reward": parts.sum(step.values("reward")),
        "entropy": parts.mean(step.values("entropy")),
        "alpha": parts.max(step.values("alpha")),
        "advantage": parts.mean(np.abs(step.values("advantage"))),
    }
    return {
        **{name: pa.array(column.astype(np.int32)) for name, column in numbers.items()},
        "task": step.table["task"].take(first).combine_chunks(),
        "failure": step.table["failure"].take(first).combine_chunks(),
        **{name: pa.array(column.astype(np.float32), from_pandas=True) for name, column in values.items()},
    }
