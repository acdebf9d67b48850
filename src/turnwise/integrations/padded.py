"""Assign credit in trainers with padded `[rows, length]` tensors, such as verl-agent, SkyRL, OpenRLHF and slime.

    advantages, per_row = padded_advantages(
        tw.empg(tw.grpo()), row="turn", rewards=rewards, response_mask=mask,
        group=uid, trajectory=traj_uid, turn=turn, entropies=entropies,
    )

A row is one turn, or one whole trajectory with several responses in its mask; `row` says which. Batches may contain
padding rows, copies of rows, and rows in any order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from turnwise.base.errors import IntegrationError, did_you_mean
from turnwise.credit.batch import Batch
from turnwise.credit.options import check_transforms, choice
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace
from turnwise.credit.transform import Transform
from turnwise.integrations.arrays import (
    Array,
    Labels,
    as_codes,
    as_column,
    as_numbers,
    as_table,
    as_whole,
    dtype_of,
    like,
    not_finite,
)
from turnwise.integrations.stretches import PaddedRows, Spans, check_one_group, find_responses, nonzero, num_nonzero
from turnwise.integrations.token_tables import SOURCES, Tokens, available, of_responses, reorder, tables_for

Row = Literal["turn", "trajectory"]


class Padded(NamedTuple):
    """Hold advantages in the trainer's layout, with kind and device of the mask and dtype of the rewards.

    Attributes:
        tokens: `[rows, length]` advantage of each token's response; 0 outside the mask.
        rows: `[rows]` advantage of the row's response, or the mean over the tokens of several; 0 for padding.
    """

    tokens: Array
    rows: Array


class PaddedBatch(NamedTuple):
    """Hold the responses of a padded batch, and the way back to its rows.

    Attributes:
        batch: Distinct responses.
        order: Index in `responses` of each response of the batch.
        responses: Positions of the responses of all rows.
        source_R: Index of the response that each response copies; its own index if it is not a copy.
        like: The caller's mask and rewards, which determine the kind of results.
    """

    batch: Batch
    order: np.ndarray
    responses: Spans
    source_R: np.ndarray
    like: tuple[Array, Array]

    def spread(self, advantage_R: np.ndarray, within_T: np.ndarray | None = None) -> Padded:
        """Spread one value per response of the batch over the tokens and rows of the table.

        Args:
            advantage_R: `[responses]` values.
            within_T: `[tokens]` what sets each token of the batch apart from its response; None: nothing.
        """
        mask, rewards = self.like
        value_R = self._of_all(advantage_R)
        row_R, weight_R = self.responses.row_R, self.responses.lengths_R
        num_rows = self.responses.shape[0]
        per_row = np.zeros(num_rows)
        tokens = np.bincount(row_R, weights=weight_R, minlength=num_rows)
        np.divide(
            np.bincount(row_R, weights=value_R * weight_R, minlength=num_rows), tokens, out=per_row, where=tokens > 0
        )
        per_token = self.responses.spread(value_R, dtype_of(mask, rewards))
        if within_T is not None:
            assert self.batch.tokens is not None
            place_R = self._of_all(np.arange(self.batch.num_responses)).astype(np.int64)
            per_token.ravel()[Tokens(self.responses).cells] += reorder(within_T, self.batch.tokens, place_R)
        return Padded(like(per_token, mask, rewards), like(per_row, mask, rewards))

    def credit(self, method: Transform) -> tuple[Padded, Array]:
        """Return advantages, and the returns that a critic should learn; without one, the advantages of tokens."""
        trace, _ = method.trace(self.batch)
        padded, targets = self.spread(trace.advantage_R, trace.within_T(self.batch.tokens)), self.targets(trace)
        return padded, padded.tokens if targets is None else targets

    def targets(self, trace: Trace) -> Array | None:
        """Return what a critic should learn at each token, `[rows, length]`; None if the method reads no critic.

        A method that reads one value per response sets one target for all tokens of the response.
        """
        targets = trace.targets
        if "value_T" in targets:
            return self.spread(np.zeros(self.batch.num_responses), targets["value_T"]).tokens
        return self.spread(targets["value"]).tokens if "value" in targets else None

    def _of_all(self, values_R: np.ndarray) -> np.ndarray:
        """Give values of the batch's responses to all responses of the table, copies included."""
        result = np.zeros(len(self.source_R))
        result[self.order] = values_R
        return result[self.source_R]


