"""Hold a batch: groups > trajectories > responses > tokens, with one reward and named columns per response.

Responses are sorted: those of a trajectory are adjacent and in turn order, trajectories of a group are adjacent.
The constructor checks everything once, so that transforms can rely on it.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Number
from typing import Any, TypeGuard

import numpy as np

from turnwise.base.errors import BatchError, did_you_mean
from turnwise.base.shapes import Float, Int
from turnwise.credit.columns import COLUMNS
from turnwise.credit.inputs import Tensor, as_columns, as_counts, as_numbers, as_rows
from turnwise.credit.segments import Segments

Numbers = Sequence[float] | Sequence[int] | np.ndarray | Tensor


class Batch:
    """Hold the responses of some groups of trajectories. Immutable.

    Attributes:
        groups: Segments of trajectories, one per group (prompt).
        trajectories: Segments of responses, one per trajectory.
        reward_R: `[responses]` float64 reward of each response.
        columns: Name to `[responses]` array: float64 values, int64 codes for labels, or text.
            `turnwise.COLUMNS` lists the names that methods read, such as `entropy` and `state_key`. Other names
            are allowed. A name that ends in `_T` holds `[tokens]` float64 values, such as `logprob_T`.
        tokens: Segments of generated tokens, one per response, or None.

    Raises:
        BatchError: Lengths disagree, a segment is empty, or a value is not finite.
    """

    def __init__(
        self,
        groups: Segments,
        trajectories: Segments,
        reward: Numbers,
        columns: Mapping[str, Any] | None = None,
        tokens: Segments | None = None,
        *,
        _order: np.ndarray | None = None,  # the caller's row of each response, for error messages
    ):
        self._order = _order
        for name, given in {"groups": groups, "trajectories": trajectories, "tokens": tokens}.items():
            if not isinstance(given, Segments) and (given is not None or name != "tokens"):
                raise BatchError(
                    f"{name} is a {type(given).__name__}, expected Segments; write Segments.from_lengths([...]), or "
                    "use Batch.from_arrays"
                )
        self.groups, self.trajectories, self.tokens = groups, trajectories, tokens
        if groups.num_elements != len(trajectories):
            raise BatchError(f"groups cover {groups.num_elements} trajectories, but there are {len(trajectories)}")
        if tokens is not None and len(tokens) != self.num_responses:
            raise BatchError(f"tokens has {len(tokens)} segments for {self.num_responses} responses")
        self.reward_R = self._values("reward", reward)
        given = as_columns(columns)
        self.columns: Mapping[str, np.ndarray] = {name: self._column(name, given) for name in given}

    @classmethod
    def from_arrays(
        cls,
        *,
        group: Sequence[Hashable] | np.ndarray | Tensor,
        trajectory: Sequence[Hashable] | np.ndarray | Tensor,
        reward: Numbers,
        columns: Mapping[str, Any] | None = None,
        num_tokens: Sequence[int] | np.ndarray | Tensor | None = None,
    ) -> tuple["Batch", Int[np.ndarray, " R"]]:
        """Build from one value per response. Rows may come in any order that keeps the turns of a trajectory in order.

        Args:
            group: `[rows]` prompt of each response; any hashable label, compared by equality ("1" and "01" differ).
            trajectory: `[rows]` trajectory of each response; labels must be unique within a group only.
            reward: `[rows]` reward of each response.
            columns: Name to `[rows]` values or labels; for a name that ends in `_T`, one list of token values per row.
            num_tokens: `[rows]` number of generated tokens. Needed for token segments only; a token column implies it.

        Returns:
            The batch, and `order`: `order[k]` is the caller's row of the batch's k-th response, so that `out[order] =
            method(batch)` puts results back. Groups and trajectories keep their order of first appearance.
        """
        rewards = as_rows("reward", reward)
        num_rows = len(rewards)
        labels = {"group": as_rows("group", group), "trajectory": as_rows("trajectory", trajectory)}
        columns = {name: as_rows(name, column) for name, column in as_columns(columns).items()}
        if num_tokens is not None:
            num_tokens = as_counts("num_tokens", num_tokens)
        elif by_token := next((name for name in columns if name.endswith("_T")), None):
            columns[by_token] = _token_rows(by_token, columns[by_token], None)
            num_tokens = _lengths(columns[by_token])
            if not num_tokens.all():
                raise BatchError(f"{by_token}[{num_tokens.argmin()}] is empty; every response has at least one token")
        given = {**labels, **columns, "num_tokens": num_tokens}
        for name, column in given.items():
            if column is not None and len(column) != num_rows:
                raise BatchError(f"{name} has {len(column)} rows, reward has {num_rows}; they must agree")
        if num_rows == 0:
            raise BatchError("a batch needs at least one response, got none")
        columns |= {name: _token_rows(name, columns[name], num_tokens) for name in columns if name.endswith("_T")}
        group_ids, trajectory_ids = (encode_labels(name, column) for name, column in labels.items())
        _, first, inverse = np.unique(group_ids * num_rows + trajectory_ids, return_index=True, return_inverse=True)
        first_row = first[inverse]  # first row of the trajectory: its name and rank
        order = np.lexsort((first_row, group_ids))  # stable, so turns stay in their order
        trajectories = Segments.from_sorted_ids(first_row[order])
        groups = Segments.from_sorted_ids(trajectories.first(group_ids[order]))
        sort = lambda column: _take(column, order)  # noqa: E731
        batch = cls(
            groups,
            trajectories,
            sort(rewards),
            {name: np.concatenate(sort(c)) if name.endswith("_T") else sort(c) for name, c in columns.items()},
            None if num_tokens is None else Segments.from_lengths(sort(num_tokens)),
            _order=order,
        )
        return batch, order

    @classmethod
    def from_trajectories(cls, groups: Iterable[Iterable[Iterable[Mapping[str, Any]]]]) -> "Batch":
        """Build from nested sequences: `groups[g][n][t]` maps names to the values of one response.

        Every response has a `reward`. Every other name becomes a column, except `num_tokens`; all responses must have
        the same names. A name that ends in `_T` has a list with one value per token.

            >>> batch = Batch.from_trajectories([[[{"reward": 0.0}, {"reward": 1.0}], [{"reward": 0.0}]]])
            >>> batch.num_groups, batch.num_trajectories, batch.num_responses
            (1, 2, 3)
        """
        try:
            nested = [[list(trajectory) for trajectory in group] for group in groups]
        except TypeError:
            raise BatchError("expected responses as groups[group][trajectory][turn], lists within lists") from None
        if not nested:
            raise BatchError("a batch needs at least one group, got none")
        for g, group in enumerate(nested):
            if not group or not all(group):
                empty = next((f"trajectory {n} of group {g}" for n, t in enumerate(group) if not t), f"group {g}")
                raise BatchError(f"{empty} is empty; leave it out")
        for g, group in enumerate(nested):
            for n, trajectory in enumerate(group):
                for t, response in enumerate(trajectory):
                    if not isinstance(response, Mapping):
                        raise BatchError(
                            f"groups[{g}][{n}][{t}] is a {type(response).__name__}, expected the values of one "
                            "response by name; nest groups[group][trajectory][turn]"
                        )
        trajectories = [trajectory for group in nested for trajectory in group]
        responses = [response for trajectory in trajectories for response in trajectory]
        names = list(responses[0])
        for row, response in enumerate(responses):
            if set(response) != set(names):
                raise BatchError(
                    f"response {row} has {sorted(response)}, response 0 has {sorted(names)}; they must agree"
                )
        if "reward" not in names:
            raise BatchError(f"responses have {sorted(names)}, but no 'reward'")
        columns: dict[str, Any] = {name: [response[name] for response in responses] for name in names}
        num_tokens = columns.pop("num_tokens", None)
        for name in [name for name in columns if name.endswith("_T")]:
            rows = _token_rows(name, columns[name], num_tokens)
            num_tokens = [len(row) for row in rows] if num_tokens is None else num_tokens
            columns[name] = np.concatenate(rows)
        return cls(
            Segments.from_lengths([len(group) for group in nested]),
            Segments.from_lengths([len(trajectory) for trajectory in trajectories]),
            columns.pop("reward"),
            columns,
            None if num_tokens is None else Segments.from_lengths(as_counts("num_tokens", num_tokens)),
        )

    def __repr__(self) -> str:
        return (
            f"Batch({self.num_groups} groups, {self.num_trajectories} trajectories, {self.num_responses} responses, "
            f"columns {sorted(self.columns)})"
        )

    @property
    def num_groups(self) -> int:
        """Return the number of groups (prompts)."""
        return len(self.groups)

    @property
    def num_trajectories(self) -> int:
        """Return the number of trajectories."""
        return len(self.trajectories)

    @property
    def num_responses(self) -> int:
        """Return the number of responses."""
        return self.trajectories.num_elements

    @cached_property
    def group_responses(self) -> Segments:
        """Return the segments of responses, one per group."""
        return self.groups.of(self.trajectories)

    @property
    def turn_R(self) -> Int[np.ndarray, " R"]:
        """Return the turn of each response within its trajectory, `[responses]`, from 0."""
        return self.trajectories.positions

    def column(self, name: str, *, needed_by: str) -> np.ndarray:
        """Return a column. `turn` always exists, `length` exists if the batch has tokens.

        Args:
            name: Name of the column.
            needed_by: Name of the caller, for the error message.

        Raises:
            BatchError: The batch has no such column.
        """
        if name == "turn":
            return self.turn_R
        if name == "length" and name not in self.columns and self.tokens is not None:
            return self.tokens.lengths.astype(np.float64)
        if name not in self.columns:
            hint = did_you_mean(name, self.columns) if self.columns else ""
            raise BatchError(
                f"{needed_by} needs column {name!r}, which this batch does not have; it has "
                f"{sorted(self.columns)}.{hint}"
            )
        return self.columns[name]

    def place(self, row: int) -> str:
        """Describe the position of a response, for error messages."""
        trajectory = int(self.trajectories.ids[row])
        group = int(self.groups.ids[trajectory])
        return f"group {group}, trajectory {trajectory}, turn {int(self.turn_R[row])}"

    def check_credit(self, credit_R: Any, source: str) -> Float[np.ndarray, " R"]:
        """Return `credit_R` if it has one finite value per response, else raise an error that names `source`."""
        if np.shape(credit_R) != (self.num_responses,):
            raise BatchError(f"{source} returned shape {np.shape(credit_R)}, expected ({self.num_responses},)")
        return self._finite(f"the credit that {source} returned", np.asarray(credit_R, dtype=np.float64))

    def _column(self, name: str, given: Mapping[str, Any]) -> np.ndarray:
        column = given[name]
        if name.endswith("_T"):
            return self._token_values(name, column)
        like = COLUMNS[name].like if name in COLUMNS else ""
        if like and like in given:
            return self._labels_like(like, given[like], name, column)
        kind = COLUMNS[name].kind if name in COLUMNS else "label" if looks_like_label(column) else "value"
        return {"value": self._values, "label": self._labels, "text": self._texts}[kind](name, column)

    def _texts(self, name: str, column: Any) -> np.ndarray:
        texts = np.array([str(text) for text in column], dtype=object)
        self._check_rows(name, texts)
        texts.flags.writeable = False
        return texts

    def _values(self, name: str, column: Any) -> Float[np.ndarray, " R"]:
        values = as_numbers(name, column)
        self._check_rows(name, values)
        values = self._finite(name, values)
        least = COLUMNS[name].least if name in COLUMNS else -np.inf
        if len(values) and values.min() < least:
            row = int(values.argmin())
            raise BatchError(
                f"{name}[{_shown(row, self._order)}] is {values[row]:g} ({self.place(row)}), expected {least:g} or more"
            )
        values.flags.writeable = False
        return values

    def _token_values(self, name: str, column: Any) -> Float[np.ndarray, " T"]:
        if self.tokens is None:
            raise BatchError(f"{name} holds one value per token, but this batch has no tokens; give their segments")
        values = as_numbers(name, column)
        if values.shape != (self.tokens.num_elements,):
            raise BatchError(
                f"{name} has shape {values.shape}, expected ({self.tokens.num_elements},): one value per token"
            )
        if not np.isfinite(values).all():
            token = int(np.flatnonzero(~np.isfinite(values))[0])
            response = int(self.tokens.ids[token])
            raise BatchError(
                f"{name}[{token}] is {values[token]} (token {int(self.tokens.positions[token])} of the response at "
                f"{self.place(response)}), expected a finite number; drop or repair the trajectory"
            )
        values.flags.writeable = False
        return values

    def _labels_like(self, like: str, others: Any, name: str, column: Any) -> Int[np.ndarray, " R"]:
        """Number labels like equal ones of the column `like`."""
        self._labels(name, column)  # raises under its own name
        numbers = _is_codes(others) and _is_codes(column) and others.dtype == column.dtype
        both = np.concatenate([others, column]) if numbers else [*_listed(others), *_listed(column)]
        codes = encode_labels(like, both, self._order)[len(both) - self.num_responses :]
        codes.flags.writeable = False
        return codes

    def _labels(self, name: str, column: Any) -> Int[np.ndarray, " R"]:
        codes = encode_labels(name, column, self._order)
        self._check_rows(name, codes)
        codes.flags.writeable = False
        return codes

    def _check_rows(self, name: str, column: np.ndarray) -> None:
        if column.shape != (self.num_responses,):
            raise BatchError(
                f"{name} has shape {column.shape}, expected ({self.num_responses},): one value per response"
            )

    def _finite(self, name: str, values: np.ndarray) -> np.ndarray:
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise BatchError(
                f"{name}[{_shown(row, self._order)}] is {values[row]} ({self.place(row)}), expected a finite number; "
                "drop or repair the trajectory"
            )
        return values


def _shown(row: int, order: np.ndarray | None) -> int:
    """Convert a row of the batch to the caller's row."""
    return row if order is None else int(order[row])


