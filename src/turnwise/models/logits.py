"""Know what a model does to the logits of its output layer, since ours are computed from hidden states."""

from typing import Any

import torch
from transformers import PreTrainedModel

from turnwise.base.errors import ConfigError

CLOSE = 1e-3
"""Largest relative difference between outputs of a model that are the same but for rounding."""


def logit_factor(model: PreTrainedModel) -> float:
    """Return the number by which a model multiplies what its output layer returns, such as 1/8 in Granite."""
    return getattr(model, "_turnwise_logit_factor", 1.0)


@torch.no_grad()
def find_logit_factor(model: Any, name: str) -> None:
    """Compare a model's logits of a few tokens with those of its output layer, and keep their ratio with the model.

    Raises:
        ConfigError: They are no multiple of each other, as with `final_logit_softcapping`.
    """
    config, layer = model.config.get_text_config(), model.get_output_embeddings()
    if getattr(config, "final_logit_softcapping", None):
        raise ConfigError(f"{_named(name)} caps its logits (final_logit_softcapping), which is not supported")
    ids = torch.arange(1, 9, device=model.device)[None] % config.vocab_size
    own = model(input_ids=ids, use_cache=False).logits.double()
    plain = layer(model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state).double()
    factor = float((own * plain).sum() / (plain * plain).sum().clamp_min(1e-30))
    if not (own - factor * plain).abs().max() <= CLOSE * own.abs().max().clamp_min(1e-30):
        raise ConfigError(f"{_named(name)} computes its logits in a way of its own, which is not supported")
    if abs(factor - 1) > CLOSE:
        model._turnwise_logit_factor = factor


def _named(name: str) -> str:
    return f"model.name={name!r}: this model"
