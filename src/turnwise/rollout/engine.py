"""The engine protocol: what generates responses.

A conversation is a growing list of token ids. An engine gets the whole list each time and returns new ids with their log-probabilities; it
may keep what it computed for the prefix (`local` keeps a KV cache), because a conversation only ever grows: nothing is encoded twice.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample.

    Attributes:
        max_new_tokens: Longest response, the stop token included.
        stop_ids: Token ids that end a response; the one sampled belongs to it.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Sample from the smallest set of tokens with this much probability.
        seed: Same seed, prompts and weights give the same responses.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """One response.

    Attributes:
        token_ids: The generated tokens, the stop token included.
        logprobs: Log-probability of each under the distribution it was sampled from (nats).
        truncated: No stop token came within `max_new_tokens`.
    """

    token_ids: list[int]
    logprobs: list[float]
    truncated: bool


class Engine(Protocol):
    """Generates responses for many conversations at once."""

    def generate(self, prompts: Mapping[int, Sequence[int]], sampling: Sampling) -> dict[int, Generation]:
        """Continue conversations.

        Args:
            prompts: Conversation number to all of its token ids so far; those of an earlier call, extended.
            sampling: How to sample.

        Returns:
            One generation for each conversation.
        """
        ...

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, all of them by default. Must be called after the weights change."""
        ...
