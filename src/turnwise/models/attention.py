"""Attend as a forward pass needs it: along the paths of a packed row, or from few tokens to many cached ones.

Registered among the attention functions of transformers; models with SDPA attention take it over.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "turnwise"
"""Name of `attend` among the attention functions of transformers."""
FEW = 32
"""Up to this many tokens per row, `cached` attention uses matrix products; beyond, SDPA is as fast."""
MOST_SCORES = 2**24
"""Scores up to which it is: products hold all of them at a time."""
ALIGNED = 16
"""Numbers of a mask that the kernels of a GPU read together; rows of another length would be copied in each layer."""


@dataclasses.dataclass(frozen=True)
class Path:
    """What some tokens of a packed row attend to."""

    added: slice  # the tokens, a slice of the row
    places: torch.Tensor | None  # where the whole sequence lies in the row; None: it is the slice
    # `[added, sequence]` bool, true where a token attends; None: all earlier tokens of the slice
    mask: torch.Tensor | None


def use(model: PreTrainedModel) -> bool:
    """Let a model attend by `attend` from now on; returns False, and changes nothing, if it does not attend by SDPA."""
    decoder = model.get_decoder()
    kind = decoder.config._attn_implementation
    if kind == "sdpa":  # permanently: a backward pass may recompute layers
        decoder.set_attn_implementation(NAME)
        kind = decoder.config._attn_implementation
    return kind == NAME


def additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what SDPA makes of a bool mask in every layer: 0 where a token attends, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def aligned(length: int) -> int:
    """Round the length of a row up to what GPUs read together."""
    return -(-length // ALIGNED) * ALIGNED


def adds_masks(device: torch.device) -> bool:
    """Return whether SDPA's kernels on a device add masks to the scores, and so convert bool ones to numbers."""
    return device.type == "cuda"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    paths: Sequence[Path] | None = None,
    cached: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend to all tokens of a mask, as transformers does by SDPA, unless a keyword asks for another way.

    Args:
        module: The attention layer.
        query: `[rows, heads, tokens, size]`.
        key: `[rows, groups of heads, keys, size]`.
        value: As `key`.
        attention_mask: `[rows, 1, tokens, keys]` bool, or what SDPA takes.
        paths: Paths of a packed row. Work and memory grow with the tokens that a path adds times its length, not with
            the square of the row.
        cached: Few tokens per row attend to many keys, without gradients. transformers repeats keys for every head of
            a group, before its version 5.23 even for one token, and SDPA is slow for one token in bfloat16 on a CPU.
        options: Other keywords of transformers.
    """
    if paths is not None:
        return _along(paths, module, query, key, value, options), None
    grouped, half = query.shape[1] > key.shape[1], query.dtype == torch.bfloat16
    plain = options.get("softcap") is None and options.get("position_bias") is None
    few = query.shape[2] <= FEW and query[..., 0].numel() * key.shape[2] <= MOST_SCORES
    worth = few and query.device.type == "cpu" and (grouped or half)
    if cached and plain and worth and attention_mask is not None:
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        return _by_products(query, key, value, attention_mask, scaling), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _along(
    paths: Sequence[Path],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor:
    parts = []
    for path in paths:
        at = path.added
        keys, values = (x[:, :, at] if path.places is None else x.index_select(2, path.places) for x in (key, value))
        parts.append(sdpa_attention_forward(module, query[:, :, at], keys, values, path.mask, **options)[0])
    return torch.cat(parts, 1)


def _by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attend by two products of matrices per group of heads; returns `[rows, tokens, heads, size]`."""
    rows, heads, tokens, size = query.shape
    keys, values = key.flatten(0, 1), value.flatten(0, 1)
    queries = query.reshape(len(keys), -1, size)  # the heads of a group one below the other
    # keys first: they are read as they lie in memory, where a transposed part of a larger cache would be copied
    # and softmax is slow along anything but the last axis in memory
    scores = torch.bmm(keys, queries.transpose(1, 2)).transpose(1, 2).contiguous().float().mul_(scaling)
    scores = scores.view(rows, key.shape[1], -1, tokens, key.shape[2]).masked_fill_(~mask[:, None], float("-inf"))
    weights = torch.softmax(scores, -1).to(value.dtype).view(len(keys), -1, key.shape[2])
    return torch.bmm(weights, values).view(rows, heads, tokens, size).transpose(1, 2)


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
