"""How observations and responses become one append-only list of token ids."""

import dataclasses
import functools

from transformers import PreTrainedTokenizerBase

from turnwise.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Format:
    """Templates around observations; the model's response follows each, and ends with the stop token.

    Every piece of text is encoded once, when it is appended. Generated ids are kept as they were sampled.

    Attributes:
        tokenizer: The policy's tokenizer.
        first: Template of the first observation, with "{observation}".
        following: Template of the others.
        stop: The token that ends a response.
    """

    tokenizer: PreTrainedTokenizerBase
    first: str
    following: str
    stop: str

    @functools.cached_property
    def stop_id(self) -> int:
        """Id of the stop token."""
        stop_id = self.tokenizer.convert_tokens_to_ids(self.stop)
        if not isinstance(stop_id, int) or stop_id == self.tokenizer.unk_token_id:
            raise ConfigError(f"the stop token {self.stop!r} is not one token of this tokenizer")
        return stop_id

    def prompt_ids(self, observation: str, *, first: bool) -> list[int]:
        """Tokens to append for an observation."""
        return list(self._encode((self.first if first else self.following).format(observation=observation)))

    def text(self, response_ids: list[int]) -> str:
        """The response as the world reads it, without special tokens."""
        return str(self.tokenizer.decode(response_ids, skip_special_tokens=True)).strip()

    @functools.cached_property
    def _encode(self):
        encode = lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
        return functools.lru_cache(maxsize=65536)(encode)
