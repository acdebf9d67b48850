"""Read and write how the episodes of an evaluation ended, one row per episode."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from turnwise.rollout.record import read_table, write_table
from turnwise.rollout.trajectory import Trajectory

SCHEMA = pa.schema(
    {
        "task": pa.string(),
        "seed": pa.int64(),
        "task_type": pa.string(),
        "success": pa.bool_(),
        "reward": pa.float64(),
        "score": pa.float64(),
        "turns": pa.int32(),
        "invalid": pa.int32(),
        "ended": pa.string(),
        "failure": pa.string(),
    }
)
"""Columns. `seed` is the sampling seed, `success` is missing if the episode failed, `invalid` counts responses."""

Episode = tuple[str, int, int]
"""Task, sampling seed, and number of earlier episodes of the task with this seed."""


def write_outcomes(path: Path, trajectories: Sequence[Trajectory], *, seed: int = 0) -> None:
    """Write one Parquet row per episode, in the order of the panel."""
    records = [
        {
            "task": trajectory.task,
            "seed": seed,
            "task_type": str(trajectory.info["task_type"]) if "task_type" in trajectory.info else None,
            "success": trajectory.success if trajectory.usable else None,
            "reward": trajectory.reward,
            "score": float(trajectory.info["score"]) if "score" in trajectory.info else None,
            "turns": len(trajectory.turns),
            "invalid": sum(not turn.valid for turn in trajectory.turns),
            "ended": trajectory.ended,
            "failure": trajectory.failure,
        }
        for trajectory in trajectories
    ]
    write_table(path, pa.Table.from_pylist(records, schema=SCHEMA))


def read_outcomes(path: Path) -> list[dict[str, Any]]:
    """Load the outcomes of an evaluation, one dict per episode.

    Raises:
        DataError: The file is missing, damaged, or was written by another version.
    """
    return read_table(path, SCHEMA.names).to_pylist()


def by_episode(rows: Sequence[Mapping[str, Any]]) -> dict[Episode, Mapping[str, Any]]:
    """Index rows with `task`, `seed` and `success` by episode, without failed episodes."""
    seen: Counter[tuple[str, int]] = Counter()
    result = {}
    for row in rows:
        place = row["task"], row["seed"]
        if row["success"] is not None:
            result[(*place, seen[place])] = row
        seen[place] += 1
    return result
