"""Save and load the rows of a store: JSON Lines with a checksum per row, to locate damage."""

import dataclasses
import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.base.checksums import RUN_KEY, check_manifest, refuse_other_run, sealed, unsealed
from turnwise.base.errors import ConfigError, DamagedError, DataError
from turnwise.base.files import write_text
from turnwise.environments.base import shown
from turnwise.rollout.record import as_json
from turnwise.rollout.trajectory import Extras, Trajectory, Turn

FILE = "store.jsonl"
"""File of a checkpoint with the store's rows, the first line its header."""
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Row:
    """A stored, immutable trajectory."""

    task: int  # number of the task among those of training
    step: int  # training step that played it; 0 or less for a row of an earlier run, whose last step is 0
    trajectory: Trajectory  # the trajectory; its turns say which weights sampled them (`version`)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Row":
        return self


def make_row(task: int, step: int, trajectory: Trajectory) -> Row:
    """Make a row of plain data, equal before and after saving.

    Raises:
        ConfigError: A state key is of a type that cannot be saved.
    """
    return from_record(json.loads(json.dumps(to_record(Row(task, step, trajectory)))))


def write_store(path: Path, rows: Sequence[Row], **of: str | int) -> None:
    """Save the rows of a store; the header names run and step."""
    header = {"format": FORMAT, "rows": len(rows), **of}
    records = [header, *({"row": number, **to_record(row)} for number, row in enumerate(rows, 1))]
    write_text(path, "".join(json.dumps(sealed(record)) + "\n" for record in records))


def read_store(path: Path) -> list[Row]:
    """Load the rows of a store.

    Raises:
        DamagedError: The file or a row differs from what was written, with the row's number; or it is the store of
            another run or step than its checkpoint.
        DataError: A newer turnwise wrote it.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        row = error.object[: error.start].count(b"\n")
        raise DamagedError(f"{path}, row {row}, is damaged: it is not text") from None
    header = _checked(lines[0], f"{path}, header,")
    if header["format"] > FORMAT:
        raise DataError(f"{path} was written by a newer turnwise; update turnwise")
    refuse_other_run(str(path), path.parent.parent.parent, header.get(RUN_KEY))
    step = f"step-{header['step']:06d}" if "step" in header else path.parent.name
    if path.parent.name.startswith("step-") and path.parent.name != step:
        raise DamagedError(f"{path} is a copy of the store of {step}, expected another step")
    rows = []
    for number, line in enumerate(lines[1:], 1):
        record = _checked(line, f"{path}, row {number},")
        if record["row"] != number:
            raise DamagedError(f"{path}, row {number}, is row {record['row']}: rows are missing or in another order")
        rows.append(from_record(record))
    if len(rows) != header["rows"]:
        raise DamagedError(f"{path}, row {len(rows) + 1}, is missing: expected {header['rows']} rows")
    check_manifest(path.parent, only=[FILE])
    return rows


def _checked(line: str, where: str) -> dict[str, Any]:
    try:
        return unsealed(json.loads(line), where, required=True)
    except (ValueError, AttributeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{where} is damaged: not valid JSON") from None


def to_record(row: Row) -> dict[str, Any]:
    """Return a row as plain data."""
    trajectory = row.trajectory
    turns = []
    for turn in trajectory.turns:
        fields = {field.name: getattr(turn, field.name) for field in dataclasses.fields(Turn)}
        # without hidden states, which belong to the weights that sampled; a fork inside a response owns all its tokens
        extras = {name: each for name, each in turn.extras.items() if name not in ("state", "origin", "begun")}
        turns.append(fields | {"extras": extras, "state_key": _key_record(turn.state_key)})
    version = min((turn.version for turn in trajectory.turns), default=0)
    of_trajectory = {name: getattr(trajectory, name) for name in _OF_TRAJECTORY}
    of_trajectory["info"] = json.loads(as_json(trajectory.info))
    of_trajectory["last_key"] = _key_record(trajectory.last_key)
    return {"task_number": row.task, "step": row.step, "version": version, **of_trajectory, "turns": turns}


def from_record(record: dict[str, Any]) -> Row:
    """Return the row of plain data."""
    turns = []
    for turn in record["turns"]:
        fields = {name: each for name, each in turn.items() if name not in (*_FORMER, "extras")}
        former = {_FORMER[name]: each for name, each in turn.items() if each and name in _FORMER}
        extras = Extras(former | turn.get("extras", {}))
        turns.append(Turn(**fields | {"extras": extras, "state_key": _key(turn["state_key"])}))
    trajectory = Trajectory(0, turns=turns, **{name: record[name] for name in _OF_TRAJECTORY})
    trajectory.last_key = _key(record.get("last_key"))  # stores of earlier versions have none
    return Row(record["task_number"], record["step"], trajectory)


_FORMER = {"actor": "actor", "behavior_spreads": "spreads", "learned": "learned", "origin": "origin", "begun": "begun"}
"""Extras of turns that stores of earlier versions have as fields."""
_OF_TRAJECTORY = ("task", "success", "ended", "info", "last_observation")


def _key_record(key: Hashable) -> Any:
    """Return a state key as JSON; a tuple is a list there, which no other key is."""
    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(key, tuple):
        return [_key_record(part) for part in key]
    if key is None or isinstance(key, (str, int, float)):
        return key
    raise ConfigError(
        f"a store cannot keep the state key {shown(key)} ({type(key).__name__}); use text, numbers, or tuples of them "
        "in the environment, or remove [store]"
    )


def _key(record: Any) -> Hashable:
    return tuple(map(_key, record)) if isinstance(record, list) else record