def padded_advantages(
    method: Transform,
    *,
    row: Row,
    rewards: Array,
    response_mask: Array,
    group: Labels,
    trajectory: Labels | None = None,
    turn: Array | None = None,
    turn_ids: Array | None = None,
    entropies: Array | None = None,
    columns: Mapping[str, Any] | None = None,
    token_tables: Mapping[str, Array] | None = None,
    return_is_success: bool = False,
) -> Padded:
    """Compute the advantages of a padded batch by a stateless method; see `padded_batch` for the arguments.

    Rows with an empty mask are padding and change nothing. Rows that name the same response (or the same trajectory,
    with `row="trajectory"`) are copies: they count once, and each gets the advantage.

    Raises:
        IntegrationError: The batch lacks what the method needs, or contradicts itself; names the first such row.
        ConfigError: The method keeps state.
    """
    check_transforms("padded_advantages", {"method": method}, Transform)
    tables = {**({} if entropies is None else {"entropy_T": entropies}), **(token_tables or {})}
    given = {*(columns or {}), *available(tables), "turn", "length", *(["success"] if return_is_success else [])}
    for name in method.needs:
        if name not in given:
            raise IntegrationError(
                f"{method} needs column {name!r}, which was not given; pass {_how(name)}.{did_you_mean(name, given)}"
            )
    padded = padded_batch(
        row=row,
        rewards=rewards,
        response_mask=response_mask,
        group=group,
        trajectory=trajectory,
        turn=turn,
        turn_ids=turn_ids,
        entropies=entropies,
        columns=columns,
        token_tables=token_tables,
        needs=method.needs,
        return_is_success=return_is_success,
    )
    return padded.credit(method)[0]


def _how(column: str) -> str:
    """Say how to pass a column to `padded_advantages`."""
    if column == "entropy":
        return "entropies="
    tables = sorted(tables_for([column]))
    return f'token_tables={{"{tables[0]}": ...}}' if tables else f'columns={{"{column}": ...}}'


