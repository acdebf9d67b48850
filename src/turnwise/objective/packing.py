"""Pack sequences that begin alike into one row: a tree, in which every token of a shared prefix is computed once.

A token attends to the tokens of its own path only, at the position that it has there. So hidden states, and gradients
through them, equal those of the separate sequences.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.models import attention
from turnwise.models.attention import Path
from turnwise.models.logits import CLOSE


@dataclasses.dataclass(frozen=True)
class Packed:
    """Sequences in one row. Each sequence adds the tokens that no earlier sequence of its tree begins with."""

    token_ids: np.ndarray  # `[tokens]` int64
    positions: np.ndarray  # `[tokens]` position of each token in its sequence
    places: list[np.ndarray]  # one array per sequence: where its tokens lie in the row
    num_shared: np.ndarray  # `[sequences]` first tokens of each sequence that an earlier sequence added

    @property
    def num_added(self) -> np.ndarray:
        """Return the number of tokens that each sequence adds, `[sequences]`."""
        return np.array([len(places) for places in self.places]) - self.num_shared


def pack(token_ids: Sequence[np.ndarray], tree: np.ndarray) -> Packed:
    """Pack sequences.

    Args:
        token_ids: One int64 array per sequence.
        tree: `[sequences]` number of the tree of each; only sequences of a tree share tokens.
    """
    places: list[np.ndarray] = []
    num_shared = np.zeros(len(token_ids), dtype=np.int64)
    packed: dict[int, list[int]] = {}  # sequences by tree
    total = 0
    for number, ids in enumerate(token_ids):
        earlier = packed.setdefault(int(tree[number]), [])
        alike = [_num_alike(token_ids[other], ids) for other in earlier]
        shared = num_shared[number] = max(alike, default=0)
        before = places[earlier[int(np.argmax(alike))]][:shared] if shared else np.zeros(0, dtype=np.int64)
        places.append(np.concatenate([before, np.arange(total, total + len(ids) - shared)]))
        total += len(ids) - shared
        earlier.append(number)
    added = [ids[shared:] for ids, shared in zip(token_ids, num_shared, strict=True)]
    positions = [np.arange(shared, len(ids)) for ids, shared in zip(token_ids, num_shared, strict=True)]
    return Packed(np.concatenate(added), np.concatenate(positions), places, num_shared)


def _num_alike(one: np.ndarray, other: np.ndarray) -> int:
    """Count the first tokens in which two sequences agree."""
    size = min(len(one), len(other))
    differs = np.flatnonzero(one[:size] != other[:size])
    return int(differs[0]) if len(differs) else size


def paths_of(packed: Packed, device: torch.device) -> list[Path]:
    """List the paths of a packed row in the order of their tokens; sequences that add nothing are left out."""
    paths, start = [], 0
    for places, shared in zip(packed.places, packed.num_shared.tolist(), strict=True):
        size = len(places)
        added = slice(start, start := start + size - shared)
        if size == shared:
            continue
        if not shared:
            paths.append(Path(added, None, None))
            continue
        mask = torch.arange(size, device=device) <= torch.arange(shared, size, device=device)[:, None]
        paths.append(Path(added, torch.from_numpy(places).to(device), mask[None, None]))
    return paths


def can_pack(model: PreTrainedModel) -> bool:
    """Return whether every layer of a model attends to all earlier tokens, by a function that can be replaced."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    whole = all(kind == "full_attention" for kind in kinds) if kinds else not getattr(config, "sliding_window", None)
    return whole and config._attn_implementation in ("sdpa", attention.NAME) and _follows_paths(model)


@torch.no_grad()
def _follows_paths(model: Any) -> bool:
    """Return whether the layers of a model get the paths of a packed row; some drop what they do not know.

    Tried once per model that was loaded: the two sequences of a small tree, packed and apart.
    """
    if (known := getattr(model, "_turnwise_follows_paths", True)) is not None:
        return known
    token_ids = [np.array(ids) % model.config.get_text_config().vocab_size for ids in ([1, 2, 3, 4], [1, 2, 5, 6])]
    packed = pack(token_ids, np.zeros(2, dtype=np.int64))
    with torch.autocast(model.device.type, enabled=False):
        together = packed_hidden(model, packed)[0]
        ids = torch.from_numpy(np.stack(token_ids)).to(model.device)
        apart = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    found = torch.stack([together[torch.from_numpy(places)] for places in packed.places])
    follows = bool((found - apart).abs().max() <= CLOSE * apart.abs().max())
    model._turnwise_follows_paths = follows
    return follows


def packed_hidden(model: PreTrainedModel, packed: Packed) -> torch.Tensor:
    """Compute the hidden states of a packed row after the last layer, `[1, tokens, width]`."""
    decoder, device = model.get_decoder(), model.device
    attention.use(model)
    ids, positions = (torch.from_numpy(column)[None].to(device) for column in (packed.token_ids, packed.positions))
    unused = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)  # else transformers would make a mask
    return decoder(
        input_ids=ids,
        position_ids=positions,
        attention_mask=unused,
        use_cache=False,
        paths=paths_of(packed, device),
    ).last_hidden_state
