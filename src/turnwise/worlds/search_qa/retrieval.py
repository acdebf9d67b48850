"""Define the retriever protocol, and BM25 retrieval."""

import math
from collections.abc import Sequence
from typing import Protocol

from turnwise.base.errors import ConfigError
from turnwise.worlds.bm25 import LuceneIndex
from turnwise.worlds.search_qa.files import Passage


class Retriever(Protocol):
    """Find passages; the same query must always find the same passages."""

    def __call__(self, query: str, k: int) -> Sequence[Passage]:
        """Return at most `k` passages, best first."""
        ...


K1, B = 1.5, 0.75
"""Default constants. On HotpotQA they find more than Pyserini's 0.9 and 0.4: see docs/log.md."""


class Bm25:
    """Retrieve passages by Lucene's BM25 over titles and texts.

    Args:
        passages: The corpus; its index is cached.
        k1: Saturation of the term frequency, 0 or more; Search-R1's sparse retriever uses 0.9.
        b: Weight of the passage length, 0 to 1; Search-R1 uses 0.4.

    Raises:
        ConfigError: k1 or b is out of range.
    """

    def __init__(self, passages: Sequence[Passage], *, k1: float = K1, b: float = B):
        check_constants(k1, b)
        self._passages = {passage.id: passage for passage in passages}
        texts = {passage.id: f"{passage.title}\n{passage.text}" for passage in passages}
        self._index = LuceneIndex.cached(texts, k1=k1, b=b)

    def __call__(self, query: str, k: int) -> list[Passage]:
        """Return the passages with the highest scores above 0; equal scores are ordered by id."""
        return [self._passages[id] for id in self._index.search(query, k)]


def check_constants(k1: float, b: float) -> None:
    """Raise a ConfigError unless k1 and b are in range."""
    if not 0 <= k1 < math.inf:
        raise ConfigError(f"environment.options.k1={k1!r}: expected a number of at least 0, such as {K1}")
    if not 0 <= b <= 1:
        raise ConfigError(f"environment.options.b={b!r}: expected a number from 0 to 1, such as {B}")