def padded_batch(
    *,
    row: Row,
    rewards: Array,
    response_mask: Array,
    group: Labels,
    trajectory: Labels | None = None,
    turn: Array | None = None,
    turn_ids: Array | None = None,
    entropies: Array | None = None,
    columns: Mapping[str, Any] | None = None,
    response_columns: Mapping[str, Sequence[Any]] | None = None,
    token_tables: Mapping[str, Array] | None = None,
    needs: Sequence[str] = (),
    return_is_success: bool = False,
    responses: Spans | None = None,
    strays_to_last: bool = False,
) -> PaddedBatch:
    """Find the responses of a padded batch, each once, and the way back to its rows.

    Args:
        row: Content of a row: "turn" for one response, "trajectory" for all of them.
        rewards: `[rows, length]` at tokens of the responses that earned them, or `[rows]`: with `row="turn"` the reward
            of that turn (not of its trajectory), with `row="trajectory"` of the whole, paid for its last response.
        response_mask: `[rows, length]` of 0 and 1, 1 at generated tokens. With `row="trajectory"` each run of ones is a
            response.
        group: `[rows]` prompt of each row.
        trajectory: `[rows]` trajectory of each row, distinct between groups. With `row="trajectory"` it identifies
            copies; without it every row is its own trajectory.
        turn: `[rows]` increasing number of each turn within its trajectory, for `row="turn"`. Without it the rows of a
            trajectory are in order and none is a copy.
        turn_ids: `[rows, length]` number of each generated token's response, increasing along a row, for
            `row="trajectory"`. Needed if runs of ones are not responses: adjacent responses, or masked tokens inside
            one.
        entropies: `[rows, length]` entropy of each generated token (nats); or `[rows]`, their mean, with `row="turn"`.
        columns: Further columns by name: `[rows]` values or labels, or `[rows, length]` values to average per response.
        response_columns: Further columns by name: one value or label per response, in order of rows and positions.
            `reward` is added to `rewards`.
        token_tables: `[rows, length]` values of tokens by name, such as `value_T`; see `token_tables.SOURCES`.
        needs: Columns to compute from `token_tables` and two-dimensional `entropies`, if they are not given.
        return_is_success: Add the column `success`: the sum of the trajectory's rewards, which must be from 0 to 1.
        responses: Positions of the responses, if already known.
        strays_to_last: Pay rewards outside of responses for the last response of their row; drop them if it has none.

    Raises:
        IntegrationError: The batch contradicts itself; names the first such row.
    """
    choice("row", row, Row)
    mask = as_table("response_mask", response_mask)
    if row == "turn" and (trajectory is None or turn_ids is not None):
        raise IntegrationError('row="turn" needs trajectory=, the trajectory of each row, and takes no turn_ids=')
    if row == "trajectory" and turn is not None:
        raise IntegrationError(
            'row="trajectory" takes no turn=; pass turn_ids=, the response that each token belongs to'
        )
    ids = None
    if turn_ids is not None:
        ids = np.zeros(mask.shape, dtype=np.int64)
        ids[mask == 1] = as_whole("turn_ids", turn_ids, mask.shape, mask == 1)
    responses = responses or find_responses(mask, by_run=row == "trajectory", ids=ids)
    if not len(responses.row_R):
        raise IntegrationError(f"response_mask is 0 in all {len(mask)} rows; it must be 1 at generated tokens")
    rows = PaddedRows(responses)
    given = {**(columns or {}), **({} if entropies is None else {"entropy": entropies})}
    tables = {name: as_column(name, column, mask.shape, rows.real) for name, column in given.items()}
    if row == "trajectory" and entropies is not None and tables["entropy"].ndim == 1:
        raise IntegrationError('entropies has shape [rows], but with row="trajectory" it must be [rows, length]')
    own = _by_response(response_columns or {}, len(responses.row_R))
    reward_R = _rewards(as_numbers("rewards", rewards, mask.shape, rows.real), mask, responses, strays_to_last)
    reward_R = reward_R + own.pop("reward", np.zeros(1)).astype(np.float64)
    columns_R = {**own, **{name: _of_responses(name, table, responses) for name, table in tables.items()}}
    of_tokens = {} if entropies is None or tables["entropy"].ndim == 1 else {"entropy_T": tables["entropy"]}
    for name, table in (token_tables or {}).items():
        of_tokens[name] = as_table(name, table)
        if of_tokens[name].shape != mask.shape:
            raise IntegrationError(f"{name} has shape {of_tokens[name].shape}, expected {mask.shape} as response_mask")
    wanted = [name for name in needs if name in available(of_tokens) and name not in columns_R]
    tokens = Tokens(responses) if wanted else None
    if tokens is not None:
        columns_R |= {n: of_responses(n, of_tokens, responses, tokens) for n in wanted if n in SOURCES}

    group_codes = as_codes("group", group, len(mask), rows.real)
    trajectory_codes = unit = rows.real  # unit: identity of a row, equal in copies, increasing by turn
    original, source_R = np.arange(len(rows.real)), np.arange(len(rows.row_R))
    if trajectory is not None:
        trajectory_codes = unit = as_codes("trajectory", trajectory, len(mask), rows.real)
        check_one_group(trajectory_codes, group_codes, rows.real)
        if row == "turn":
            number = original if turn is None else as_whole("turn", turn, mask.shape[:1], rows.real)
            rank = np.unique(number, return_inverse=True)[1].reshape(-1)
            unit = trajectory_codes * (int(rank.max()) + 1) + rank
        original = rows.originals(unit, {"response_mask": mask, **({} if ids is None else {"turn_ids": ids})})
        source_R = rows.sources(original, {"rewards": reward_R, **columns_R})

    kept = np.flatnonzero(original == np.arange(len(original)))
    kept = kept[np.lexsort((unit[kept], group_codes[kept]))]
    order = np.repeat(rows.first_R[kept], rows.counts[kept]) + Segments.from_lengths(rows.counts[kept]).positions
    trajectories = Segments.from_sorted_ids(trajectory_codes[rows.place_R[order]])
    columns_T = {}
    if tokens is not None:
        for name in (name for name in wanted if name not in SOURCES):
            columns_T[name] = reorder(tokens.take(name, of_tokens[name]), tokens.segments, order)
    if return_is_success and "success" in needs and "success" not in columns_R:
        columns_T["success"] = trajectories.broadcast(_success(trajectories.sum(reward_R[order])))
    batch = Batch(
        Segments.from_sorted_ids(trajectories.first(group_codes[rows.place_R[order]])),
        trajectories,
        reward_R[order],
        {**{name: column[order] for name, column in columns_R.items()}, **columns_T},
        Segments.from_lengths(responses.lengths_R[order]),
        _order=order,
    )
    return PaddedBatch(batch, order, responses, source_R, (response_mask, rewards))


