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
FEW = 64
"""Up to this many tokens per row, `cached` attention takes the heads of a group together; beyond, it gains nothing."""
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


def aligns(device: torch.device) -> bool:
    """Return whether kernels on a device read the rows of a mask in aligned parts."""
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
        attention_mask: `[rows, 1, tokens, keys]`, as SDPA takes it.
        paths: Paths of a packed row. Work and memory grow with the tokens that a path adds times its length, not with
            the square of the row.
        cached: Few tokens per row attend to many keys, without gradients. transformers repeats keys for every head of
            a group, before its version 5.23 even for one token.
        options: Other keywords of transformers.
    """
    if paths is not None:
        return _along(paths, module, query, key, value, options), None
    plain = options.get("softcap") is None and options.get("position_bias") is None
    few = query.shape[2] <= FEW and query.device.type == "cpu"
    if cached and plain and few and attention_mask is not None:
        return _by_group(query, key, value, attention_mask, options.get("scaling")), None
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


def _by_group(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attend with the heads of a group as queries of one head; returns `[rows, tokens, heads, size]`."""
    rows, heads, tokens, size = query.shape
    per_group = heads // key.shape[1]
    if tokens * per_group == 1 and query.dtype == torch.bfloat16 and not _multiplies_vectors():
        query = query.expand(-1, -1, 2, -1)
    elif tokens > 1:
        mask = mask.expand(-1, per_group, -1, -1).reshape(rows, 1, -1, key.shape[2])
    queries = query.reshape(rows, key.shape[1], -1, size)
    result = torch.nn.functional.scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
    return result.reshape(rows, heads, -1, value.shape[-1])[:, :, :tokens].transpose(1, 2)


def _multiplies_vectors() -> bool:
    """Return whether SDPA takes less time for one query in bfloat16 than for two.

    With AMX it takes less than half of it. Where MKL has to convert bfloat16, it takes two to five times as long.
    """
    return torch.cpu._is_amx_tile_supported()


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
