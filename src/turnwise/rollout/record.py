"""What a rollout leaves behind: trajectories of turns, and their place on disk."""

import dataclasses
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.environments.base import sound_text
from turnwise.errors import DataError

FORMAT = 1
"""Of run folders and of the files in them; raised when an older turnwise would read them wrongly."""
SCHEMA = pa.schema(
    {
        "group": pa.int32(),
        "trajectory": pa.int32(),
        "turn": pa.int32(),
        "task": pa.string(),
        "observation": pa.string(),
        "response": pa.string(),
        "reward": pa.float64(),
        "valid": pa.bool_(),
        "truncated": pa.bool_(),
        "state_key": pa.string(),
        "success": pa.bool_(),
        "ended": pa.string(),
        "failure": pa.string(),
        "info": pa.string(),
        "fresh": pa.bool_(),
        "prompt_ids": pa.list_(pa.int32()),
        "response_ids": pa.list_(pa.int32()),
        "behavior_logprobs": pa.list_(pa.float32()),
        "behavior_entropies": pa.list_(pa.float32()),
    },
    metadata={"turnwise_format": str(FORMAT)},
)
"""Columns of a rollout file, one row a response; credit columns follow."""


@dataclasses.dataclass(slots=True)
class Turn:
    """One response, what the policy had read before it, and what the world answered.

    Attributes:
        observation: Text that the policy read last.
        state_key: Names the state in which the response was given.
        prompt_ids: Tokens that this turn added to the conversation before the response; all that it read, if `fresh`.
        response_ids: Generated tokens.
        behavior_logprobs: Their log-probabilities when sampled (nats).
        response: The response as text.
        truncated: The response hit the length limit.
        reward: What the world paid.
        valid: Whether the world understood the response.
        behavior_entropies: Entropies of the tokens' distributions when sampled (nats), if the engine measured them.
        fresh: The prompt does not continue the turn before; that of a first turn never does.
    """

    observation: str
    state_key: Hashable
    prompt_ids: list[int]
    response_ids: list[int]
    behavior_logprobs: list[float]
    response: str
    truncated: bool
    reward: float = 0.0
    valid: bool = True
    fresh: bool = False
    behavior_entropies: list[float] | None = None


@dataclasses.dataclass(slots=True)
class Trajectory:
    """One episode.

    Attributes:
        group: Index of the task among those collected together.
        task: Name of the task.
        turns: Its responses in order.
        success: Whether the world declared success.
        ended: "terminated", "truncated" (by the world), "context" (the conversation got too long), or "failed".
        failure: Cause, for "failed": such a trajectory is recorded and counted, and never trained on.
        info: What the world said at the end.
    """

    group: int
    task: str
    turns: list[Turn] = dataclasses.field(default_factory=list)
    success: bool = False
    ended: str = ""
    failure: str | None = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether credit may be assigned to it."""
        return self.failure is None and bool(self.turns)

    @property
    def reward(self) -> float:
        """Total reward."""
        return sum(turn.reward for turn in self.turns)


def rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """One record a response, in the order of the trajectories; a failed trajectory without turns leaves one record too."""
    return [
        {
            "group": trajectory.group,
            "trajectory": index,
            "turn": turn_index,
            "task": sound_text(trajectory.task),
            "observation": sound_text(turn.observation),
            "response": turn.response,
            "reward": turn.reward,
            "valid": turn.valid,
            "truncated": turn.truncated,
            "state_key": sound_text(str(turn.state_key)),
            "success": trajectory.success,
            "ended": trajectory.ended,
            "failure": trajectory.failure and sound_text(trajectory.failure),
            "info": _as_json(trajectory.info) if turn_index + 1 >= len(trajectory.turns) else None,
            "fresh": turn.fresh or not turn_index,
            "prompt_ids": turn.prompt_ids,
            "response_ids": turn.response_ids,
            "behavior_logprobs": turn.behavior_logprobs,
            "behavior_entropies": turn.behavior_entropies,
        }
        for index, trajectory in enumerate(trajectories)
        for turn_index, turn in enumerate(trajectory.turns or [Turn("", None, [], [], [], "", False)])
    ]


def _as_json(info: Mapping[str, Any]) -> str:
    try:
        return json.dumps(info, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that JSON has not, or a value that holds itself
        return json.dumps({str(name): _plain(value) for name, value in info.items()})


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=str))
    except (TypeError, ValueError, RecursionError):
        return str(value)


def write_rollouts(
    path: Path, trajectories: Sequence[Trajectory], credit: Mapping[str, Sequence[float | None]]
) -> None:
    """Write one Parquet row a response.

    Args:
        path: File to write, atomically.
        trajectories: All of a step, failed ones included.
        credit: Further columns (entropy, coefficient, base advantage, advantage), one value a row, None where there is none.
    """
    table = pa.Table.from_pylist(rows(trajectories), schema=SCHEMA)
    for name, values in credit.items():
        table = table.append_column(name, pa.array(values, pa.float64()))
    write_table(path, table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # which Arrow's have not
        raise


def check_format(path: Path, written: int) -> None:
    """Refuse what a newer turnwise has written in a form that this one does not know.

    Raises:
        DataError: The format is above `FORMAT`.
    """
    if written > FORMAT:
        raise DataError(f"{path} was written by a newer turnwise, in format {written}, and this one knows formats up to {FORMAT}; "
                        "pip install --upgrade turnwise")  # fmt: skip


def read_table(path: Path, columns: Sequence[str], *, only: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file that must have these columns; of all its columns, or `only` of these, where they are there.

    Raises:
        DataError: It is missing, damaged, or was written by another version.
    """
    try:
        schema = pq.read_schema(path)
        check_format(path, int((schema.metadata or {}).get(b"turnwise_format", 1)))
        missing = [name for name in columns if name not in schema.names]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]!r}: another version of turnwise wrote it, which may read it"
            )
        return pq.read_table(path, columns=only and [name for name in only if name in schema.names])
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from None


def read_rollouts(path: Path) -> tuple[list[Trajectory], dict[str, np.ndarray]]:
    """Read back what `write_rollouts` wrote; state keys come back as text.

    Returns:
        The trajectories, failed ones included, and the further columns, `[rows]` float64 with NaN where there is no value. A trajectory
        has a row a turn; one without turns has one row.

    Raises:
        DataError: The file is missing, damaged, or was written by another version.
    """
    table = read_table(path, SCHEMA.names)
    of_turn = [field.name for field in dataclasses.fields(Turn) if field.name in SCHEMA.names]
    trajectories: list[Trajectory] = []
    for row in table.select(SCHEMA.names).to_pylist():
        if not row["turn"]:
            told = ("group", "task", "success", "ended", "failure")
            trajectories.append(Trajectory(**{name: row[name] for name in told}))
        if row["info"] is not None:
            trajectories[-1].info = json.loads(row["info"])
        if row["prompt_ids"]:  # else the row stands for a trajectory without turns
            trajectories[-1].turns.append(Turn(**{name: row[name] for name in of_turn}))
    further = [name for name in table.column_names if name not in SCHEMA.names]
    return trajectories, {name: table[name].to_numpy().astype(np.float64) for name in further}
