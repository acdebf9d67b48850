"""Classify the outcome of each trajectory of a step."""

import numpy as np
import pyarrow as pa

from turnwise.train.recorded import Step

OUTCOMES = ("won", "lost", "out of turns", "context full", "failed")
"""Outcomes of a trajectory, best first; the page colours them in this order."""


def outcomes(step: Step) -> np.ndarray:
    """Return the outcome of each trajectory: `[trajectories]` int, an index into `OUTCOMES`."""
    first = np.concatenate([[0], np.cumsum(step.trajectories.lengths)[:-1]])
    ended = step.table["ended"].to_numpy()[first]
    success = step.trajectories.first(step.values("success")) > 0
    return np.select([ended == "failed", success, ended == "truncated", ended == "context"], [4, 0, 2, 3], default=1)


def index_columns(step: Step) -> dict[str, pa.Array]:
    """Build the table of trajectories: position, outcome, and numbers to filter by, one row each."""
    parts = step.trajectories
    first = pa.array(np.concatenate([[0], np.cumsum(parts.lengths)[:-1]]))
    played = step.values("turn").copy()
    played[step.table["response_ids"].combine_chunks().value_lengths().to_numpy() == 0] = -1  # failed before it began
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
