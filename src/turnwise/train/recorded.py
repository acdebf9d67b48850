"""Load the recorded rollouts of a step as arrays, to inspect them or to reassign their credit."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.environments.settings import IMPORTED
from turnwise.measures import MEASURES, played
from turnwise.measures.plan import recorded_columns
from turnwise.measures.played import action_of, num_paths
from turnwise.measures.roles import roles, roles_of
from turnwise.measures.scored import entropy, rare_tokens
from turnwise.measures.shared_tokens import number_tokens, shared_tokens
from turnwise.rollout.record import SCHEMA, read_table
from turnwise.rollout.tree_rows import BEGUN_SCHEMA, PREFIX

READ = (
    "group",
    "trajectory",
    "turn",
    "task",
    "observation",
    "response",
    "reward",
    "valid",
    "truncated",
    "state_key",
    "success",
    "ended",
    "failure",
    "info",
    "response_ids",
    "behavior_logprobs",
)
"""Columns that every rollout file must have."""
SCORED = recorded_columns(MEASURES.values())
"""Columns of measures that a file has if its step learned something."""
KNOWN = frozenset({*played.provides, *shared_tokens.provides, *roles.provides, *SCORED, "turn", "length"})
"""Columns that a method can use on recorded rollouts."""
SCORED_LATER = frozenset({"length", "token_T", *recorded_columns((entropy, rare_tokens))})
"""Columns that a log has only after a model has read it."""
TOKEN_ENTROPY = "behavior_entropies"
"""List column with the token entropies, if the run recorded them."""


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """Hold the rollouts of a step, one row per response."""

    number: int  # number of the step
    table: pa.Table  # recorded columns, without prompts
    trajectories: Segments  # segments of rows, one per trajectory

    def values(self, name: str) -> np.ndarray:
        """Return a numeric column as float64, with nan for missing values."""
        if name not in self.table.column_names:
            return np.full(self.table.num_rows, np.nan)
        return self.table[name].cast(pa.float64()).to_numpy()

    @property
    def learned_R(self) -> np.ndarray:
        """`[rows]` bool, true for responses that the step learned from."""
        return ~np.isnan(self.values("advantage"))

    @property
    def num_tokens_R(self) -> np.ndarray:
        """`[rows]` int, generated tokens of each response; -1 if its tokens are unknown, as in imported logs."""
        return self.table["response_ids"].combine_chunks().value_lengths().fill_null(-1).to_numpy()

    @property
    def has_token_entropies(self) -> bool:
        """Whether the run's engine recorded token entropies."""
        return TOKEN_ENTROPY in self.table.column_names and self.table[TOKEN_ENTROPY].null_count < self.table.num_rows


def read_step(path: Path, *more: str) -> RecordedStep:
    """Load the rollout file of a step, with `more` columns of those that it has.

    Raises:
        DataError: The file cannot be read, or lacks a column.
    """
    table = read_table(path, READ, only=(*READ, TOKEN_ENTROPY, "end_key", "actor", *more), further=True)
    return RecordedStep(step_number(path), table, Segments.from_sorted_ids(table["trajectory"].to_numpy()))


def step_number(path: Path) -> int:
    """Parse the step in the name of a rollout file, such as step-000012.parquet."""
    return int(path.stem.split("-")[1])


def recorded_batch(step: RecordedStep, *, invalid_penalty: float) -> Batch:
    """Rebuild the batch of the responses that a step learned from."""
    kept = step.learned_R
    table = step.table.filter(pa.array(kept))
    trajectories = Segments.from_sorted_ids(table["trajectory"].to_numpy())
    num_tokens_R = step.num_tokens_R[kept]
    tokens = None if (num_tokens_R < 0).any() else Segments.from_lengths(num_tokens_R)
    columns = {
        "penalty": penalties(step, invalid_penalty)[kept],
        "state_key": table["state_key"].to_pylist(),
        "action_key": [action_of(response) for response in table["response"].to_pylist()],
        "state_text": table["observation"].to_pylist(),
        "task": table["task"].to_pylist(),
        "truncated": step.values("truncated")[kept],
        "success": step.values("success")[kept],
        "finished": (table["ended"].to_numpy() == "terminated").astype(np.float64),
        "replayed": _replayed(table, trajectories),
        **_of_ends(table, trajectories),
        **_of_trees(step, kept),
        **_of_seats(table, trajectories),
        **{name: step.values(name)[kept] for name in _of_measures(table)},
    }
    if tokens is not None:
        columns |= {"token_T": _token_numbers(step, kept)}
    groups = Segments.from_sorted_ids(trajectories.first(table["group"].to_numpy()))
    return Batch(groups, trajectories, step.values("reward")[kept], columns, tokens)


