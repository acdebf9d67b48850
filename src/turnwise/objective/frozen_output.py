"""Differentiate log-probabilities through a frozen output layer without a second pass over the logits.

The gradient of one token's log-probability with respect to its hidden state has the size of that state. So the forward
pass computes it while it has the logits, and the backward pass only scales it:

    d logprob / d hidden = (W[target] - sum_v p_v W[v]) / temperature
    d entropy / d hidden = -(sum_v p_v (log p_v + entropy) W[v]) / temperature

The second is needed with an entropy term only; then the backward pass computes the logits again.
"""

from typing import Any

import torch


def is_frozen_linear(layer: torch.nn.Module) -> bool:
    """Return whether a layer is one matrix without bias that does not learn."""
    return type(layer) is torch.nn.Linear and layer.bias is None and not layer.weight.requires_grad


def frozen_logprobs(
    hidden: torch.Tensor, layer: torch.nn.Module, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probabilities and entropies (nats), `[tokens]` float32 each.

    Args:
        hidden: `[tokens, width]` hidden states.
        layer: Output layer, frozen; see `is_frozen_linear`.
        targets: `[tokens]` int64 token ids.
        temperature: Divisor of the logits.
    """
    return _FrozenLogprobs.apply(hidden, layer.weight, targets, temperature)  # pyright: ignore


class _FrozenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float):
        kind = hidden.device.type
        ctx.autocast = {"device_type": kind, "dtype": torch.get_autocast_dtype(kind)}
        ctx.autocast["enabled"] = torch.is_autocast_enabled(kind)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        logprobs = _logprobs(hidden, weight, temperature)
        probs = logprobs.exp()
        entropy = -(probs * logprobs).sum(-1)
        logprob = logprobs.gather(-1, targets[:, None])[:, 0]
        of_target = torch.nn.functional.embedding(targets, weight)
        slope = (of_target - probs.to(weight.dtype) @ weight).to(hidden.dtype) / temperature
        ctx.save_for_backward(hidden, weight, slope)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None):
        hidden, weight, slope = ctx.saved_tensors
        of_logprob, of_entropy = grads
        total = torch.zeros_like(hidden)
        if of_logprob is not None:
            total = of_logprob[:, None].to(hidden.dtype) * slope
        if of_entropy is not None:
            with torch.autocast(**ctx.autocast):
                logprobs = _logprobs(hidden, weight, ctx.temperature)
                probs = logprobs.exp()
                entropy = -(probs * logprobs).sum(-1, keepdim=True)
                fall = (probs * (logprobs + entropy)).to(weight.dtype) @ weight
            total = total - of_entropy[:, None].to(hidden.dtype) * fall.to(hidden.dtype) / ctx.temperature
        return total, None, None, None


def _logprobs(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    return torch.log_softmax(torch.nn.functional.linear(hidden, weight).float() / temperature, -1)
