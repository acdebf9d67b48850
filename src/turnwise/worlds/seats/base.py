"""Define games, their tasks, and the steps of a match.

A game is a function of its history: the tuple of everything played, including chance. A match is one play of it. Its
environment asks the seats in turn; see `turnwise.worlds.seats.match`.
"""

import dataclasses
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

History = tuple[str, ...]
"""Everything played so far: actions of the seats and outcomes of chance, in order."""

CHANCE, ENDED = -1, -2
"""What acts instead of a seat."""
ROLES = ("first", "second")
"""Roles of the seats of most games."""
POLICY = "policy"
"""Player of a seat whose responses come from outside the environment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deal:
    """A task: one match.

    Attributes:
        seed: Decides chance, and the draws of players inside the environment.
        players: Who plays each seat: `POLICY`, or the name of an opponent.
        opening: Actions that were played before.
        roles: Role of each seat, as its `Game` has it.
    """

    seed: int
    players: tuple[str, ...]
    opening: History = ()
    roles: tuple[str, ...] = ROLES


class MatchOutcome(NamedTuple):
    """How a match ended for a seat.

    Attributes:
        success: Whether the seat reached its goal.
        result: Name of the result, such as "win".
        score: From 0, the worst, to 1, the best.
        objectives: Several goals of the match by name, each from 0 to 1; empty where success is the only one.
    """

    success: bool
    result: str
    score: float
    objectives: Mapping[str, float] = {}


def contested(won: float) -> MatchOutcome:
    """Return the outcome of a game where one seat wins from the other: success means not losing.

    Args:
        won: What the seat has won; negative if it lost.
    """
    result = "win" if won > 0 else "loss" if won < 0 else "draw"
    return MatchOutcome(won >= 0, result, {"win": 1.0, "draw": 0.5, "loss": 0.0}[result])


class Game:
    """Rules of a game, as functions of the history.

    Attributes:
        name: Name in records.
        rules: Rules as text, for players that read them.
        roles: Role of each seat. Seats with the same role are a team.
        most_turns: Largest number of actions of one role in a match.
        exact: Whether the expert plays an equilibrium (up to numerical precision).
        openings: Whether a match may begin after random actions.
        tree: All histories as a `Tree`, so that exploitability can be computed; None if there are too many, or if the
            returns of the seats do not sum to 0.
    """

    name: str
    rules: str
    most_turns: int
    roles: tuple[str, ...] = ROLES
    exact, openings = False, False
    tree: Any = None

    def actor(self, history: History) -> int:
        """Return the seat that acts, `CHANCE` or `ENDED`."""
        raise NotImplementedError

    def chances(self, history: History) -> Mapping[str, float]:
        """Return the outcomes of chance and their probabilities; none by default."""
        return {}

    def actions(self, history: History) -> Sequence[str]:
        """Return the admissible actions of the seat that acts."""
        raise NotImplementedError

    def returns(self, history: History) -> tuple[float, ...]:
        """Return what each seat has won at the end."""
        raise NotImplementedError

    def outcome(self, history: History, seat: int) -> MatchOutcome:
        """Return how the match ended for a seat, by default where one seat wins from the other."""
        return contested(self.returns(history)[seat])

    def view(self, history: History, seat: int) -> str:
        """Describe what a seat sees."""
        raise NotImplementedError

    def key(self, history: History, seat: int) -> Hashable:
        """Name the state for a seat: by default its view, which tells all that it knows."""
        return self.view(history, seat)

    def expert(self, history: History, rng: random.Random) -> str:
        """Choose a strong action for the seat that acts."""
        raise NotImplementedError

    def value(self, history: History) -> float | None:
        """Return what the first seat wins if all play perfectly from here; None if it is not known, or hidden."""
        return None

    def words(self) -> str:
        """Return a text with all words of observations and actions."""
        raise NotImplementedError


def generator(seed: int, history: History, what: str) -> random.Random:
    """Return the generator of the draws at one place of a match."""
    return random.Random(f"{seed} {what} {' '.join(history)}")
