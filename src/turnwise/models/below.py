"""Start passes above the frozen lower layers of a model (`model.train = "top"`), from states that are known.

Generation has computed the states below the lowest layer that learns. Frozen layers do not change, so these states
stay valid for the update, however many steps later.
"""

import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

KINDS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Decoders that pass embeddings to their layers as they are, and whose layers add to the state of each token."""
MOST_BYTES = 2**29
"""Bytes of states that are kept; the oldest are dropped first."""


class Below:
    """States below the lowest layer that learns, of sequences by their tokens.

    A token takes the width of the model in numbers of the type that they were computed in: 1,152 bytes for SmolLM2-135M
    generating in bfloat16, and 8 bytes for its id. What is dropped, or was never kept, is computed when it is needed.

    Args:
        model: A causal LM.
        num_layers: Its frozen layers.
        updates: Updates that states are kept for.
        most_bytes: Bytes that are kept.
    """

    def __init__(self, model: PreTrainedModel, num_layers: int, updates: int = 1, most_bytes: int = MOST_BYTES):
        decoder: Any = model.get_decoder()
        self.num_layers, self.updates, self.most_bytes = num_layers, updates, most_bytes
        self.num_bytes, self._updated = 0, 0
        self._lower = _part(decoder, slice(num_layers), torch.nn.Identity())
        self._upper = _part(decoder, slice(num_layers, None), decoder.norm)
        self._kept: OrderedDict[bytes, tuple[int, torch.Tensor]] = OrderedDict()
        self._lock = threading.Lock()  # rollouts that are ahead of the update have a thread of their own

    def put(self, ids: np.ndarray, states: torch.Tensor) -> None:
        """Keep the states of some tokens, `[tokens, width]`."""
        with self._lock:
            self._drop(key := ids.tobytes())
            self._kept[key] = self._updated, states
            self.num_bytes += len(key) + states.nbytes
            while self.num_bytes > self.most_bytes:
                self._drop(next(iter(self._kept)))

    def put_all(self, sequences: Sequence[np.ndarray], states: torch.Tensor) -> None:
        """Keep the states of sequences without their last tokens, `[sequences, length, width]`."""
        for ids, own in zip(sequences, states.detach(), strict=True):
            self.put(ids[:-1], own[: len(ids) - 1].clone())

    def get(self, ids: np.ndarray) -> torch.Tensor | None:
        """Return the states of exactly these tokens, if they are kept."""
        return self._kept.get(ids.tobytes(), (0, None))[1]

    def end_update(self) -> None:
        """Drop the states that later updates do not learn from, such as those of evaluations."""
        with self._lock:
            self._updated += 1
            for key in [key for key, (updated, _) in self._kept.items() if updated <= self._updated - self.updates]:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        if key in self._kept:
            self.num_bytes -= len(key) + self._kept.pop(key)[1].nbytes

    def hidden(self, sequences: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
        """Compute states after the last layer, `[sequences, length, width]`, padded on the right.

        Those of the last token of each sequence are undefined: nothing is generated after it.
        """
        found = {number: states for number, ids in enumerate(sequences) if (states := self.get(ids[:-1])) is not None}
        if missing := [number for number in range(len(sequences)) if number not in found]:
            ids = pad_sequence([torch.from_numpy(sequences[number]) for number in missing], batch_first=True)
            with torch.no_grad():
                computed = self._lower(input_ids=ids.to(device), use_cache=False).last_hidden_state
            self.put_all([sequences[number] for number in missing], computed)
            for number, states in zip(missing, computed, strict=True):
                found[number] = states[: len(sequences[number]) - 1]
        length, width = max(map(len, sequences)), self._upper.embed_tokens.weight.shape[1]
        begin = torch.zeros((len(sequences), length, width), dtype=self._upper.embed_tokens.weight.dtype, device=device)
        for number, states in found.items():
            begin[number, : len(states)] = states
        return self._upper(inputs_embeds=begin, use_cache=False).last_hidden_state


_BELOW: "weakref.WeakKeyDictionary[PreTrainedModel, Below]" = weakref.WeakKeyDictionary()


def keep_states(model: Any, updates: int = 1) -> None:
    """Keep the states below the trainable layers of a model from now on, if it has frozen ones and is of a known kind.

    Its layers must stay frozen or trainable as they are. What is generated is kept for this number of updates.
    """
    if num_layers := num_frozen(model):
        _BELOW[model] = Below(model, num_layers, updates)


def kept_states(model: Any) -> Below | None:
    """Return the states that `keep_states` has a model keep."""
    return _BELOW.get(model)


def num_frozen(model: Any) -> int:
    """Count the layers below the lowest trainable one; 0 if embeddings are trainable too, or for an unknown kind."""
    if not isinstance(model, PreTrainedModel) or type(decoder := model.get_decoder()).__name__ not in KINDS:
        return 0
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    parts: list[Any] = [decoder.embed_tokens, *decoder.layers]  # pyright: ignore
    learns = [any(weight.requires_grad for weight in part.parameters()) for part in parts]
    return max(learns.index(True) - 1, 0) if True in learns and len(set(kinds)) <= 1 else 0


@contextmanager
def noting(model: PreTrainedModel, num_layers: int, note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call `note` with the states that enter the layer above this number of layers; with 0, do nothing."""
    if not num_layers:
        yield
        return
    layer: Any = model.get_decoder().layers[num_layers]  # pyright: ignore
    hook = layer.register_forward_pre_hook(lambda _, inputs: note(inputs[0]))
    try:
        yield
    finally:
        hook.remove()


def _part(decoder: torch.nn.Module, layers: slice, norm: torch.nn.Module) -> Any:
    """Return a decoder of some of the layers of another, which shares their weights."""
    part: Any = copy.copy(decoder)
    part._modules = dict(decoder._modules)
    part.layers = torch.nn.ModuleList(decoder.layers[layers])  # pyright: ignore
    part.norm = norm
    return part
