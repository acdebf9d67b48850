"""Keep what a pass of the policy computed for sequences, so that probes continue from it instead of recomputing it."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from turnwise.models.caches import CACHE
from turnwise.objective.packing import can_pack

MOST_BYTES = 2**31
"""Bytes that are kept; each measure that probes recomputes micro-batches that do not fit."""


@dataclasses.dataclass(frozen=True)
class Computed:
    """What a pass computed for some sequences, padded on the right."""

    sequences: np.ndarray  # `[rows]` index of the sequence in each row
    hidden: torch.Tensor  # `[rows, length, width]` states after the last layer
    # Keys and values of each layer, `[rows, heads, length, size]` each
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, sequences: np.ndarray, output: Any) -> "Computed":
        """Take what a decoder with `use_cache=True` returned."""
        layers = [(layer.keys, layer.values) for layer in getattr(output, CACHE).layers]
        return cls(sequences, output.last_hidden_state, layers)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in (self.hidden, *(part for layer in self.layers for part in layer)))

    def select(self, sequences: Sequence[int], length: int) -> "Computed":
        """Select the first tokens of some of the sequences."""
        row_of = {sequence: row for row, sequence in enumerate(self.sequences.tolist())}
        rows = torch.tensor([row_of[sequence] for sequence in sequences], device=self.hidden.device)
        layers = [(keys[rows, :, :length], values[rows, :, :length]) for keys, values in self.layers]
        return Computed(np.array(sequences), self.hidden[rows, :length], layers)

    def cache(self) -> DynamicCache:
        """Return a cache for one further pass, which leaves these tensors as they are."""
        cache = DynamicCache()
        cache.layers.extend(_Behind(keys, values) for keys, values in self.layers)
        return cache


class _Behind(DynamicLayer):
    """A layer that shows given keys and values before new ones, and keeps none of the new ones."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.lazy_initialization(keys, values)
        self.given = keys, values

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        keys, values = self.given
        return torch.cat([keys, key_states], -2), torch.cat([values, value_states], -2)


class Contexts:
    """What passes of one model computed for the sequences of a step, each sequence at most once.

    Args:
        model: A causal LM, whose weights must not change as long as this is used.
    """

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self._kept: list[Computed] = []

    def __iter__(self) -> Iterator[Computed]:
        return iter(self._kept)

    @property
    def sequences(self) -> set[int]:
        """Indices of the sequences that are kept."""
        return {sequence for each in self._kept for sequence in each.sequences.tolist()}

    @property
    def wanted(self) -> bool:
        """Whether a pass should hand over its cache: the model's layers must attend to all earlier tokens."""
        return can_pack(self.model)

    def keep(self, sequences: np.ndarray, output: Any) -> None:
        """Keep what a decoder with `use_cache=True` returned, unless it made no cache or there is no room."""
        if getattr(output, CACHE) is None:
            return
        made = Computed.of(sequences, output)
        if made.num_bytes + sum(each.num_bytes for each in self._kept) <= MOST_BYTES:
            self._kept.append(made)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
