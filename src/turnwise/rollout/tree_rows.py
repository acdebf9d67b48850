"""Store a shared turn once, as a row of the first trajectory, and load it as a turn of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from turnwise.rollout.trajectory import Trajectory, Turn

TREE_SCHEMA = pa.schema({"tree": pa.int32(), "parent": pa.int32(), "shared": pa.int32()})
"""Additional columns of a file with trees: tree of the trajectory within its group, earlier trajectory of the file that
begins with the same turns, and number of these turns. A trajectory has rows for its other turns. If it has no other
turn, it has one row with `turn` below `shared`."""
BEGUN_SCHEMA = pa.schema({"begun": pa.int32(), "origin": pa.int32()})
"""Additional columns of a file with forks inside responses: number of the response's first tokens that an earlier one
shares, and the earlier one's row."""
PREFIX = "prefix"
"""Column of a loaded file with trees: number of the stored row, equal where trajectories share a turn."""
OF_TRAJECTORY = ("group", "trajectory", "task", "success", "ended", "failure", "tree", "end_key")
"""Columns with one value per trajectory, which a shared row has from each of its trajectories."""


def are_trees(trajectories: Sequence[Trajectory]) -> bool:
    """Return whether any trajectory names its tree or shares a turn with another one."""
    turns = [id(turn) for trajectory in trajectories for turn in trajectory.turns]
    return len(set(turns)) < len(turns) or any(trajectory.tree is not None for trajectory in trajectories)


def pack_rows(
    trajectories: Sequence[Trajectory],
    records: Sequence[dict[str, Any]],
    credit: Mapping[str, Sequence[float | None]],
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """Keep one row per turn that trajectories share.

    Args:
        trajectories: Trajectories.
        records: One per response, in the order of the trajectories; a trajectory without turns has one.
        credit: Columns of measures and credit, with one value or None per record.

    Returns:
        The kept records with the columns of `TREE_SCHEMA` and `BEGUN_SCHEMA`, and the columns. A shared row has the
        mean of its trajectories' values; the rows of a measure that differs between them have a list of these values.
    """
    stored: dict[int, tuple[int, int]] = {}  # turn -> row, trajectory
    kept: list[dict[str, Any]] = []
    where: list[int] = []  # row of each record
    for number, trajectory in enumerate(trajectories):
        shared = sum(id(turn) in stored for turn in trajectory.turns)
        parent = stored[id(trajectory.turns[shared - 1])][1] if shared else None
        of_tree = {"tree": -1 - number if trajectory.tree is None else trajectory.tree, "parent": parent}
        of_tree["shared"] = shared
        for turn in trajectory.turns or [Turn("", None, [], [], [], "", False)]:
            if id(turn) not in stored or not trajectory.turns:
                origin, _ = stored.get(id(turn.origin), (None, None))
                kept.append(records[len(where)] | of_tree | {"begun": turn.begun, "origin": origin})
                stored.setdefault(id(turn), (len(kept) - 1, number))
            where.append(stored[id(turn)][0] if trajectory.turns else len(kept) - 1)
        if shared and shared == len(trajectory.turns):
            nothing = {"turn": 0, "reward": 0.0, "prompt_ids": [], "response_ids": [], "behavior_logprobs": []}
            kept.append(records[len(where) - 1] | of_tree | nothing)
    columns: dict[str, list[Any]] = {}
    for name, values in credit.items():
        of_paths: list[list[float | None]] = [[] for _ in kept]
        for row, value in zip(where, values, strict=True):
            of_paths[row].append(value)
        is_credit = name in ("base", "alpha", "advantage") or name.startswith("trace.")
        differs = not is_credit and any(len({*each} - {None}) > 1 for each in of_paths)
        columns[name] = of_paths if differs else _means(values, where, len(kept))
    return kept, columns


def _means(values: Sequence[float | None], where: Sequence[int], num_rows: int) -> list[float | None]:
    given = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    known, row = ~np.isnan(given), np.array(where)
    count = np.bincount(row[known], minlength=num_rows)
    total = np.bincount(row[known], given[known], minlength=num_rows)
    return [float(total[at] / count[at]) if count[at] else None for at in range(num_rows)]


def unpack_rows(table: pa.Table, credit: Sequence[str]) -> pa.Table:
    """Repeat shared rows in every trajectory that begins with them; adds the column `prefix`.

    Args:
        table: Rows as stored.
        credit: Columns that only responses of trajectories with credit have. A trajectory without a value in its own
            rows gets none from shared rows.
    """
    number, turn, shared = (table[name].to_numpy() for name in ("trajectory", "turn", "shared"))
    parent = table["parent"].fill_null(-1).to_numpy()
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    paths: list[np.ndarray] = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(number)], strict=True):
        own = np.arange(start, stop)
        before = paths[parent[start]][: shared[start]] if shared[start] else own[:0]
        paths.append(np.concatenate([before, own[turn[own] >= shared[start]]]))
    rows = np.concatenate(paths)
    lengths = np.array([len(path) for path in paths])
    owner = np.repeat(starts, lengths)  # a row of the trajectory itself
    result = table.take(rows)
    for name in set(OF_TRAJECTORY) & set(table.column_names):
        result = _replaced(result, name, table[name].take(owner))
    for name in credit:
        if pa.types.is_list(table[name].type):  # the lists, one after another, have each row's paths in their order
            column = table[name].combine_chunks().flatten().take(np.argsort(np.argsort(rows, kind="stable")))
        else:
            without = table[name].take(owner).is_null()
            column = pc.call_function("if_else", [without, pa.scalar(None, table[name].type), result[name]])
        result = _replaced(result, name, column)
    if "info" in table.column_names:
        last = np.append(starts[1:], len(number)) - 1
        infos: list[str | None] = [None] * len(rows)
        ends = np.cumsum(lengths) - 1
        for end, info in zip(ends.tolist(), table["info"].take(last).to_pylist(), strict=True):
            infos[end] = info
        result = _replaced(result, "info", pa.array(infos, pa.string()))
    return result.drop_columns(["parent", "shared"]).append_column(PREFIX, pa.array(rows, pa.int32()))


def _replaced(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)
