"""The conversation format of a chat model, read off its tokenizer's own template."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from turnwise.config import PromptConfig
from turnwise.errors import ConfigError
from turnwise.rollout.format import Format

OBSERVATIONS = ("OBSERVATION-0-CF1B", "OBSERVATION-1-CF1B")
RESPONSE = "RESPONSE-CF1B"
"""Stand for the texts of a conversation in what the template makes of it."""

INSTRUCTION = "Reason between <think> and </think>, then say one action between <action> and </action>."
"""Added to the system message where responses reason."""


def chat_format(tokenizer: PreTrainedTokenizerBase, prompt: PromptConfig) -> Format:
    """Cut what the template makes of two observations and a response into the pieces of a format.

    What the template would write otherwise once a conversation has gone on (some take the reasoning out of earlier responses) is
    not followed: a conversation only ever grows.

    Raises:
        ConfigError: The tokenizer has no chat template, or one that does not write observation, response, observation in turn.
    """
    if not tokenizer.chat_template:
        raise ConfigError("the model's tokenizer has no chat template; an instruct model has one")
    system = "\n\n".join(filter(None, (prompt.system, INSTRUCTION if prompt.think else "")))
    begin = [{"role": "system", "content": system}] if system else []
    begin.append({"role": "user", "content": OBSERVATIONS[0]})
    answered = [*begin, {"role": "assistant", "content": RESPONSE}, {"role": "user", "content": OBSERVATIONS[1]}]
    first, whole = (_render(tokenizer, messages, think=prompt.think) for messages in (begin, answered))
    _, found, after = whole.partition(RESPONSE)
    if not found or OBSERVATIONS[0] not in first or OBSERVATIONS[1] not in after:
        raise ConfigError("the model's chat template leaves out part of a conversation of user and assistant")
    stop = _stop(tokenizer, after)
    return Format(
        tokenizer,
        first=first.replace(OBSERVATIONS[0], "{observation}"),
        following=after[len(stop) :].replace(OBSERVATIONS[1], "{observation}"),
        stop=stop,
        close=True,
        admissible=prompt.admissible,
        think=prompt.think,
    )


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], *, think: bool) -> str:
    """The conversation up to where the next response begins; templates that switch reasoning on and off are told which."""
    return str(
        tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=think)
    )


def _stop(tokenizer: PreTrainedTokenizerBase, after: str) -> str:
    """The special token that follows a response."""
    known = sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True)  # pyright: ignore
    for token in known:
        if after.startswith(token):
            return token
    raise ConfigError(
        f"the model's chat template ends a response with {after[:20]!r}, which is no special token of its tokenizer"
    )
