"""Convert observations and responses to token ids, and responses to actions."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Step
from turnwise.environments.plain import sound_text
from turnwise.environments.tool_calls import MARKUP, THINK, last_tagged, without_reasoning
from turnwise.models import subgoals

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase  # pages and logs are read without it

ADMISSIBLE = "\nAdmissible actions: "
THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
OPENED = re.compile(r"\A(.*?)(?:</think>|\Z)", re.DOTALL)
"""Reasoning that the prompt has begun."""


@dataclasses.dataclass(frozen=True)
class Format:
    """Hold the templates around observations. A response follows each and ends with the stop token.

    Each text is encoded once, when it is appended. Generated ids are kept as sampled.
    """

    tokenizer: "PreTrainedTokenizerBase"  # the policy's tokenizer
    first: str  # template of the first observation, with "{observation}"
    following: str  # template of later observations. It follows a response with its stop token.
    stop: str  # token that ends a response
    close: bool = False  # whether a truncated response gets its stop token before the next observation
    admissible: bool = False  # whether a prompt lists the admissible actions
    think: bool = False  # whether a response reasons before it acts: `<think>...</think><action>...</action>`
    plan: bool = False  # whether a response states a subgoal before it acts; see `turnwise.models.subgoals`

    @functools.cached_property
    def stop_id(self) -> int:
        """Id of the stop token."""
        stop_id = self.tokenizer.convert_tokens_to_ids(self.stop)
        if not isinstance(stop_id, int) or stop_id == self.tokenizer.unk_token_id:
            raise ConfigError(f"the stop token {self.stop!r} is not a single token of this tokenizer")
        return stop_id

    @functools.cached_property
    def opens_reasoning(self) -> bool:
        """Whether a prompt ends with the tag that begins reasoning, so that a response begins inside it."""
        return self.first.rstrip().endswith(THINK)

    def describe(self, step: Step, *, latest: bool = True, subgoal: str = "") -> str:
        """Return what the policy reads of a step, if `latest` with the admissible actions and its current subgoal."""
        text = step.observation
        if self.admissible and latest and step.admissible:
            text += f"{ADMISSIBLE}{sound_text(', '.join(step.admissible))}"
        return f"{text}{subgoals.CURRENT}{subgoal}" if latest and subgoal else text

    def prompt_ids(self, observation: str, *, first: bool) -> list[int]:
        """Return the tokens to append for an observation."""
        template = self.first if first else self.following
        return list(self._encode(template.replace("{observation}", self.plain(observation))))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, in which special tokens count as such; see `plain`."""
        return list(self._encode(text))

    def response_ids(self, action: str, thought: str = "", *, subgoal: str = "", switch: bool = True) -> list[int]:
        """Return the ids of a response with this action, as a model would generate it, including the stop token."""
        action, thought, subgoal = map(self.plain, (action, thought, subgoal))
        begin = "" if self.opens_reasoning else THINK
        text = f"{begin}{thought}</think><action>{action}</action>" if self.think else action
        if self.plan:
            text = subgoals.write(action, subgoal, switch=switch)
        return [*self._encode(text), self.stop_id]

    def planned(self, response_ids: Sequence[int]) -> subgoals.Planned:
        """Return the parts of a plan-and-act response."""
        return self._read(tuple(response_ids))

    def thought_span(self, response_ids: Sequence[int]) -> tuple[int, int]:
        """Return the first token of a response's reasoning and the one after its last; equal if it has none.

        Reasoning that was cut short ends with the response. Without `think`, it is the whole response.
        """
        if not self.think:
            return 0, len(response_ids)
        ids = tuple(response_ids)
        begins_inside = self.opens_reasoning and not self._decode(ids).lstrip().startswith(THINK)
        return self._find(OPENED if begins_inside else THOUGHT, ids)

    def subgoal_after(self, response_ids: Sequence[int], subgoal: str) -> str:
        """Return the subgoal in force after a response: the first one, a new one, or the one before."""
        if not self.plan:
            return ""
        planned = self.planned(response_ids)
        return planned.subgoal if planned.subgoal and (planned.switch or not subgoal) else subgoal

    def text_ids(self, text: str) -> list[int]:
        """Return the ids of a text within an observation; special tokens in it are broken up."""
        return list(self._encode(self.plain(text)))

    def frame(self, *, first: bool) -> tuple[list[int], list[int]]:
        """Return the ids before and after the observation in a prompt's template."""
        before, _, after = (self.first if first else self.following).partition("{observation}")
        return list(self._encode(before)), list(self._encode(after))

    def remembered_ids(self, response_ids: Sequence[int]) -> list[int]:
        """Return a response as later prompts contain it: as sampled, but without its reasoning."""
        if self.think and (action := self._action(self.text(response_ids))) is not None:
            return [*self._encode(f"<action>{self.plain(action)}</action>"), self.stop_id]
        return self.closed(response_ids)

    def closed(self, response_ids: Sequence[int]) -> list[int]:
        """Return a response with its stop token, if the format requires one."""
        ids = list(response_ids)
        return [*ids, self.stop_id] if self.close and ids[-1:] != [self.stop_id] else ids

    def text(self, response_ids: Sequence[int]) -> str:
        """Decode a response without special tokens, and without white space around it."""
        return self.decoded(response_ids).strip()

    def decoded(self, response_ids: Sequence[int]) -> str:
        """Decode a response without special tokens."""
        return str(self.tokenizer.decode(list(response_ids), skip_special_tokens=True))

    def action(self, text: str) -> tuple[str, bool]:
        """Return the action in a response after its reasoning, and whether the response is well-formed."""
        said = without_reasoning(text, opened=self.opens_reasoning)
        action = self._action(text) if self.think or self.plan else said
        return (said, False) if action is None else (action, True)

    def _action(self, text: str) -> str | None:
        return last_tagged(without_reasoning(text, opened=self.opens_reasoning), "action")

    def plain(self, text: str) -> str:
        """Break up special tokens and borders of messages in a text, so that it cannot end its own message."""
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        added = self.tokenizer.added_tokens_decoder.values()  # holds special tokens that the tokenizer does not name
        template = f"{self.first}{self.following}{self.tokenizer.chat_template or ''}"
        # some models' borders of messages are no special tokens; white space that is a token is no border
        borders = {str(each) for each in added if str(each) in template and not str(each).isspace()}
        special = ({str(each) for each in added if each.special} | borders) - {*MARKUP}
        special |= {*self.tokenizer.all_special_tokens, self.stop}
        longest_first = sorted(filter(None, special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @functools.cached_property
    def _read(self):
        return functools.lru_cache(maxsize=8192)(lambda ids: subgoals.read(ids, self._decode))

    @functools.cached_property
    def _find(self):
        def find(pattern: re.Pattern[str], ids: tuple[int, ...]) -> tuple[int, int]:
            if not (found := [*pattern.finditer(self._decode(ids))]):
                return 0, 0
            inside = found[-1][1]
            start = found[-1].start(1) + len(inside) - len(inside.lstrip())
            stop = subgoals.tokens_to(start + len(inside.strip()), ids, self._decode)
            return min(subgoals.tokens_to(start + 1, ids, self._decode) - 1, stop), stop

        return functools.lru_cache(maxsize=8192)(find)

    @functools.cached_property
    def _encode(self):
        encode = lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
        return functools.lru_cache(maxsize=8192)(encode)  # an entry of 500 tokens takes about 16 kB
