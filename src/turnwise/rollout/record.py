"""Save and load rollouts: trajectories as Parquet files, one row per response."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.base.checksums import RUN_KEY, TABLE_KEY, check_table, refuse_other_run, run_of, seal_table
from turnwise.base.errors import DamagedError, DataError
from turnwise.base.files import replacing
from turnwise.environments.plain import sound_text
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.rollout.tree_rows import BEGUN_SCHEMA, PREFIX, TREE_SCHEMA, are_trees, pack_rows, unpack_rows

FORMAT = 1
"""Version of run folders and their files; increased when an older turnwise would misread them."""
FORMAT_OF_TREES = 2
"""Version of rollout files in which trajectories share turns."""
FORMAT_WITHOUT_IDS = 3
"""Version of rollout files with turns without prompt tokens: imported ones, and rests of split responses."""
FORMAT_OF_FORKED_RESPONSES = 4
"""Version of rollout files in which trajectories share the first tokens of a response."""
FORMAT_WITH_REQUESTS = 5
"""Version of rollout files with the requests of agents."""
FORMAT_WITH_MEASURES_OF_PATHS = 6
"""Version of rollout files with measures that differ between the trajectories that share a response."""
NEWEST = FORMAT_WITH_MEASURES_OF_PATHS
NAME_KEY = b"turnwise_file"
"""Key in a file's metadata: the name under which it was written."""
MEND = "restore it from a copy, or delete it"
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
        "version": pa.int32(),
        "actor": pa.string(),
        "end_key": pa.string(),
        "request": pa.string(),
    },
    metadata={"turnwise_format": str(FORMAT)},
)
"""Columns of a rollout file, one row per response; credit columns follow."""
ADDED = ("version", "actor", "end_key", "request")
"""Columns that files of earlier versions lack; their turns get the field's default."""


def rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return one record per response, in the order of the trajectories; a trajectory without turns has one record."""
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
            "info": as_json(trajectory.info) if turn_index + 1 >= len(trajectory.turns) else None,
            "fresh": turn.fresh or not turn_index,
            **_tokens(turn, known=bool(turn.prompt_ids or turn.response_ids) or not trajectory.turns),
            "behavior_entropies": turn.behavior_entropies,
            "version": turn.version,
            "actor": turn.extras.get("actor", ""),
            "end_key": _end_key(trajectory),
            "request": json.dumps(turn.extras["request"]) if "request" in turn.extras else None,
        }
        for index, trajectory in enumerate(trajectories)
        for turn_index, turn in enumerate(trajectory.turns or [Turn("", None, [], [], [], "", False)])
    ]


def _end_key(trajectory: Trajectory) -> str | None:
    return None if trajectory.last_key is None else sound_text(str(trajectory.last_key))


def _tokens(turn: Turn, *, known: bool) -> dict[str, Any]:
    """Return the tokens of a turn, null if unknown; empty for a trajectory without turns."""
    names = ("prompt_ids", "response_ids", "behavior_logprobs")
    return {name: getattr(turn, name) if known else None for name in names}


def as_json(info: Mapping[str, Any]) -> str:
    """Return any `info` as JSON; what JSON does not allow becomes text."""
    try:
        return json.dumps(info, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that JSON does not allow, or a value that contains itself
        return json.dumps({str(name): _plain(value) for name, value in info.items()})


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=str))
    except (TypeError, ValueError, RecursionError):
        return str(value)


def write_rollouts(
    path: Path, trajectories: Sequence[Trajectory], credit: Mapping[str, Sequence[float | None]]
) -> None:
    """Save the rollouts of one step, one Parquet row per response; a response that trajectories share is one row.

    Args:
        path: File to write, atomically.
        trajectories: All trajectories of the step, failed ones included.
        credit: Additional columns (entropy, coefficient, base advantage, advantage), one value or None per response of
            each trajectory. A shared response gets the mean over its trajectories; measures that differ stay apart.
    """
    records, schema = rows(trajectories), SCHEMA
    if are_trees(trajectories):
        records, credit = pack_rows(trajectories, records, credit)
        begun = any(record.get("begun") for record in records)
        names, written = (BEGUN_SCHEMA, FORMAT_OF_FORKED_RESPONSES) if begun else ((), FORMAT_OF_TREES)
        schema = pa.schema([*SCHEMA, *TREE_SCHEMA, *names], metadata={"turnwise_format": str(written)})
    if any(not turn.prompt_ids for trajectory in trajectories for turn in trajectory.turns):
        schema = schema.with_metadata({"turnwise_format": str(FORMAT_WITHOUT_IDS)})
    if any("request" in turn.extras for trajectory in trajectories for turn in trajectory.turns):
        schema = schema.with_metadata({"turnwise_format": str(FORMAT_WITH_REQUESTS)})
    table = pa.Table.from_pylist(records, schema=schema)
    for name, values in credit.items():
        of_paths = bool(values) and isinstance(values[0], list)
        table = table.append_column(name, pa.array(values, pa.list_(pa.float64()) if of_paths else pa.float64()))
        if of_paths:
            table = table.replace_schema_metadata({"turnwise_format": str(FORMAT_WITH_MEASURES_OF_PATHS)})
    write_table(path, table)


def write_table(path: Path, table: pa.Table, *, compression: str = "zstd", use_dictionary: bool = True) -> None:
    """Write a Parquet file atomically, with its name and checksum in its metadata; see `pyarrow` for the options."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {NAME_KEY: path.name.encode(), TABLE_KEY: b"0" * 8}
    if run := run_of(path.parent.parent):
        metadata[RUN_KEY.encode()] = run.encode()
    stream = pa.BufferOutputStream()
    metadata = {**(table.schema.metadata or {}), **metadata}
    how: Any = {"compression": compression, "use_dictionary": use_dictionary}
    pq.write_table(table.replace_schema_metadata(metadata), stream, **how)
    data = bytearray(stream.getvalue())
    seal_table(data)
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        error.filename = str(path)  # Arrow's errors have no file name
        raise


