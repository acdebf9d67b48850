"""Hold the KV cache of many conversations: one row per conversation, its keys and values contiguous."""

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class Rows(Cache):
    """Keys and values of many conversations.

    Before each forward pass, `place` sets which rows it feeds and where their tokens go. Padding is written beyond a
    row's end; no query sees it, and the row's next tokens overwrite it.
    """

    def __init__(self, num_layers: int):
        self._kept = [_Layer() for _ in range(num_layers + 1)]  # the last one: states below the layers that learn
        super().__init__(layers=list(self._kept[:-1]))

    def reserve(self, num_rows: int, num_places: int) -> None:
        """Reserve space for `num_rows` rows of `num_places` tokens."""
        for layer in self._kept:
            layer.reserve(num_rows, num_places)

    def place(self, rows: torch.Tensor | None, positions: torch.Tensor, length: int) -> None:
        """Set where the tokens of the next forward pass go.

        Args:
            rows: `[rows]` int64; None: the first rows, one per row of `positions`, which saves the attention a copy.
            positions: Places of the tokens in their rows, `[rows, tokens]` int64.
            length: Keys per row that the attention gets, masked ones included.
        """
        index = torch.arange(len(positions), device=positions.device) if rows is None else rows
        for layer in self._kept:
            layer.index, layer.contiguous, layer.positions, layer.length = (
                index[:, None],
                rows is None,
                positions,
                length,
            )

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first keys and values of one row to another."""
        for layer in self._kept:
            layer.copy(source, target, length)

    def note(self, states: torch.Tensor) -> None:
        """Write the states of the tokens of the pass, `[rows, tokens, width]`, for `noted`."""
        self._kept[-1].write(states[:, None], states[:, None, :, :0])

    def noted(self, row: int, length: int) -> torch.Tensor:
        """Copy the noted states of the first tokens of a row, `[length, width]`."""
        states = self._kept[-1].keys
        assert states is not None
        return states[row, 0, :length].clone()


class _Layer(CacheLayerMixin):
    """One layer, `[rows, heads, places, head size]`."""

    is_compileable = False
    is_sliding = False
    index: torch.Tensor
    positions: torch.Tensor
    contiguous: bool
    length: int
    capacity: tuple[int, int]

    def reserve(self, num_rows: int, num_places: int) -> None:
        self.capacity = num_rows, num_places
        if self.is_initialized:
            self._grow()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros((0, key_states.shape[1], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((0, value_states.shape[1], 0, value_states.shape[3]))
        self.is_initialized = True
        self._grow()

    def _grow(self) -> None:
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = self._grown(self.keys), self._grown(self.values)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        self.write(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self._seen(self.keys), self._seen(self.values)

    def write(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys[self.index, :, self.positions] = key_states.transpose(1, 2)
        self.values[self.index, :, self.positions] = value_states.transpose(1, 2)

    def _seen(self, storage: torch.Tensor) -> torch.Tensor:
        if self.contiguous:
            return storage[: len(self.positions), :, : self.length]
        return storage[:, :, : self.length].index_select(0, self.index[:, 0])

    def _grown(self, storage: torch.Tensor) -> torch.Tensor:
        num_rows, places = self.capacity
        if storage.shape[0] >= num_rows and storage.shape[2] >= places:
            return storage
        larger = storage.new_zeros((num_rows, storage.shape[1], places, storage.shape[3]))
        larger[: storage.shape[0], :, : storage.shape[2]] = storage
        return larger

    def copy(self, source: int, target: int, length: int) -> None:
        for storage in (self.keys, self.values) if self.is_initialized else ():
            assert storage is not None
            storage[target, :, :length] = storage[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given explicitly

    def get_max_length(self) -> int:
        return -1
