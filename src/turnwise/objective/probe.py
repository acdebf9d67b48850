"""Describe text to score in a given context, and its scores; `objective/prober.py` computes them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from turnwise.credit.segments import Segments


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """Text to score in a context.

    Attributes:
        sequence: Index of the sequence that the context begins.
        cut: Number of tokens of the context, at least 1.
        ids: Tokens that follow the context.
        first: Index of the first token of `ids` to score.
        stop: Index after the last token to score; None: all.
        targets: Tokens to score at these places instead of those of `ids`.
    """

    sequence: int
    cut: int
    ids: Sequence[int]
    first: int = 0
    stop: int | None = None
    targets: Sequence[int] | None = None

    @property
    def places(self) -> range:
        """Indices of the scored places in `ids`."""
        return range(len(self.ids))[self.first : self.stop]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of some probes.

    Attributes:
        logprob: `[scored tokens]` log-probabilities of the scored tokens (nats).
        entropy: `[scored tokens]` entropies of the distributions at their places (nats, full vocabulary).
        tokens: Segments of scored tokens, one per probe.
    """

    logprob: np.ndarray
    entropy: np.ndarray
    tokens: Segments
