"""Enumerate a game, and compute values and best responses exactly.

A situation (information set) is what a seat has read and said so far. It is found by the seat's own observations, so
that a game need not name it. All sums over the tree are array operations, level by level.

Each iteration adds to each choice its regret, how much more it would have won than the strategy, kept at 0 or above.
The next strategy is proportional to the regrets. The average, with more weight on later iterations, tends to an
equilibrium.
Reference: Tammelin, arXiv 1407.5042.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from turnwise.worlds.seats.base import CHANCE, ENDED, ROLES, History

if TYPE_CHECKING:
    from turnwise.worlds.seats.base import Game


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """What a seat has read and said when it acts.

    Attributes:
        seat: The seat.
        observations: What it read, this one last.
        offers: The admissible actions with each observation.
        responses: What it said, one fewer.
    """

    seat: int
    observations: tuple[str, ...]
    offers: tuple[tuple[str, ...], ...]
    responses: tuple[str, ...]


class Tree:
    """All histories of a game, with the situations of its seats.

    A strategy is a vector with one probability per choice; the choices of a situation are adjacent, in the order of its
    actions.

    Attributes:
        situations: Situations of all seats.
        offsets: `[situations + 1]` first choice of each situation.
    """

    def __init__(self, game: "Game"):
        self.situations: list[Situation] = []
        known: dict[tuple[int, tuple[str, ...]], int] = {}
        starts: list[int] = []
        num_choices = 0
        actor, parent, choice, chance, returns = [], [], [], [], []
        self._situation_of: dict[History, int] = {}
        nothing: tuple[tuple[str, ...], ...] = tuple(() for _ in ROLES)
        level: list[tuple[History, int, int, float, tuple[tuple[str, ...], ...]]] = [((), -1, -1, 1.0, nothing)]
        bounds = [0]
        while level:
            following = []
            for history, above, by, probability, views in level:
                node, acts = len(actor), game.actor(history)
                actor.append(acts)
                parent.append(above)
                choice.append(by)
                chance.append(probability)
                returns.append(game.returns(history) if acts == ENDED else (0.0,) * len(ROLES))
                if acts == CHANCE:
                    following += [
                        ((*history, outcome), node, -1, likely, views)
                        for outcome, likely in game.chances(history).items()
                    ]
                elif acts != ENDED:
                    heard = (*views[acts], game.view(history, acts))
                    actions = tuple(game.actions(history))
                    if (acts, heard) not in known:
                        known[acts, heard] = len(self.situations)
                        before = self.situations[known[acts, heard[:-2]]].offers if len(heard) > 1 else ()
                        self.situations.append(Situation(acts, heard[::2], (*before, actions), heard[1::2]))
                        starts.append(num_choices)
                        num_choices += len(actions)
                    number = self._situation_of[history] = known[acts, heard]
                    for place, action in enumerate(actions):
                        after = (*views[:acts], (*heard, action), *views[acts + 1 :])
                        following.append(((*history, action), node, starts[number] + place, 1.0, after))
            level = following
            bounds.append(len(actor))
        self.offsets = np.array([*starts, num_choices])
        self._set_C = np.repeat(np.arange(len(starts)), np.diff(self.offsets))  # situation of each choice
        self.seat_C = np.array([situation.seat for situation in self.situations])[self._set_C]
        self._actor, self._parent, self._choice = map(np.array, (actor, parent, choice))
        self._chance, self._returns = np.array(chance), np.array(returns)
        self._levels = [slice(*pair) for pair in itertools.pairwise(bounds[1:])]
        self._first = np.zeros(len(starts), dtype=np.int64)  # a history of each situation
        for history_node, number in zip(np.flatnonzero(self._actor >= 0), self._situation_of.values(), strict=True):
            self._first[number] = history_node

    @property
    def num_choices(self) -> int:
        """Length of a strategy."""
        return int(self.offsets[-1])

    def choices(self, history: History) -> slice:
        """Return the choices of the seat that acts after a history."""
        number = self._situation_of[history]
        return slice(self.offsets[number], self.offsets[number + 1])

    def uniform(self) -> np.ndarray:
        """Return the strategy that plays all admissible actions equally often."""
        return self.normalised(np.zeros(self.num_choices))

    def normalised(self, weights: np.ndarray) -> np.ndarray:
        """Scale the weights of each situation to a sum of 1; uniform where all are 0."""
        total, count = np.add.reduceat(weights, self.offsets[:-1])[self._set_C], np.diff(self.offsets)[self._set_C]
        return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / count)

    def _edges(self, strategy: np.ndarray) -> np.ndarray:
        """Return the probability of each node given the one above it."""
        return np.where(self._choice >= 0, strategy[self._choice], self._chance)

    def _up(self) -> Iterator[slice]:
        return reversed(self._levels)

    def values(self, strategy: np.ndarray) -> np.ndarray:
        """Compute the expected return of every node for every seat, `[nodes, seats]`; the first node is the start."""
        value, edge = self._returns.copy(), self._edges(strategy)
        for level in self._up():
            np.add.at(value, self._parent[level], edge[level, None] * value[level])
        return value

    def reach(self, strategy: np.ndarray, seat: int, *, own: bool) -> np.ndarray:
        """Compute the probability of every node by the seat's own choices, or by all but these, `[nodes]`."""
        edge = self._edges(strategy)
        is_own = np.append(self._actor, CHANCE)[self._parent] == seat
        factor = np.where(is_own == own, edge, 1.0)
        reach = np.ones(len(factor))
        for level in self._levels:
            reach[level] = reach[self._parent[level]] * factor[level]
        return reach

    def gains(self, strategy: np.ndarray, seat: int) -> np.ndarray:
        """Compute the counterfactual value of each choice of a seat, `[choices]`; 0 for the choices of others."""
        weight = self.reach(strategy, seat, own=False) * self.values(strategy)[:, seat]
        chosen = self._choice >= 0
        gains = np.bincount(self._choice[chosen], weight[chosen], minlength=self.num_choices)
        return np.where(self.seat_C == seat, gains, 0.0)

    def own_reach(self, strategy: np.ndarray, seat: int) -> np.ndarray:
        """Compute the probability that a seat's own choices lead to each choice's situation, `[choices]`."""
        return self.reach(strategy, seat, own=True)[self._first][self._set_C]

    def best_response(self, strategy: np.ndarray, seat: int) -> float:
        """Compute the largest expected return of a seat against a strategy of the others."""
        value, edge = self._returns[:, seat].copy(), self._edges(strategy)
        weight = self.reach(strategy, seat, own=False)
        for level in self._up():
            above, by = self._parent[level], self._choice[level]
            own = self._actor[above] == seat
            gains = np.bincount(by[own], (weight[level] * value[level])[own], minlength=self.num_choices)
            most = np.maximum.reduceat(gains, self.offsets[:-1])[self._set_C]
            best = self.normalised((gains == most).astype(float))  # equally good choices are worth the same
            np.add.at(value, above, np.where(own, best[by], edge[level]) * value[level])
        return float(value[0])

    def exploitability(self, strategy: np.ndarray) -> float:
        """Compute how much a best response gains over the strategy, averaged over the seats, per match.

        0 is an equilibrium of a game of two seats whose returns sum to 0.
        """
        value = self.values(strategy)[0]
        return float(np.mean([self.best_response(strategy, seat) - value[seat] for seat in range(len(ROLES))]))


def solve(tree: Tree, *, iterations: int = 1000) -> np.ndarray:
    """Return a strategy near an equilibrium, `[choices]`.

    Args:
        tree: The game.
        iterations: Iterations of CFR+; 1000 leave an exploitability of about 1e-3 chips in Leduc poker, less in Kuhn's.
    """
    regret, average = np.zeros(tree.num_choices), np.zeros(tree.num_choices)
    strategy = tree.uniform()
    for iteration in range(1, iterations + 1):
        for seat in (0, 1):
            gains, own = tree.gains(strategy, seat), tree.seat_C == seat
            expected = np.add.reduceat(strategy * gains, tree.offsets[:-1])
            regret = np.where(own, np.maximum(regret + gains - np.repeat(expected, np.diff(tree.offsets)), 0), regret)
            strategy = np.where(own, tree.normalised(regret), strategy)
            average += np.where(own, iteration * tree.own_reach(strategy, seat) * strategy, 0.0)
    return tree.normalised(average)
