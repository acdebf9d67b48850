"""Ragged batches for hypothesis, as the plain rows that a user would hold.

Rewards are multiples of 1/8 times a power of two. Sums of such numbers are exact in float64, so two values are equal or
differ by
1/8 of the scale: a law can be tested to rounding error, without near-ties that a division by `std + eps` would blow up.
"""

import dataclasses
from functools import cached_property
from typing import ClassVar

import numpy as np
from hypothesis import strategies as st
from tests.columns import make_columns

import turnwise as tw


@dataclasses.dataclass(frozen=True)
class Rows:
    """One value a response. Trajectory labels are unique in their group only.

    `identity`, `home`, `origin` and `place` number the response, its trajectory, its group and the trajectory within
    the group as they were drawn: further columns are made from them, so that a response keeps its values wherever it
    goes.
    """

    STATES: ClassVar[tuple] = ("hall", "kitchen", "1", "01")
    """Names of the states, in which trajectories end, too."""

    group: tuple
    trajectory: tuple
    reward: np.ndarray
    entropy: np.ndarray
    penalty: np.ndarray
    state_key: tuple
    identity: np.ndarray
    home: np.ndarray
    origin: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, *, group, trajectory, **columns) -> "Rows":
        """Rows numbered as they come."""
        names = list(dict.fromkeys(zip(group, trajectory, strict=True)))
        groups = list(dict.fromkeys(group))
        first = {g: next(n for n, name in enumerate(names) if name[0] == g) for g in groups}
        home = np.array([names.index(name) for name in zip(group, trajectory, strict=True)])
        return cls(
            group=group,
            trajectory=trajectory,
            identity=np.arange(len(group)),
            home=home,
            origin=np.array([groups.index(g) for g in group]),
            place=home - np.array([first[g] for g in group]),
            **columns,
        )

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def built(self) -> tuple[tw.Batch, np.ndarray]:
        """The batch, and the order that leads back."""
        columns = make_columns(tw.COLUMNS, self.identity, self.home, self.origin, self.place)
        columns |= {"entropy": self.entropy, "penalty": self.penalty, "state_key": self.state_key}
        columns["end_key"] = [self.STATES[number] for number in columns["end_key"]]
        return tw.Batch.from_arrays(group=self.group, trajectory=self.trajectory, reward=self.reward, columns=columns)

    @cached_property
    def _credits(self) -> dict[int, tuple[tw.Transform, np.ndarray]]:
        return {}

    def credit(self, method: tw.Transform) -> np.ndarray:
        """Advantage of every row, in the order of the rows; computed once a method."""
        if id(method) not in self._credits:
            batch, order = self.built
            out = np.full(len(self), np.nan)
            out[order] = advantage(method, batch)
            out.flags.writeable = False
            self._credits[id(method)] = method, out  # with the method, so that no other one takes its id
        return self._credits[id(method)][1]

    def take(self, rows: np.ndarray) -> "Rows":
        """Select rows, in the order asked for."""
        return type(self)(
            **{
                field.name: column[rows] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
                for field in dataclasses.fields(self)
                for column in [getattr(self, field.name)]
            }
        )

    def replace(self, **columns) -> "Rows":
        """Change some columns."""
        return dataclasses.replace(self, **columns)

    def names(self) -> list[tuple]:
        """(group, trajectory) of every row."""
        return list(zip(self.group, self.trajectory, strict=True))

    def is_last(self) -> np.ndarray:
        """Whether each row is the last turn of its trajectory."""
        names = self.names()
        return np.array([name not in names[row + 1 :] for row, name in enumerate(names)])


def advantage(method: tw.Transform, batch: tw.Batch) -> np.ndarray:
    """Advantage by any method, with state or without."""
    state = method.init() if method.init else None
    credit_R, _ = method.update(batch.reward_R, state, batch)
    return credit_R


@st.composite
def rows(draw, *, max_groups=3, max_trajectories=4, max_turns=4, min_trajectories=1) -> Rows:
    """Draw sorted groups of trajectories of turns, with ties, constant groups, lone members, large and small scales."""
    lengths = draw(
        st.lists(
            st.lists(st.integers(1, max_turns), min_size=min_trajectories, max_size=max_trajectories),
            min_size=1,
            max_size=max_groups,
        )
    )
    num_rows = sum(map(sum, lengths))
    scale = 2.0 ** draw(st.sampled_from([0, 0, -20, 20]))
    pool = draw(st.sampled_from([[0], [0, 8], [-8, 0, 1, 8], list(range(-8, 9))]))

    def column(strategy):
        return draw(st.lists(strategy, min_size=num_rows, max_size=num_rows))

    entropy_scale = draw(st.sampled_from([0.02, 0.3, 3.0]))
    return Rows.of(
        group=tuple(f"g{g}" for g, group in enumerate(lengths) for turns in group for _ in range(turns)),
        trajectory=tuple(n for group in lengths for n, turns in enumerate(group) for _ in range(turns)),
        reward=np.array(column(st.sampled_from(pool)), dtype=np.float64) / 8 * scale,
        entropy=np.array(column(st.integers(0, 16)), dtype=np.float64) / 16 * entropy_scale,
        penalty=np.array(column(st.sampled_from([0.0, -0.125])), dtype=np.float64) * scale,
        state_key=tuple(column(st.sampled_from(Rows.STATES))),
    )


@st.composite
def interleavings(draw, table: Rows) -> np.ndarray:
    """Draw an order of the rows in which every trajectory's turns stay in theirs."""
    names = table.names()
    queues = {name: [row for row, other in enumerate(names) if other == name] for name in names}
    return np.array([queues[names[row]].pop(0) for row in draw(st.permutations(range(len(table))))])


@st.composite
def interleaved(draw, **options) -> tuple[Rows, np.ndarray]:
    """Draw sorted rows and an interleaving of them."""
    table = draw(rows(**options))
    return table, draw(interleavings(table))