def _success(return_N: np.ndarray) -> np.ndarray:
    if (wrong := return_N[(return_N < -1e-6) | (return_N > 1 + 1e-6)]).size:
        raise IntegrationError(
            f"return_is_success: a trajectory's rewards sum to {wrong[0]:.6g}, expected 0 to 1; give the column "
            "'success' instead, or scale the rewards"
        )
    return return_N.clip(0.0, 1.0)


def _by_response(columns: Mapping[str, Sequence[Any]], num_responses: int) -> dict[str, np.ndarray]:
    for name, column in columns.items():
        if len(column) != num_responses:
            raise IntegrationError(f"response_columns[{name!r}] has {len(column)} values for {num_responses} responses")
    return {name: np.fromiter(column, dtype=object, count=len(column)) for name, column in columns.items()}


def split_responses(mask: np.ndarray) -> tuple[Segments, np.ndarray]:
    """Split generated tokens into responses: each run of ones in a row is one.

    Args:
        mask: `[rows, length]` bool, true at generated tokens.

    Returns:
        Segments of the generated tokens, one per response, and `[responses]` the row of each.
    """
    responses = find_responses(mask, by_run=True)
    return Segments.from_lengths(responses.lengths_R), responses.row_R


def _rewards(reward: np.ndarray, mask: np.ndarray, responses: Spans, strays_to_last: bool) -> np.ndarray:
    """Return the reward of each response. A reward outside of responses is an error, or goes to the row's last one."""
    row_R = responses.row_R
    if reward.ndim == 1:
        if (lost := np.setdiff1d(np.flatnonzero(reward), row_R)).size:
            raise _lost(reward, (int(lost[0]),))
        return np.where(np.diff(row_R, append=-1) != 0, reward[row_R], 0.0)  # paid for the last response of the row
    flat = reward.ravel()
    paid = flat[responses.last_cells]
    if num_nonzero(reward) == np.count_nonzero(paid):  # as most trainers pay: on last tokens, nothing elsewhere
        if (wrong := responses.last_cells[~np.isfinite(paid)]).size:
            raise not_finite("rewards", tuple(int(part) for part in divmod(int(wrong[0]), mask.shape[1])), reward)
        return paid.astype(np.float64)
    cells = nonzero(reward)
    inside = mask.ravel()[cells] != 0
    lost, cells = cells[~inside], cells[inside]
    if lost.size and not strays_to_last:
        raise _lost(reward, tuple(int(part) for part in divmod(int(lost[0]), mask.shape[1])))
    if len(cells) > 4 * len(row_R):
        reward_R = _sums("rewards", reward, responses)
    elif (wrong := cells[~np.isfinite(flat[cells])]).size:
        raise not_finite("rewards", tuple(int(part) for part in divmod(int(wrong[0]), mask.shape[1])), reward)
    else:
        reward_R = np.bincount(responses.of_cells(cells), weights=flat[cells], minlength=len(row_R))
    last = np.searchsorted(row_R, lost // mask.shape[1], side="right") - 1
    held = row_R[last] == lost // mask.shape[1]
    return reward_R + np.bincount(last[held], weights=flat[lost[held]], minlength=len(row_R))


def _sums(name: str, table: np.ndarray, responses: Spans) -> np.ndarray:
    sum_R = responses.sum(table)
    for response in np.flatnonzero(~np.isfinite(sum_R)):
        for piece in np.flatnonzero(responses.response == response):
            cells = np.arange(responses.starts[piece], responses.stops[piece])
            if (wrong := cells[~np.isfinite(table.ravel()[cells])]).size:
                raise not_finite(name, tuple(int(part) for part in divmod(int(wrong[0]), table.shape[1])), table)
    return sum_R


def _of_responses(name: str, table: np.ndarray, responses: Spans) -> np.ndarray:
    return _sums(name, table, responses) / responses.lengths_R if table.ndim == 2 else table[responses.row_R]


def _lost(reward: np.ndarray, where: tuple[int, ...]) -> IntegrationError:
    return IntegrationError(
        f"rewards{list(where)} is {reward[where]}, where response_mask has no response; put it on a generated "
        "token, or set it to 0 if it is padding"
    )