def how_to_fill(column: str, environment: str) -> str:
    """Return what to do if the rollouts of a run, or of a log if its environment says so, lack a column."""
    if environment == IMPORTED and column in SCORED_LATER:
        return "a log has it after `turnwise import FILE --score MODEL`"
    if column.endswith("_T"):
        return "a record has values of responses, none of single tokens; choose another method"
    if environment == IMPORTED:
        return "nothing fills it in a log; choose another method"
    return "the run did not measure it; choose another method, or name its measure in `measures` of a new run"


def lacking(batch: Batch, needs: Iterable[str]) -> list[str]:
    """Return the columns that a method needs and recorded rollouts, such as an imported log, lack."""
    there = {*batch.columns, "turn", "reward", *(["length"] if batch.tokens is not None else [])}
    return [name for name in needs if name not in there]


def _of_measures(table: pa.Table) -> list[str]:
    """List the columns filled by measures, including user-defined ones."""
    others = {"base", "alpha", "advantage", PREFIX, "tree", *BEGUN_SCHEMA.names}
    further = (name for name in table.column_names if name not in SCHEMA.names and name not in others)
    return [name for name in further if not name.startswith("trace.")]


def _of_ends(table: pa.Table, trajectories: Segments) -> dict[str, list[Any]]:
    """Return the states in which the trajectories ended; unknown ones are unique."""
    if "end_key" not in table.column_names:  # a file of an earlier version
        return {}
    ends = zip(table["end_key"].to_pylist(), trajectories.ids.tolist(), strict=True)
    return {"end_key": [("end of", number) if key is None else key for key, number in ends]}


def _replayed(table: pa.Table, trajectories: Segments) -> np.ndarray:
    """Return 1 for responses of trajectories from a store, as marked by their last turns, else 0."""
    texts = trajectories.last(table["info"].to_numpy(zero_copy_only=False))
    return np.array([float('"replayed"' in (text or "") and "replayed" in json.loads(text)) for text in texts])[
        trajectories.ids
    ]


def _of_seats(table: pa.Table, trajectories: Segments) -> dict[str, list[str]]:
    """Return the columns of roles, from actors and each trajectory's last turn; empty if a response has none."""
    texts = trajectories.last(table["info"].to_numpy(zero_copy_only=False))
    infos = [json.loads(text) if '"role"' in (text or "") else {} for text in texts]
    actors = table["actor"].to_pylist() if "actor" in table.column_names else [""] * table.num_rows
    turns = [(infos[number], actor) for number, actor in zip(trajectories.ids, actors, strict=True)]
    return roles_of(turns) if all(actor or "role" in info for info, actor in turns) else {}


def _of_trees(step: RecordedStep, kept: np.ndarray) -> dict[str, Any]:
    """Return which responses and trees the trajectories share; a file without trees shares none."""
    trees = PREFIX in step.table.column_names
    prefix = step.values(PREFIX)[kept] if trees else np.flatnonzero(kept)
    group_R, tree_R = (step.values(name)[kept] for name in ("group", "tree" if trees else "trajectory"))
    return {
        "prefix": prefix,
        "num_paths": num_paths(prefix.tolist()),
        "tree": list(zip(group_R.tolist(), tree_R.tolist(), strict=True)),
    }


def _token_numbers(step: RecordedStep, kept: np.ndarray) -> np.ndarray:
    """Return which tokens the kept responses share, including first tokens of another response."""
    rows = step.table.num_rows
    turn_R = step.values(PREFIX).astype(np.int64) if PREFIX in step.table.column_names else np.arange(rows)
    length, origin, begun = (np.full(turn_R.max() + 1, nothing) for nothing in (0, -1, 0))
    length[turn_R] = step.num_tokens_R
    if "origin" in step.table.column_names:
        origin[turn_R] = np.nan_to_num(step.values("origin"), nan=-1).astype(np.int64)
        begun[turn_R] = step.values("begun").astype(np.int64)
    return number_tokens(turn_R[kept], np.maximum(length, 0), origin, begun)


def base_advantage(step: RecordedStep, *, invalid_penalty: float) -> np.ndarray:
    """Return the `[rows]` advantage before coefficients and penalties, nan for responses without credit.

    Files of version 0.1 lack this column. For them it is computed from the coefficient and the penalty.
    """
    if "base" in step.table.column_names:
        return step.values("base")
    return (step.values("advantage") - penalties(step, invalid_penalty)) / step.values("alpha")


def penalties(step: RecordedStep, invalid_penalty: float) -> np.ndarray:
    """Return the `[rows]` penalty for invalid responses, 0 or below."""
    return np.where(step.values("valid") > 0, 0.0, -invalid_penalty)
