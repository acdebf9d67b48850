"""A step's rollouts as they were recorded, in arrays: what is needed to look at them, and to assign their credit again."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from turnwise.batch import Batch
from turnwise.config import Config
from turnwise.rollout.record import read_table
from turnwise.segments import Segments
from turnwise.train.columns import SCORED

READ = (
    "group", "trajectory", "turn", "task", "observation", "response", "reward", "valid", "truncated", "state_key", "success",
    "ended", "failure", "info", "response_ids", "behavior_logprobs",
)  # fmt: skip
"""Columns that every rollout file has, that are read here."""
CREDIT = (*SCORED, "alpha", "advantage")
"""Columns that it may have, if the step learned something."""
TOKEN_ENTROPY = "behavior_entropies"
"""List column with the entropies of the tokens, where the run kept them."""


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
    table = read_table(path, READ, only=(*READ, *CREDIT, TOKEN_ENTROPY))
    return Step(step_number(path), table, Segments.from_sorted_ids(table["trajectory"].to_numpy()))


def step_number(path: Path) -> int:
    """The step in the name of a rollout file, such as step-000012.parquet."""
    return int(path.stem.split("-")[1])


def recorded_batch(step: Step, config: Config) -> Batch:
    """The batch of the responses that a step learned from, as far as its record tells."""
    kept = step.learned_R
    table = step.table.filter(pa.array(kept))
    trajectories = Segments.from_sorted_ids(table["trajectory"].to_numpy())
    tokens = Segments.from_lengths(table["response_ids"].combine_chunks().value_lengths().to_numpy())
    columns = {
        "penalty": penalties(step, config)[kept],
        "state_key": table["state_key"].to_pylist(),
        "state_text": table["observation"].to_pylist(),
        "task": table["task"].to_pylist(),
        "truncated": step.values("truncated")[kept],
        "success": step.values("success")[kept],
        "finished": (table["ended"].to_numpy() == "terminated").astype(np.float64),
        **{name: step.values(name)[kept] for name in SCORED if name in table.column_names},
    }
    groups = Segments.from_sorted_ids(trajectories.first(table["group"].to_numpy()))
    return Batch(groups, trajectories, step.values("reward")[kept], columns, tokens)


def penalties(step: Step, config: Config) -> np.ndarray:
    """`[rows]` what was added to the advantage for an invalid response, 0 or below."""
    return np.where(step.values("valid") > 0, 0.0, -config.environment.invalid_penalty)
