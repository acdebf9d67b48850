"""Define the engine protocol: an engine generates responses.

A conversation is a growing list of token ids. For each response, an engine gets the whole list and returns new ids with
their log-probabilities. It may cache what it computed for the prefix (`local` keeps a KV cache). Each request is
awaited separately, so no trajectory waits for the longest response or the slowest environment.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Tempering:
    """Temperature per token, from the entropy of its distribution; made outside the engine.

    Attributes:
        strength: Largest relative change of the temperature.
        pivot: Logarithm of the entropy at which the temperature does not change.
        above: Distance above the pivot, in log-entropy, from which the change is largest.
        below: Distance below it.
        sizes_only: Raise the temperature of tokens below the pivot too, as HAPO's release does.
    """

    strength: float
    pivot: float
    above: float
    below: float
    sizes_only: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of the sampling.

    Attributes:
        max_new_tokens: Maximum response length, including the stop token.
        stop_ids: Token ids that end a response; the response includes the sampled one.
        stop: Texts that also end a response; the response includes the token that completes one.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Sample from the smallest set of tokens with this much probability.
        seed: Same seed, draws, prompt and weights give the same response, whatever else is generated.
        draws: Number that the random draws depend on; None: that of the conversation.
        tempering: Temperature per token, for engines that can; a server cannot.
        begun: Last tokens of the prompt that begin the response. `max_new_tokens` and stop texts count them; the
            `Generation` lacks them.
        spread_top: Most likely tokens whose embeddings `Generation.spreads` compares, for engines that can; 0: none.
        schema: JSON schema that the response must follow, for engines that can constrain it; the local one cannot.
        actor: Name of the agent that asks; its adapter generates if the model has one per role.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    draws: int | None = None
    tempering: Tempering | None = None
    begun: int = 0
    spread_top: int = 0
    schema: Mapping[str, Any] | None = None
    actor: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """One response.

    Attributes:
        token_ids: The generated tokens, including the stop token.
        logprobs: Log-probability of each under the distribution it was sampled from (nats).
        truncated: Neither a stop token nor a stop text came within `max_new_tokens`.
        entropies: Entropy of each token's distribution over the full vocabulary, at the temperature, before top_p and
            the temperature per token (nats); None if the engine does not measure it.
        spreads: How little the most likely tokens at each place resemble each other, see `turnwise.engines.sampling`;
            None without `spread_top`.
        version: Version of the weights that sampled it; see `Engine.update_weights`.
        state: `[hidden size]` hidden state that the first token was sampled from; None if the engine does not report
    it.
    """

    token_ids: list[int]
    logprobs: list[float]
    truncated: bool
    entropies: list[float] | None = None
    version: int = 0
    spreads: list[float] | None = None
    state: np.ndarray | None = dataclasses.field(default=None, compare=False)

    def joined(self, then: "Generation") -> "Generation":
        """Return this response continued by another; a measure that either lacks is None."""
        if not self.token_ids:
            return then
        return dataclasses.replace(
            then,
            token_ids=self.token_ids + then.token_ids,
            logprobs=self.logprobs + then.logprobs,
            entropies=_joined(self.entropies, then.entropies),
            spreads=_joined(self.spreads, then.spreads),
            state=self.state,
        )


def _joined(first: list[float] | None, then: list[float] | None) -> list[float] | None:
    return None if first is None or then is None else first + then


Decode = Callable[[Sequence[int]], str]
"""Decodes token ids to text, as a tokenizer does."""


def stop_tokens(stop: Sequence[str]) -> int:
    """Return how many tokens at the end of a response `ends_with_stop` reads."""
    # a token usually adds a character, but tokens that hold parts of characters can delay a text by many tokens
    return 4 * max(map(len, stop), default=0)


def ends_with_stop(stop: Sequence[str], ids: Sequence[int], decode: Decode) -> bool:
    """Return whether the last token of a response completes a stop text."""
    tail = decode(ids[-stop_tokens(stop) :])
    return any(text in tail for text in stop)


class Engine(Protocol):
    """Generate responses for many conversations concurrently."""

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation.

        Args:
            conversation: Number of the conversation; a new number starts one.
            prompt_ids: All its tokens so far: the previous prompt, the previous response, and what follows.
            sampling: Sampling settings.

        Raises:
            EngineFault: This response is lost; others can continue.
            EngineLost: The engine is lost, with all later responses.
        """
        ...

    async def update_weights(self, version: int = 0) -> None:
        """Load the current weights of the trainer's model. No response may be in progress.

        Must be called before the first response, and after each change of the weights. Later responses use these
        weights only; caches of earlier weights are dropped. It leaves nothing behind in the event loop.

        Args:
            version: Steps that trained these weights; later responses carry it.

        Raises:
            EngineLost: The engine cannot be reached.
        """
        ...

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, by default all. Must be called when one ends, and for all after the weights change.

        Unfinished responses of these conversations end in an `EngineFault`.
        """
        ...

    async def aclose(self) -> None:
        """Forget all conversations, and release resources of the running event loop."""
        ...


def give_back(engine: Engine, conversation: int) -> None:
    """Free a conversation's place in an engine that holds few, while its trajectory waits for something.

    The engine reuses the tokens if it still has them, else it computes them again.
    """
    if getattr(engine, "max_rows", None) is not None:
        engine.close([conversation])
