"""What the rows of a verl batch are: sessions, turns, padding. Needs no verl.

verl names a row `{uid}_{session}_{index}`. A session is a trajectory; its loop put out one row with the whole conversation, or several, one a
response. verl copies the score of a session's last row to all of them.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import contains
from typing import Any

import numpy as np

from turnwise.batch import encode_labels
from turnwise.errors import IntegrationError
from turnwise.integrations.arrays import Array, as_table
from turnwise.integrations.padded import PaddedBatch, padded_batch
from turnwise.integrations.stretches import Stretches, find_responses, nonzero

RECORD = "turnwise"
"""Key of an agent loop's extra fields: what it knows of the responses of a row, name to one value a response; `reward` among them."""
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
) -> PaddedBatch:
    """Find trajectories and responses.

    Args:
        rewards: `[rows, length]`, token-level rewards as verl's estimators get them.
        response_mask: `[rows, length]`, 1 at generated tokens, before any was rejected.
        uid: `[rows]` prompt of each row.
        keys: `[rows]` verl's names of the rows; without them each row is a trajectory.
        scores: `[rows, length]`, rewards without a KL penalty; default `rewards`.
        entropies: `[rows, length]`, nats.
        records: One a row, what the agent loop left of its responses.

    Raises:
        IntegrationError: The rows do not say which responses belong together, and why.
    """
    mask = as_table("response_mask", response_mask)
    paid = as_table("rewards", rewards)
    if paid.shape != mask.shape or len(uid) != len(mask):
        raise IntegrationError(
            f"rewards has shape {paid.shape} and uid {len(uid)} rows, expected {mask.shape} as response_mask"
        )
    given: dict[str, Any] = {"response_mask": response_mask, "group": uid, "entropies": entropies}
    session, index = _sessions(keys, len(mask))
    alone = int(session.max(initial=-1)) + 1 == len(session)
    if alone and records is None:
        return padded_batch(row="trajectory", rewards=_on_responses(paid, mask), **given)

    real = np.asarray(mask.any(1))
    records = [record if is_real else None for record, is_real in zip(records or [None] * len(mask), real, strict=True)]
    recorded = any(record is not None for record in records)
    if alone and not recorded:
        return padded_batch(row="trajectory", rewards=_on_responses(paid, mask), **given)

    score = paid if scores is None or scores is rewards else as_table("scores", scores)
    last = _last_rows(session, index)
    rest = np.zeros(len(mask))  # of each session's score, on its last row that has a response
    heirs = _last_rows(session, np.where(real, index, -1))
    rest[heirs] = score.sum(1, dtype=np.float64)[last]
    rest[~real] = 0.0
    of_penalty = None if score is paid else paid.astype(np.float64) - score
    if not alone:
        reward = np.zeros(len(mask)) if of_penalty is None else (of_penalty * mask).sum(1)
        columns: dict[str, list[Any]] = {}
        if recorded:
            own = _recorded(records, np.flatnonzero(real), np.ones(int(real.sum()), dtype=np.int64))
            earned = np.zeros(len(mask))
            earned[real] = own.pop("reward")
            rest[heirs] -= np.bincount(session, weights=earned)
            reward += earned
            columns = {name: _on_rows(values, real) for name, values in own.items()}
        found = padded_batch(row="turn", rewards=reward + np.where(real, rest, 0.0), trajectory=session.tolist(), turn=index,
                             columns=columns, **given)  # fmt: skip
        _check_one_response_a_row(found.responses, keys)
        return found

    responses = find_responses(mask, by_run=True)
    row_R, ends = responses.row_R, responses.stops - 1
    own = _recorded(records, np.unique(row_R), np.bincount(row_R)[np.unique(row_R)])
    table = np.zeros(mask.shape) if of_penalty is None else of_penalty * mask
    earned_R = np.asarray(own.pop("reward"), dtype=np.float64)
    left = rest - np.bincount(row_R, weights=earned_R, minlength=len(mask))
    table.ravel()[ends] += earned_R + np.where(np.diff(row_R, append=-1) != 0, left[row_R], 0.0)
    return padded_batch(row="trajectory", rewards=table, response_columns=own, **given)


