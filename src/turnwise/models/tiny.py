"""Create tiny policies: a small Llama from scratch with one token per word of the environment."""

import re
from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from turnwise.models import subgoals
from turnwise.models.format import Format
from turnwise.models.policy import Policy
from turnwise.models.settings import ModelConfig

PAD, UNKNOWN, OBSERVATION, ACT, END = "<pad>", "<unk>", "<obs>", "<act>", "<end>"
WORDS = r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]"
"""A word is a run of letters, a run of digits, or one punctuation mark."""


def word_tokenizer(words: Sequence[str], tags: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Create a word-level tokenizer for exactly these words and tags.

    A tag such as "<action>" is one word, and so is each given word that mixes letters and digits.
    """
    mixed = sorted({word for word in words if word.isalnum() and not re.fullmatch(WORDS, word)})
    special = [PAD, UNKNOWN, OBSERVATION, ACT, END]
    vocabulary = {word: index for index, word in enumerate([*special, *tags, *sorted({*words} - {*tags})])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    pattern = Regex("|".join([*tags, *(rf"\b{word}\b" for word in mixed), WORDS]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="removed", invert=True)  # pyright: ignore
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, additional_special_tokens=[OBSERVATION, ACT, END]
    )


def tiny_format(tokenizer: PreTrainedTokenizerBase, *, plan: bool = False) -> Format:
    """Return the conversation format of tiny policies: `<obs> observation <act> response <end>`."""
    template = OBSERVATION + "{observation}" + ACT
    return Format(tokenizer, first=template, following=template, stop=END, plan=plan)


def tiny_policy(
    words: Sequence[str], config: ModelConfig, *, seed: int, plan: bool = False, texts: Sequence[str] = ()
) -> Policy:
    """Create a small, untrained Llama that knows only words, those of texts, and with `plan` those of subgoals."""
    own = re.findall(WORDS, f"{subgoals.CURRENT} {subgoals.KEEP} {subgoals.SWITCH}") if plan else []
    further = [word for text in texts for word in re.findall(WORDS, text)]
    tokenizer = word_tokenizer([*words, *own, *further], subgoals.TAGS if plan else ())
    model = tiny_model(tokenizer, config, seed=seed)
    return Policy(model, tiny_format(tokenizer, plan=plan), config.max_context)


def tiny_model(
    tokenizer: PreTrainedTokenizerBase, config: ModelConfig, *, seed: int, spread: float = 0.02
) -> LlamaForCausalLM:
    """Create a small, untrained Llama over the words of a tokenizer."""
    llama = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.hidden_size * 4,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        max_position_embeddings=config.max_context,
        tie_word_embeddings=config.tie_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END) if END in tokenizer.get_vocab() else tokenizer.eos_token_id,
        initializer_range=spread,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(llama).eval()
