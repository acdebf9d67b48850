"""How observations and responses become token ids, and responses become what a world reads."""

import dataclasses
import functools
import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from turnwise.environments.base import Step, sound_text
from turnwise.errors import ConfigError

ADMISSIBLE = "\nAdmissible actions: "


@dataclasses.dataclass(frozen=True)
class Format:
    """Templates around observations; the model's response follows each, and ends with the stop token.

    Every piece of text is encoded once, when it is appended. Generated ids are kept as they were sampled.

    Attributes:
        tokenizer: The policy's tokenizer.
        first: Template of the first observation, with "{observation}".
        following: Template of the others. It continues a response that has its stop token.
        stop: The token that ends a response.
        close: Whether a response that was cut off gets its stop token before the next observation.
        admissible: Whether a prompt lists the actions that the world would accept.
        think: Whether a response reasons before it acts: `<think>...</think><action>...</action>`.
    """

    tokenizer: PreTrainedTokenizerBase
    first: str
    following: str
    stop: str
    close: bool = False
    admissible: bool = False
    think: bool = False

    @functools.cached_property
    def stop_id(self) -> int:
        """Id of the stop token."""
        stop_id = self.tokenizer.convert_tokens_to_ids(self.stop)
        if not isinstance(stop_id, int) or stop_id == self.tokenizer.unk_token_id:
            raise ConfigError(f"the stop token {self.stop!r} is not one token of this tokenizer")
        return stop_id

    def describe(self, step: Step, *, latest: bool = True) -> str:
        """What the policy reads of a step; the admissible actions where they are asked for and it is the latest."""
        if not (self.admissible and latest and step.admissible):
            return step.observation
        return f"{step.observation}{ADMISSIBLE}{sound_text(', '.join(step.admissible))}"

    def prompt_ids(self, observation: str, *, first: bool) -> list[int]:
        """Tokens to append for an observation."""
        template = self.first if first else self.following
        return list(self._encode(template.replace("{observation}", self._plain(observation))))

    def response_ids(self, action: str, thought: str = "") -> list[int]:
        """The response that says this, as a model would have generated it, the stop token included."""
        text = f"<think>{thought}</think><action>{action}</action>" if self.think else action
        return [*self._encode(text), self.stop_id]

    def remembered_ids(self, response_ids: Sequence[int]) -> list[int]:
        """A response as it is read again later: as it was sampled, but without its reasoning."""
        if self.think and (action := self._action(self.text(response_ids))) is not None:
            return [*self._encode(f"<action>{action}</action>"), self.stop_id]
        return self.closed(response_ids)

    def closed(self, response_ids: Sequence[int]) -> list[int]:
        """A response with its stop token, where the format asks for one."""
        ids = list(response_ids)
        return [*ids, self.stop_id] if self.close and ids[-1:] != [self.stop_id] else ids

    def text(self, response_ids: Sequence[int]) -> str:
        """The response without special tokens."""
        return str(self.tokenizer.decode(list(response_ids), skip_special_tokens=True)).strip()

    def action(self, text: str) -> tuple[str, bool]:
        """What the world reads of a response, and whether it had the form that was asked for."""
        action = self._action(text) if self.think else text
        return (text, False) if action is None else (action, True)

    def _action(self, text: str) -> str | None:
        found = re.findall(r"<action>(.*?)</action>", text, re.DOTALL)
        return found[-1].strip() if found else None

    def _plain(self, text: str) -> str:
        """A world's text with any special token in it broken up: a world may not end its own message."""
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.tokenizer.all_special_tokens)) or r"(?!)")

    @functools.cached_property
    def _encode(self):
        encode = lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
        return functools.lru_cache(maxsize=8192)(encode)  # of a page of 500 tokens an entry is some 16 kB