def _sessions(keys: Sequence[str] | None, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Number of each row's session, and the row's place in it."""
    if keys is not None and len(keys) != num_rows:
        raise IntegrationError(f"there are {len(keys)} keys for {num_rows} rows of response_mask")
    if keys is None or (len(set(keys)) == num_rows and all(map(str.endswith, keys, repeat("_0")))):
        return np.arange(num_rows), np.zeros(num_rows, dtype=np.int64)  # the first rows of as many sessions
    names, _, places = zip(*map(str.rpartition, keys, repeat("_")), strict=True)
    if not all(map(str.isdecimal, places)) or not all(map(contains, names, repeat("_"))):
        wrong = next(
            key for key, name, n in zip(keys, names, places, strict=True) if "_" not in name or not n.isdecimal()
        )
        raise IntegrationError(
            f"the row {wrong!r} is not named uid_session_index, so its trajectory is unknown; use verl's own agent loop manager"
        )
    return encode_labels("keys", names), np.fromiter(map(int, places), np.int64, num_rows)


def _last_rows(session: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Row with the highest index of each session."""
    order = np.lexsort((index, session))
    return order[np.flatnonzero(np.diff(session[order], append=-1))]


def _on_responses(paid: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Rewards, those that stand behind a row's responses on its last generated token: verl scores the last token, whoever wrote it."""
    cells = nonzero(paid)
    lost = cells[mask.ravel()[cells] == 0]
    if not len(lost):
        return paid
    paid = paid.copy()
    row, at = np.divmod(lost, mask.shape[1])
    width = mask.shape[1]
    ends = width - 1 - np.argmax(mask[row, ::-1] != 0, axis=1)
    held = mask[row].any(1)
    np.add.at(paid, (row[held], ends[held]), paid[row[held], at[held]])
    paid[row, at] = 0.0
    return paid


def _recorded(records: Sequence[Record | None], rows: np.ndarray, counts: np.ndarray) -> dict[str, list[Any]]:
    """What loops recorded, name to one value a response of the rows."""
    names: list[str] | None = None
    columns: dict[str, list[Any]] = {}
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        record = records[row]
        if record is None or "reward" not in record:
            raise IntegrationError(f"row {row} has no record of its responses, other rows have; all must come from TurnwiseAgentLoop, or "
                                   f"have extra_fields[{RECORD!r}] with 'reward'")  # fmt: skip
        names = names or list(record)
        if set(record) != set(names):
            raise IntegrationError(f"row {row} records {sorted(record)}, another row {sorted(names)}; they must agree")
        for name in names:
            if len(record[name]) != count:
                raise IntegrationError(f"row {row} has {count} responses in its mask, but its agent loop recorded {len(record[name])} of "
                                       f"{name!r}; one value a response")  # fmt: skip
            columns.setdefault(name, []).extend(record[name])
    return columns


def _on_rows(values: list[Any], real: np.ndarray) -> list[Any]:
    """Values of the rows that have a response, with the first in the place of the others'."""
    column = [values[0]] * len(real)
    for row, value in zip(np.flatnonzero(real).tolist(), values, strict=True):
        column[row] = value
    return column


def _check_one_response_a_row(responses: Stretches, keys: Sequence[str] | None) -> None:
    if len(responses.starts) == len(responses.row_R):
        return
    row = int(responses.row_R[np.flatnonzero(np.bincount(responses.response) > 1)[0]])
    name = row if keys is None else repr(keys[row])
    raise IntegrationError(
        f"row {name} has several runs of generated tokens, and its batch has sessions of several rows: which responses are turns of which "
        "trajectory is unknown; let the agent loop put out one row a session, or one row a response"
    )
