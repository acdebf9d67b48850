"""The engine protocol: what generates responses.

A conversation is a growing list of token ids. An engine gets the whole list for each response and returns new ids with their log-probabilities;
it may keep what it computed for the prefix (`local` keeps a KV cache), because a conversation only ever grows: nothing is encoded twice.
Requests are awaited one by one, so that nobody waits for the longest response or the slowest world of all.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample.

    Attributes:
        max_new_tokens: Longest response, the stop token included.
        stop_ids: Token ids that end a response; the one sampled belongs to it.
        stop: Texts that end a response too; the token that completes one belongs to it.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Sample from the smallest set of tokens with this much probability.
        seed: Same seed, conversation number, prompt and weights give the same response, whatever else is generated beside it.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """One response.

    Attributes:
        token_ids: The generated tokens, the stop token included.
        logprobs: Log-probability of each under the distribution it was sampled from (nats).
        truncated: Neither a stop token nor a stop text came within `max_new_tokens`.
        entropies: Entropy of each token's distribution over the full vocabulary, at the temperature (nats); None where the engine does
            not measure it.
    """

    token_ids: list[int]
    logprobs: list[float]
    truncated: bool
    entropies: list[float] | None = None


Decode = Callable[[Sequence[int]], str]
"""Token ids to text, as a tokenizer does it."""


def says(stop: Sequence[str], ids: Sequence[int], decode: Decode) -> bool:
    """Whether a response that has just got its last token says a stop text now."""
    # a token adds a character at least, but the text of one may begin many tokens before where they hold parts of characters
    tail = decode(ids[-4 * max(map(len, stop), default=0) :])
    return any(text in tail for text in stop)


class Engine(Protocol):
    """Generates responses, for many conversations side by side."""

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation.

        Args:
            conversation: Its number; a new one starts it.
            prompt_ids: All of its tokens so far: those of its last call and of the response, and what came then.
            sampling: How to sample.

        Raises:
            EngineFault: This response is lost. Others may go on.
            EngineLost: So are all that follow.
        """
        ...

    async def update_weights(self) -> None:
        """Take over the weights that the trainer's model has now. Nothing may be being generated.

        Must be called before the first response, and after each change of the weights. What is generated from then on comes from these
        weights alone: nothing that was computed with others is used again. It leaves nothing behind in the event loop.

        Raises:
            EngineLost: The engine is not there to take them.
        """
        ...

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, all of them by default. Must be called when one ends, and for all after the weights change.

        What is still being generated for them ends in an `EngineFault`.
        """
        ...

    async def aclose(self) -> None:
        """Forget all conversations, and let go of what belongs to the running event loop: the next one may be another."""
        ...
