"""Describe text to score in a given context, and its scores; `objective/prober.py` computes them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from turnwise.credit.segments import Segments


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """Text to score in a context."""

    sequence: int  # index of the sequence that the context begins
    cut: int  # number of tokens of the context, at least 1
    ids: Sequence[int]  # tokens that follow the context
    first: int = 0  # index of the first token of `ids` to score
    stop: int | None = None  # index after the last token to score; None: all
    targets: Sequence[int] | None = None  # tokens to score at these places instead of those of `ids`

    @property
    def places(self) -> range:
        """Indices of the scored places in `ids`."""
        return range(len(self.ids))[self.first : self.stop]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of some probes."""

    logprob: np.ndarray  # `[scored tokens]` log-probabilities of the scored tokens (nats)
    entropy: np.ndarray  # `[scored tokens]` entropies of the distributions at their places (nats, full vocabulary)
    tokens: Segments  # segments of scored tokens, one per probe
