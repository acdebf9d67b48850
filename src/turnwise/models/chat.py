"""Derive the conversation format of a chat model from its tokenizer's chat template."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from turnwise.base.errors import ConfigError
from turnwise.models.format import Format
from turnwise.models.settings import PromptConfig

OBSERVATIONS = ("OBSERVATION-0-CF1B", "OBSERVATION-1-CF1B")
RESPONSE = "RESPONSE-CF1B"
"""Placeholders for the texts of a conversation when the template is rendered."""


def chat_format(tokenizer: PreTrainedTokenizerBase, prompt: PromptConfig) -> Format:
    """Derive the conversation format from a tokenizer's chat template.

    A conversation only grows. Some templates rewrite earlier turns, such as by removing their reasoning; the format
    does not.

    Raises:
        ConfigError: The tokenizer has no chat template, or the template does not render observation, response,
            observation in this order.
    """
    if not tokenizer.chat_template:
        raise ConfigError("the model's tokenizer has no chat template; choose an instruct model")
    first, whole = _conversation(tokenizer, prompt.message, think=prompt.think)
    _, found, after = whole.partition(RESPONSE)
    if not found or OBSERVATIONS[0] not in first or OBSERVATIONS[1] not in after:
        raise ConfigError(
            "the model's chat template omits part of a conversation of user and assistant; choose another model"
        )
    stop = _stop(tokenizer, after)
    return Format(
        tokenizer,
        first=first.replace(OBSERVATIONS[0], "{observation}"),
        following=after[len(stop) :].replace(OBSERVATIONS[1], "{observation}"),
        stop=stop,
        close=True,
        admissible=prompt.admissible,
        think=prompt.think,
        plan=prompt.plan,
    )


def _conversation(tokenizer: PreTrainedTokenizerBase, system: str, *, think: bool) -> tuple[str, str]:
    """Render the start of a conversation, and a longer one. The first user message has what the system may not say.

    Raises:
        ConfigError: The template refuses a conversation of user and assistant.
    """
    refusal: Exception | None = None
    apart = [{"role": "system", "content": system}, {"role": "user", "content": OBSERVATIONS[0]}]
    together = [{"role": "user", "content": "\n\n".join(filter(None, (system, OBSERVATIONS[0])))}]
    for begin in (apart, together) if system else (together,):
        answered = [*begin, {"role": "assistant", "content": RESPONSE}, {"role": "user", "content": OBSERVATIONS[1]}]
        try:
            first, whole = (_render(tokenizer, messages, think=think) for messages in (begin, answered))
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            refusal = error
            continue
        if system.strip() in first or begin is together:  # some templates leave a system message out
            return first, whole
    cause = " ".join(str(refusal).split())[:200]
    raise ConfigError(
        f"the model's chat template refuses a conversation of user and assistant ({cause}); choose another model"
    ) from refusal


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], *, think: bool) -> str:
    """Render a conversation up to the start of the next response. Templates that support it get `think`."""
    return str(
        tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=think)
    )


def _stop(tokenizer: PreTrainedTokenizerBase, after: str) -> str:
    """Return the special token that follows a response."""
    names = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}  # pyright: ignore
    known = sorted(names, key=len, reverse=True)
    for token in known:
        if after.startswith(token):
            return token
    raise ConfigError(
        f"the model's chat template ends a response with {after[:20]!r}, which is not a special token of its tokenizer"
    )