def check_format(path: Path, written: int) -> None:
    """Raise if a newer turnwise wrote a file in a format that this one does not know.

    Raises:
        DataError: The format is above `NEWEST`.
    """
    if written > NEWEST:
        raise DataError(
            f"{path} was written by a newer turnwise, in format {written}, and this version knows formats up to "
            f"{NEWEST}; update turnwise"
        )


def read_table(
    path: Path, columns: Sequence[str], *, only: Sequence[str] | None = None, further: bool = False
) -> pa.Table:
    """Read a Parquet file that must have some columns. Shared turns become a row of each trajectory.

    Args:
        path: The file.
        columns: Columns that it must have.
        only: Read only those of these columns that exist; default: all columns.
        further: In addition to `only`, read every column outside `SCHEMA`: measures and credit.

    Raises:
        DamagedError: The file is damaged, or is a copy of another one.
        DataError: The file is missing, or was written by another version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        sealed = check_table(data, str(path))
        source = pa.BufferReader(data)
        schema = pq.read_schema(source)
        metadata = schema.metadata or {}
        if TABLE_KEY in metadata and not sealed:  # pyarrow keeps a second copy of the metadata
            raise DamagedError(f"{path} is damaged: its checksum cannot be found")
        if (name := metadata.get(NAME_KEY, b"").decode()) not in ("", path.name) and path.name.startswith("step-"):
            raise DamagedError(f"{path} is a copy of {name}, expected another step")
        if run := metadata.get(RUN_KEY.encode()):
            refuse_other_run(str(path), path.parent.parent, run.decode())
        check_format(path, int(metadata.get(b"turnwise_format", 1)))
        missing = [name for name in columns if name not in schema.names]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]!r}: another version of turnwise wrote it; read it with that version"
            )
        trees = "parent" in schema.names and (only is None or "trajectory" in only)
        if only is not None:
            beyond = [name for name in schema.names if further and name not in SCHEMA.names and name not in only]
            wanted = [*(name for name in only if name in schema.names), *beyond]
            for_trees = ("turn", *TREE_SCHEMA.names) if trees else ()
            only = list(dict.fromkeys((*wanted, *for_trees)))
        table = pq.read_table(source, columns=only)
        known = (*SCHEMA.names, *TREE_SCHEMA.names, *BEGUN_SCHEMA.names)
        return unpack_rows(table, [name for name in table.column_names if name not in known]) if trees else table
    except DamagedError as error:
        raise DamagedError(f"{error}; {MEND}") from None
    except DataError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedError(f"cannot read {path}: {' '.join(str(error).split())[:200]}; {MEND}") from None


def read_rollouts(path: Path) -> tuple[list[Trajectory], dict[str, np.ndarray]]:
    """Load rollouts that `write_rollouts` saved; state keys are loaded as text.

    Returns:
        The trajectories, including failed ones, and the additional columns, `[rows]` float64 with NaN for missing
        values. A trajectory has one row per turn; one without turns has one row.

    Raises:
        DataError: The file is missing, damaged, or was written by another version.
    """
    table = read_table(path, [name for name in SCHEMA.names if name not in ADDED])
    known = [name for name in SCHEMA.names if name in table.column_names]
    trees = [name for name in ("tree", PREFIX, *BEGUN_SCHEMA.names) if name in table.column_names]
    turns: dict[int, Turn] = {}  # by stored row: trajectories that share a turn get the same object
    of_turn = [field.name for field in dataclasses.fields(Turn) if field.name in known]
    trajectories: list[Trajectory] = []
    for place, row in enumerate(table.select([*known, *trees]).to_pylist()):
        if not row["turn"]:
            of_trajectory = ("group", "task", "success", "ended", "failure", *trees[:1])
            trajectories.append(Trajectory(**{name: row[name] for name in of_trajectory}))
        current, stored = trajectories[-1], row.get(PREFIX, place)
        current.last_key = row.get("end_key")
        if row["info"] is not None:
            current.info = json.loads(row["info"])
        if row["prompt_ids"] != [] or row["response_ids"]:  # otherwise the row stands for a trajectory without turns
            row |= {name: row[name] or [] for name in ("prompt_ids", "response_ids", "behavior_logprobs")}
            current.shared += stored in turns
            current.turns.append(turns.setdefault(stored, Turn(**{name: row[name] for name in of_turn})))
            if row.get("actor"):
                current.turns[-1].put(actor=row["actor"])
            if row.get("request"):
                current.turns[-1].put(request=json.loads(row["request"]))
            if row.get("begun"):
                current.turns[-1].put(begun=row["begun"], origin=turns.get(row["origin"]))
    further = [name for name in table.column_names if name not in (*SCHEMA.names, *trees)]
    return trajectories, {name: table[name].to_numpy().astype(np.float64) for name in further}
