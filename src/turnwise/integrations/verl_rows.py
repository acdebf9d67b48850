"""Find sessions, turns and padding in the rows of a verl batch. Does not need verl.

verl names a row `{uid}_{session}_{index}`. A session is a trajectory. Its loop returns one row with the whole
conversation, or one row per response. verl copies the score of a session's last row to all its rows.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import contains
from typing import Any

import numpy as np

from turnwise.base.errors import IntegrationError
from turnwise.credit.batch import encode_labels
from turnwise.integrations.arrays import Array, as_table
from turnwise.integrations.padded import PaddedBatch, padded_batch
from turnwise.integrations.stretches import find_responses

RECORD = "turnwise"
"""Key of an agent loop's extra fields with columns of a row's responses, one value each; `reward` is one column."""
Record = Mapping[str, Sequence[Any]]


def verl_batch(
    *,
    rewards: Array,
    response_mask: Array,
    uid: Sequence[str] | np.ndarray,
    keys: Sequence[str] | None = None,
    scores: Array | None = None,
    entropies: Array | None = None,
    records: Sequence[Record | None] | None = None,
    token_tables: Mapping[str, Array] | None = None,
    needs: Sequence[str] = (),
    return_is_success: bool = False,
) -> PaddedBatch:
    """Find the trajectories and responses of a verl batch.

    Args:
        rewards: `[rows, length]` token-level rewards as verl's estimators get them.
        response_mask: `[rows, length]`, 1 at generated tokens, before rejection.
        uid: `[rows]` prompt of each row.
        keys: `[rows]` verl's names of the rows; without them each row is a trajectory.
        scores: `[rows, length]` rewards without a KL penalty; default: `rewards`.
        entropies: `[rows, length]` entropies (nats).
        records: Records of the agent loop, one per row.
        token_tables: `[rows, length]` values of tokens by name, such as `value_T`.
        needs: Columns that the method needs.
        return_is_success: See `padded_batch`.

    Raises:
        IntegrationError: The rows do not identify which responses belong together.
    """
    mask = as_table("response_mask", response_mask)
    paid = as_table("rewards", rewards)
    if paid.shape != mask.shape or len(uid) != len(mask):
        raise IntegrationError(
            f"rewards has shape {paid.shape} and uid {len(uid)} rows, expected {mask.shape} as response_mask"
        )
    given: dict[str, Any] = {"response_mask": response_mask, "group": uid, "entropies": entropies}
    given |= {"token_tables": token_tables, "needs": needs, "return_is_success": return_is_success}
    session, index = _sessions(keys, len(mask))
    alone = int(session.max(initial=-1)) + 1 == len(session)
    responses = find_responses(mask, by_run=True)
    row_R, count = responses.row_R, np.bincount(responses.row_R, minlength=len(mask))
    if keys is not None and not alone and (count > 1).any():
        raise IntegrationError(
            f"row {keys[int(np.argmax(count > 1))]!r} has several runs of generated tokens, and its batch has "
            "sessions of several rows, so the trajectory of each response is unknown; return one row per session or "
            "one row per response from the agent loop"
        )
    real = np.flatnonzero(count)
    recorded = records is not None and any(records[row] is not None for row in real.tolist())
    if alone and not recorded:
        return padded_batch(row="trajectory", rewards=paid, responses=responses, strays_to_last=True, **given)

    own: dict[str, Any] = _recorded(records or (), real, count[real]) if recorded else {}
    earned_R = np.asarray(own.pop("reward", np.zeros(len(row_R))), dtype=np.float64)
    score = paid if scores is None or scores is rewards else as_table("scores", scores)
    last, heirs = _last_rows(session, index), _last_rows(session, np.where(count > 0, index, -1))
    earned = np.bincount(session[row_R], weights=earned_R, minlength=len(last))
    rest = np.zeros(len(mask))  # rest of each session's score, on its last row with a response
    rest[heirs] = score.sum(1, dtype=np.float64)[last] - earned
    own["reward"] = earned_R + np.where(np.diff(row_R, append=-1) != 0, rest[row_R], 0.0)
    penalty = np.zeros(len(mask), paid.dtype) if score is paid else np.subtract(paid, score, dtype=np.float64) * mask
    if not alone:
        given |= {"trajectory": session, "turn": index}
    return padded_batch(
        row="trajectory" if alone else "turn", rewards=penalty, response_columns=own, responses=responses, **given
    )


def _sessions(keys: Sequence[str] | None, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's session, and the row's index in it."""
    if keys is not None and len(keys) != num_rows:
        raise IntegrationError(
            f"keys has {len(keys)} entries, expected one for each of the {num_rows} rows of response_mask"
        )
    if keys is None or len(set(keys)) == num_rows == "\n".join([*keys, ""]).count("_0\n"):
        return np.arange(num_rows), np.zeros(num_rows, dtype=np.int64)  # the first rows of as many sessions
    names, _, places = zip(*map(str.rpartition, keys, repeat("_")), strict=True)
    if not all(map(str.isdecimal, places)) or not all(map(contains, names, repeat("_"))):
        wrong = next(
            key for key, name, n in zip(keys, names, places, strict=True) if "_" not in name or not n.isdecimal()
        )
        raise IntegrationError(
            f"row {wrong!r} is not named uid_session_index, so its trajectory is unknown; use verl's agent loop manager"
        )
    return encode_labels("keys", names), np.fromiter(map(int, places), np.int64, num_rows)


def _last_rows(session: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the row with the highest index of each session."""
    order = np.lexsort((index, session))
    return order[np.flatnonzero(np.diff(session[order], append=-1))]


def _recorded(records: Sequence[Record | None], rows: np.ndarray, counts: np.ndarray) -> dict[str, list[Any]]:
    """Collect the records of the rows: one value per response, by name."""
    names: list[str] | None = None
    columns: dict[str, list[Any]] = {}
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        record = records[row]
        if record is None or "reward" not in record:
            raise IntegrationError(
                f"row {row} has no record of its responses, but other rows have; all must come from "
                f"TurnwiseAgentLoop, or have extra_fields[{RECORD!r}] with 'reward'"
            )
        names = names or list(record)
        if set(record) != set(names):
            raise IntegrationError(
                f"row {row} records {sorted(record)}, another row {sorted(names)}; record the same columns in all rows"
            )
        for name in names:
            if len(record[name]) != count:
                raise IntegrationError(
                    f"row {row} has {count} responses in its mask, but its agent loop recorded {len(record[name])} of "
                    f"{name!r}; record one value per response"
                )
            columns.setdefault(name, []).extend(record[name])
    return columns
