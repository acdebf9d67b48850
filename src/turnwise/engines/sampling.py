"""Sample tokens with the inverse distribution function and uniform numbers that do not depend on the schedule."""

import numpy as np
import torch

from turnwise.engines.base import Sampling, Tempering

MIN_ENTROPY = 1e-8
"""Lower bound of the entropy before the logarithm (nats)."""
RANKED = 64
"""Tokens that `top_p` ranks at first; ranking a whole vocabulary takes far longer, on a CPU."""


def uniform(seed: int, conversation: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Draw a number in `[0, 1)` per token: `hash(seed, conversation, position) / 2^24`.

    Args:
        seed: Seed of the sampling.
        conversation: Number of the conversation, `[rows]` int64.
        position: Place of the token in its conversation, `[rows]` int64.

    Returns:
        `[rows]` float32: the upper 24 of 64 bits, which a float32 holds exactly.

    Reference: the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014.
    """
    bits = _mix(np.array([seed % 2**63], dtype=np.uint64) + _INCREMENT)  # an array wraps around, a number would warn
    for part in (conversation, position):
        bits = _mix(bits + part.astype(np.uint64) + _INCREMENT)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def sample(
    logits: torch.Tensor, sampling: Sampling, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw one token per row: the first whose cumulative probability exceeds `uniform`.

    Args:
        logits: `[rows, vocabulary]` float32.
        sampling: Temperature, temperature per token, and top_p.
        uniform: `[rows]` in `[0, 1)`.

    Returns:
        Tokens, their log-probabilities (nats) under the distribution that they were drawn from, and the entropies
        (nats) of the full distribution at this temperature, before top_p and the temperature per token: `[rows]` each.
        Logits that are not finite give log-probabilities that are not finite.
    """
    as_given = sampling.temperature in (0, 1)  # greedy choices have the probabilities that the model gives
    logprobs = torch.log_softmax(logits if as_given else logits / sampling.temperature, -1)
    probability = logprobs.exp()
    entropy = -(probability * logprobs).sum(-1)
    if sampling.temperature == 0:
        best = logprobs.max(-1)
        return best.indices, best.values, entropy
    if sampling.tempering:
        logprobs = torch.log_softmax(logprobs / _factor(entropy, sampling.tempering)[:, None], -1)
        probability = logprobs.exp()
    if sampling.top_p < 1:
        return *_draw_likely(logprobs, uniform, sampling.top_p), entropy
    return *_draw(logprobs, probability, uniform), entropy


def spread(logits: torch.Tensor, embeddings: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Measure how little the most likely tokens resemble each other: `-(|sum_a p_a e_a|^2 - sum_a p_a^2)`.

    The sums run over the `sampling.spread_top` most likely tokens a, with their probabilities in the full distribution
    and their embeddings, scaled to length 1. So it is minus the sum of `p_a p_b cos(e_a, e_b)` over different a and b.

    Args:
        logits: `[rows, vocabulary]` float32.
        embeddings: `[vocabulary, width]` input embeddings of the tokens.
        sampling: Temperature and number of tokens.

    Returns:
        `[rows]`, from -1 to 1.

    Reference: ROSE, arXiv 2601.05053; released code ZiqiZhao1/ROSE-rl.
    """
    probability = torch.softmax(logits / (sampling.temperature or 1.0), -1)
    probability, token = probability.topk(min(sampling.spread_top, logits.shape[-1]))
    direction = torch.nn.functional.normalize(embeddings[token].float(), dim=-1)
    mean = (probability[..., None] * direction).sum(-2)
    return probability.square().sum(-1) - mean.square().sum(-1)


def _draw(
    logprobs: torch.Tensor, probability: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row, and return it with its log-probability."""
    cumulative = probability.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    last = torch.searchsorted(cumulative, total)  # the last token with nonzero probability
    token = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).minimum(last)
    token = token.clamp(max=logprobs.shape[-1] - 1)  # logits that are not finite have no last token
    return token[:, 0], logprobs.gather(-1, token)[:, 0]


def _draw_likely(
    logprobs: torch.Tensor, uniform: torch.Tensor, top_p: float, tokens: int = RANKED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the most likely tokens that have the probability `top_p` together, in the order of the vocabulary."""
    vocabulary = logprobs.shape[-1]
    tokens = min(tokens, vocabulary)
    ranked, index = logprobs.topk(tokens, -1)
    probability = ranked.exp()
    dropped = probability.cumsum(-1) - probability >= top_p
    index, order = index.masked_fill(dropped, vocabulary).sort(-1)
    kept = torch.log_softmax(ranked.masked_fill(dropped, -torch.inf).gather(-1, order), -1)
    place, logprob = _draw(kept, kept.exp(), uniform)
    token = index.gather(-1, place[:, None])[:, 0].clamp(max=vocabulary - 1)
    wider = ~dropped[:, -1]  # rows that may keep more tokens
    if tokens < vocabulary and wider.any():
        token[wider], logprob[wider] = _draw_likely(logprobs[wider], uniform[wider], top_p, 64 * tokens)
    return token, logprob


def _factor(entropy: torch.Tensor, tempering: Tempering) -> torch.Tensor:
    """Return the factor on the temperature of each row, from its entropy (nats)."""
    distance = entropy.clamp(min=MIN_ENTROPY).log() - tempering.pivot
    reach = torch.where(distance > 0, tempering.above, tempering.below)
    level = torch.where(reach > 0, distance / reach, distance.sign()).clamp(-1.0, 1.0)
    return 1.0 + tempering.strength * (level.abs() if tempering.sizes_only else level)


_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
