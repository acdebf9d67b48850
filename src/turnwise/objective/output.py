"""Log-probabilities and entropies from an output layer that is one matrix, with their gradient, a chunk at a time.

With logits `z = W h / temperature`, `p = softmax(z)` and entropy `H`, for a gradient `g` of the log-probability of the
target and `e` of the entropy:

    d / d z_v = g (1[v = target] - p_v) - e p_v (log p_v + H)

The backward pass computes the logits of a chunk again, turns them into this in place, and adds to one gradient of the
matrix. Autograd makes about ten passes over them, and a new gradient of the matrix for each chunk.

A frozen matrix needs no logits again: the gradient of one token's log-probability with respect to its state has the
size of that state, so the forward pass computes it while it has the logits. An entropy term computes them again.
"""

from typing import Any

import torch
from torch.nn.functional import embedding, linear


def is_linear(layer: torch.nn.Module) -> bool:
    """Return whether a layer is one matrix without bias."""
    return type(layer) is torch.nn.Linear and layer.bias is None


def linear_logprobs(
    hidden: torch.Tensor, layer: torch.nn.Module, targets: torch.Tensor, temperature: float, chunk_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probabilities of `targets` and entropies (nats), `[tokens]` float32 each.

    Args:
        hidden: `[tokens, width]` hidden states.
        layer: Output layer; see `is_linear`.
        targets: `[tokens]` int64 token ids.
        temperature: Divisor of the logits.
        chunk_tokens: Tokens whose logits exist at once.
    """
    return _LinearLogprobs.apply(hidden, layer.weight, targets, temperature, chunk_tokens)  # pyright: ignore


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float, chunk: int
    ):
        kind = hidden.device.type
        ctx.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        ctx.temperature, ctx.chunk, ctx.frozen = temperature, chunk, not ctx.needs_input_grad[1]
        ctx.set_materialize_grads(False)
        matrix, slope = weight.to(ctx.dtype), ctx.frozen and ctx.needs_input_grad[0]
        parts = [
            _one_chunk(states, matrix, target, temperature, slope)
            for states, target in zip(hidden.to(ctx.dtype).split(chunk), targets.split(chunk), strict=True)
        ]
        logprob, entropy, *kept = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, targets, entropy, *kept)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None):
        hidden, weight, targets, entropy, log_total, *slope = ctx.saved_tensors
        of_logprob, of_entropy = (None if grad is None else grad[:, None] / ctx.temperature for grad in grads)
        if slope and of_entropy is None:
            assert of_logprob is not None
            return (of_logprob * slope[0]).to(hidden.dtype), None, None, None, None
        if of_logprob is None:
            of_logprob = torch.zeros_like(entropy)[:, None]
        matrix, of_weight, of_hidden = weight.to(ctx.dtype), None, []
        if not ctx.frozen:
            of_weight = torch.zeros_like(weight).index_add_(0, targets, (of_logprob * hidden).to(weight.dtype))
        for begin in range(0, len(targets), ctx.chunk):
            at = slice(begin, begin + ctx.chunk)
            states, factor = hidden[at].to(ctx.dtype), of_logprob[at]
            share = _logits(states, matrix, ctx.temperature).sub_(log_total[at, None])
            if of_entropy is not None:
                factor = (share + entropy[at, None]).mul_(of_entropy[at]).add_(factor)
            share = share.exp_().mul_(factor).to(ctx.dtype)
            of_hidden.append(-(share @ matrix))
            if of_weight is None:
                continue
            if ctx.dtype == of_weight.dtype:
                of_weight.addmm_(share.T, states, alpha=-1)  # in place: no second matrix
            else:
                of_weight -= share.T @ states
        total = torch.cat(of_hidden).addcmul_(embedding(targets, matrix), of_logprob.to(ctx.dtype))
        return total.to(hidden.dtype), of_weight, None, None, None


def _one_chunk(
    states: torch.Tensor, matrix: torch.Tensor, target: torch.Tensor, temperature: float, slope: bool
) -> tuple[torch.Tensor, ...]:
    """Return log-probability, entropy, logarithm of the sum of all exponentials, and perhaps the slope of the first."""
    logits = _logits(states, matrix, temperature)
    most = logits.amax(-1, keepdim=True)
    of_target = logits.gather(-1, target[:, None]) - most
    share = logits.sub_(most).exp()
    total = share.sum(-1, keepdim=True)
    log_total = total.log()
    slopes = [embedding(target, matrix) - (share.to(matrix.dtype) @ matrix) / total] if slope else []
    entropy = log_total - share.mul_(logits).sum(-1, keepdim=True) / total  # in place: no third array
    columns = of_target - log_total, entropy, most + log_total
    return (*(column[:, 0] for column in columns), *slopes)


def _logits(states: torch.Tensor, matrix: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = linear(states, matrix).float()
    return logits if temperature == 1 else logits.div_(temperature)
