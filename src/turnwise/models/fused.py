"""Normalise by one operator where transformers uses eight; recent versions of torch run it as one kernel of a GPU."""

import torch
from transformers import PreTrainedModel

from turnwise.models.joined import join

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "SmolLM3RMSNorm")
"""Layers that divide by the root of the mean square and multiply by their gains; others, such as Gemma's, add one."""


def fuse(model: PreTrainedModel) -> PreTrainedModel:
    """Replace layers of a frozen model on a GPU by layers of fewer operators; returns the model.

    It can load the weights of a plain model. A CPU gains nothing.
    """
    return join(fuse_norms(model)) if model.device.type == "cuda" else model


def fuse_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Replace the normalisation layers of a frozen model on any device; returns the model."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ in NORMS:
            model.set_submodule(name, FusedNorm(module.weight, module.variance_epsilon))  # pyright: ignore
    return model


class FusedNorm(torch.nn.Module):
    """Multiply by the gains what is divided by the root of its mean square, without rounding between the two."""

    def __init__(self, weight: torch.nn.Parameter, eps: float):
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Normalise, `[..., size]`."""
        return torch.nn.functional.rms_norm(states, self.weight.shape, self.weight, self.eps)
