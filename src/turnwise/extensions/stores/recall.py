"""Find a state's experiences in a store: the stored turns whose observation is most similar."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise.extensions.stores.rows import Row
from turnwise.extensions.stores.settings import MemoryConfig
from turnwise.extensions.stores.similarity import Similar, similarity, words_of
from turnwise.extensions.stores.store import Store

ADVICE = "advice"
"""Key of a stored trajectory's `info` with the advice of each of its turns, perhaps empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recalled:
    """An experience for a state."""

    advice: str  # what it says
    similarity: float  # similarity of its observation, from 0 to 1
    row: Row  # its origin

    @property
    def origin(self) -> dict[str, Any]:
        """Return provenance, for records."""
        row = self.row
        source = {"task": row.trajectory.task, "step": row.step, "success": row.trajectory.success}
        return source | {"similarity": round(self.similarity, 3)}


class Experiences:
    """Experiences of one kind, such as successes.

    Args:
        rows: Stored trajectories with their advice, oldest first.
    """

    def __init__(self, rows: Sequence[Row]):
        self._rows = rows
        places = [(number, turn) for number, row in enumerate(rows) for turn, text in enumerate(_advice(row)) if text]
        self._keys = places[::-1]  # the newest first
        self._row_K = np.array([number for number, _ in self._keys], dtype=np.int64)
        turns = [rows[number].trajectory.turns[turn] for number, turn in self._keys]
        self._observed = Similar([turn.observation for turn in turns])
        self._begun = Similar([row.trajectory.turns[0].observation for row in rows])

    def recall(self, observation: str, first: str, number: int, least: float) -> list[Recalled]:
        """Return up to `number` experiences of similar states, the most similar first.

        Ties go to tasks whose first observation has more words in common, then to the newest. No two have the same
        advice.

        Args:
            observation: Observation of the state.
            first: First observation of its trajectory.
            number: Maximum number of experiences.
            least: Minimum similarity.
        """
        if not self._keys or not number:
            return []
        words, found, known = words_of(observation), dict[str, Recalled](), dict[str, float]()
        kinship_K = self._begun.bounds(words_of(first))[self._row_K]
        for place, bound in self._observed.ranked(words, kinship_K, least):
            best = sorted((each.similarity for each in found.values()), reverse=True)[:number]
            if len(best) == number and bound <= best[-1]:
                break
            other = self._observed.words[place]
            text = " ".join(other)
            if text not in known:
                known[text] = similarity(words, other)
            number_of_row, turn = self._keys[place]
            row = self._rows[number_of_row]
            advice = _advice(row)[turn]
            if known[text] >= least and (advice not in found or known[text] > found[advice].similarity):
                found[advice] = Recalled(advice, known[text], row)
        return sorted(found.values(), key=lambda each: -each.similarity)[:number]


def _advice(row: Row) -> Sequence[str]:
    return row.trajectory.info.get(ADVICE, ())


class Memory:
    """Recall experiences of successes and of failures, once there are enough.

    Args:
        store: Stored trajectories with their advice.
        kept: Those of an earlier time; default: the current ones.
    """

    def __init__(self, store: Store[MemoryConfig], kept: Sequence[Row] | None = None):
        self.store, self.kept = store, kept
        self._rows: Sequence[Row] | None = None
        self._kinds: tuple[Experiences, Experiences] = (Experiences(()), Experiences(()))
        self._known: dict[tuple[str, str], list[Recalled]] = {}

    def recall(self, observation: str, first: str) -> list[Recalled]:
        """Return experiences for a state, those of successes first; see `Experiences.recall`."""
        settings, rows = self.store.settings, self.store.rows if self.kept is None else self.kept
        if rows is not self._rows:
            kinds = [[row for row in rows if row.trajectory.success == success] for success in (True, False)]
            self._rows, self._kinds, self._known = rows, (Experiences(kinds[0]), Experiences(kinds[1])), {}
        if len(rows) < settings.least:
            return []
        key = observation, first
        if key not in self._known:
            numbers = (settings.shown, settings.warnings)
            self._known[key] = [
                each
                for kind, number in zip(self._kinds, numbers, strict=True)
                for each in kind.recall(observation, first, number, settings.min_similarity)
            ]
        return self._known[key]
