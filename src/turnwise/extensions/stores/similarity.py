"""Find texts that are similar to a text, by their words in order."""

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

COMPARED = 500
"""Number of first characters of a text that count."""


def words_of(text: str) -> list[str]:
    """Return the words of a text that are compared."""
    return text[:COMPARED].split()


def similarity(one: Sequence[str], other: Sequence[str]) -> float:
    """Return 2 M / T: M words in matching blocks, T words of both texts.

    1 for equal texts, 0 for texts without a common word.

    Reference: the ratio of Python's `difflib` (Ratcliff and Obershelp), over words.
    """
    return 1.0 if list(one) == list(other) else difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


class Similar:
    """Compare a text with many."""

    def __init__(self, texts: Sequence[str]):
        self.words = [words_of(text) for text in texts]
        known = sorted({word for words in self.words for word in words})
        self._place = {word: place for place, word in enumerate(known)}
        self._count = np.zeros((len(texts), len(known)), dtype=np.int16)
        for row, words in enumerate(self.words):
            for word, times in Counter(words).items():
                self._count[row, self._place[word]] = times
        self._total = np.array([len(words) for words in self.words], dtype=np.int64)

    def bounds(self, words: Sequence[str]) -> np.ndarray:
        """Return an upper bound of the similarity of each text, `[texts]`: that of texts with the same words sorted."""
        times = {self._place[word]: number for word, number in Counter(words).items() if word in self._place}
        common = np.minimum(self._count[:, list(times)], np.array(list(times.values()), dtype=np.int16)).sum(1)
        total = self._total + len(words)
        return np.where(total > 0, 2 * common / np.maximum(total, 1), 1.0)

    def ranked(self, words: Sequence[str], tie: np.ndarray, least: float) -> Iterator[tuple[int, float]]:
        """Yield texts with their upper bound, the largest first; ties go to the largest `tie`."""
        bounds = self.bounds(words)
        for place in np.lexsort((-tie, -bounds)).tolist():
            if bounds[place] < least:
                return
            yield place, float(bounds[place])
