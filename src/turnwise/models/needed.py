"""Compute in the last layer of a model only what is read of it.

The loss reads states before generated tokens, sampling that after a prompt. In the last layer other tokens need keys
and values alone: no query, and no feed-forward layer. Results and gradients are the same up to rounding.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from turnwise.models.below import KINDS

MOST = 0.75
"""Share of the tokens up to which selecting them takes less time than computing all, where rows have several."""


@contextmanager
def reading(model: PreTrainedModel, places: torch.Tensor, shape: torch.Size) -> Iterator[None]:
    """Leave the states of other tokens undefined in passes of a model.

    Args:
        model: A causal LM; one of an unknown kind computes everything.
        places: `[read]` int64, the tokens that are read, counted over all rows; distinct, if gradients are computed.
        shape: Rows and tokens of the passes.
    """
    decoder: Any = model.get_decoder()
    with ExitStack() as stack:
        if type(decoder).__name__ in KINDS and shape[1] > 1 and len(places) <= MOST * shape.numel():
            last = decoder.layers[-1]
            if not last.gradient_checkpointing:  # else the layer is computed again, when the places are forgotten
                queries = getattr(last.self_attn, "q_proj", None)  # None: made together with keys and values
                for part in filter(None, (queries, last.self_attn.o_proj, last.mlp)):
                    stack.enter_context(_only(part, places, shape))
        yield


@contextmanager
def _only(part: torch.nn.Module, places: torch.Tensor, shape: torch.Size) -> Iterator[None]:
    """Let a layer see some tokens, and return zero for the others."""

    def select(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (inputs[0].flatten(0, 1).index_select(0, places)[None],)

    def spread(_: torch.nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        whole = output.new_zeros((shape.numel(), output.shape[-1]))
        return whole.index_copy(0, places, output[0]).unflatten(0, shape)

    hooks = part.register_forward_pre_hook(select), part.register_forward_hook(spread)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