def looks_like_label(column: Any) -> bool:
    """Return whether a column of unknown name holds labels rather than numbers, judged by its first element."""
    first = next(iter(column), 0.0)
    return not isinstance(first, (Number, np.bool_, Sequence, np.ndarray)) or isinstance(first, (str, bytes))


def _token_rows(name: str, rows: Any, num_tokens: Any) -> list[np.ndarray]:
    """Return a column's token values, one array per response, each as long as the response."""
    arrays = set(map(type, rows)) == {np.ndarray}  # numbers need no check of each
    if arrays and {row.ndim for row in rows} == {1} and {row.dtype.kind for row in rows} <= {*"biuf"}:
        result = list(rows)
    else:
        result = [as_numbers(f"{name}[{number}]", row) for number, row in enumerate(rows)]
    if num_tokens is not None:
        wrong = np.flatnonzero(_lengths(result) != np.asarray(num_tokens))
        for number in wrong[:1].tolist():
            count = num_tokens[number]
            raise BatchError(f"{name}[{number}] has {len(result[number])} values, but the response has {count} tokens")
    return result


def _lengths(rows: Sequence[Any]) -> Int[np.ndarray, " rows"]:
    return np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))


def _listed(labels: Any) -> Any:
    """Return labels as Python's own; tensors, alone or in a list, hash by identity, and their values do not."""
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    if not any(hasattr(kind, "detach") for kind in {*map(type, labels)}):
        return labels
    return [label.tolist() if hasattr(label, "detach") else label for label in labels]


