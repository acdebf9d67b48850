"""Keep the responses of a fidelity analysis with their true advantages and every credit, for the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.base.checksums import check_table
from turnwise.base.errors import DamagedError
from turnwise.base.shapes import Float
from turnwise.rollout.record import write_table
from turnwise.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from turnwise.lab.diagnostics.values import Truth

NAME = "fidelity-responses.parquet"
"""Name of the file, in the folder of analyses of a run."""
CREDIT = "as:"
"""Prefix of the columns of methods."""


def responses_table(
    trajectories: Sequence[Trajectory], credit: Mapping[str, Float[np.ndarray, " R"]], truth: "Truth", step: int
) -> pa.Table:
    """Build a table with one row per response: its text, A* with its standard error, and each method's advantage.

    Args:
        trajectories: The trajectories, in the order of their responses.
        credit: `[responses]` advantages by method.
        truth: True advantages; null where unknown.
        step: Step of the policy.
    """
    turns = [(one, number, turn) for one in trajectories for number, turn in enumerate(one.turns)]
    places = {id(one): number for number, one in enumerate(trajectories)}
    numbers = {
        "true": truth.advantage_R,
        "error": np.sqrt(truth.variance_R),
        **{f"{CREDIT}{name}": advantage_R for name, advantage_R in credit.items()},
    }
    return pa.table(
        {
            "group": pa.array([one.group for one, _, _ in turns], pa.int32()),
            "trajectory": pa.array([places[id(one)] for one, _, _ in turns], pa.int32()),
            "turn": pa.array([number for _, number, _ in turns], pa.int32()),
            "task": [one.task for one, _, _ in turns],
            "reward": pa.array([one.reward for one, _, _ in turns], pa.float32()),
            "observation": [turn.observation for _, _, turn in turns],
            "response": [turn.response for _, _, turn in turns],
            **{name: pa.array(values.astype(np.float32), from_pandas=True) for name, values in numbers.items()},
        }
    ).replace_schema_metadata({"step": str(step)})


def equal_columns(table: pa.Table) -> list[list[str]]:
    """List the methods of such a table; those that gave every response the same credit are one entry."""
    by_credit: dict[bytes, list[str]] = {}
    for name in (name for name in table.column_names if name.startswith(CREDIT)):
        credit = table[name].to_numpy().round(6).tobytes()
        by_credit.setdefault(credit, []).append(name.removeprefix(CREDIT))
    return list(by_credit.values())


def fidelities(table: pa.Table) -> dict[str, float]:
    """Compute the fidelity of each method of such a table: the cosine with the true advantages, without their noise."""
    true_R, error_R = (table[name].to_numpy().astype(np.float64) for name in ("true", "error"))
    known_R = np.isfinite(true_R) & np.isfinite(error_R)
    square = float((true_R[known_R] ** 2 - error_R[known_R] ** 2).sum())
    result = {}
    for name in (name for name in table.column_names if name.startswith(CREDIT)):
        credit_R = table[name].to_numpy().astype(np.float64)[known_R]
        size = np.sqrt((credit_R**2).sum() * max(square, 0.0))
        result[name.removeprefix(CREDIT)] = float((credit_R * true_R[known_R]).sum() / size) if size > 0 else 0.0
    return result


def write_responses(folder: Path, table: pa.Table) -> None:
    """Write the table to a folder of analyses, replacing an older one."""
    write_table(folder / NAME, table)


def read_responses(path: Path) -> tuple[pa.Table, int, list[str]]:
    """Read such a table; return it with the step and the methods.

    Raises:
        DamagedError: The file is damaged, or another one.
    """
    try:
        check_table(data := path.read_bytes(), str(path))
        table = pq.read_table(pa.BufferReader(data))
        step = int((table.schema.metadata or {})[b"step"])
        table.select(["group", "trajectory", "turn", "task", "reward", "observation", "response", "true", "error"])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedError(f"cannot read {path} ({error}); run `turnwise analyse fidelity` again") from error
    return table, step, [name.removeprefix(CREDIT) for name in table.column_names if name.startswith(CREDIT)]