def _take(column: Any, order: np.ndarray) -> Any:
    """Reorder rows by position. Keeps lists of mixed labels, which NumPy would turn into strings."""
    if hasattr(column, "tolist"):  # also for pandas, whose columns would index by their own labels
        return np.asarray(column)[order]
    return [column[row] for row in order.tolist()]


def encode_labels(
    name: str, labels: Sequence[Hashable] | np.ndarray, order: np.ndarray | None = None
) -> Int[np.ndarray, " rows"]:
    """Number labels 0, 1, ... by first appearance. Equality is Python's: 1 and "1" are different labels."""
    if _is_codes(labels):
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        rank = np.empty_like(first)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[inverse]
    labels = _listed(labels)
    try:
        codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
        result = np.fromiter(map(codes.__getitem__, labels), dtype=np.int64, count=len(labels))
    except TypeError:
        row = next(row for row, label in enumerate(labels) if not _is_hashable(label))
        raise BatchError(
            f"{name}[{_shown(row, order)}] is a {type(labels[row]).__name__}, which is not hashable; use a string or "
            "a tuple of strings"
        ) from None
    if any(label != label for label in codes):
        raise BatchError(f"{name} holds nan, which is not equal to itself; use another label")
    return result


def _is_codes(labels: Any) -> TypeGuard[np.ndarray]:
    """Return whether labels are whole numbers in an array, which NumPy numbers fast."""
    return isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu"


def _is_hashable(label: object) -> bool:
    try:
        hash(label)
    except TypeError:
        return False
    return True
