"""Policies: a causal LM with its tokenizer and conversation format. Tiny ones are made here, others are loaded."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from turnwise.config import TinyModelConfig
from turnwise.errors import DataError
from turnwise.rollout.format import Format

PAD, UNKNOWN, OBSERVATION, ACT, END = "<pad>", "<unk>", "<obs>", "<act>", "<end>"
WORDS = r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]"
"""A word is a run of letters, a run of digits, or one punctuation mark."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model, how text becomes its tokens, and the longest conversation it can hold."""

    model: PreTrainedModel
    format: Format
    max_context: int

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the format."""
        return self.format.tokenizer

    def save(self, folder: Path) -> None:
        """Write model and tokenizer as transformers does (config.json, model.safetensors, tokenizer.json)."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer for exactly these words."""
    special = [PAD, UNKNOWN, OBSERVATION, ACT, END]
    vocabulary = {word: index for index, word in enumerate([*special, *sorted(set(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True)  # pyright: ignore
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, additional_special_tokens=[OBSERVATION, ACT, END]
    )


def tiny_format(tokenizer: PreTrainedTokenizerBase) -> Format:
    """The conversation format of tiny policies: `<obs> observation <act> response <end>`."""
    template = OBSERVATION + "{observation}" + ACT
    return Format(tokenizer, first=template, following=template, stop=END)


def tiny_policy(words: Sequence[str], config: TinyModelConfig, *, seed: int) -> Policy:
    """A small Llama from scratch that knows only these words."""
    tokenizer = word_tokenizer(words)
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
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama)
    return Policy(model.eval(), tiny_format(tokenizer), config.max_context)


def load_policy(folder: Path) -> Policy:
    """Load a policy that `Policy.save` wrote."""
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} holds no model (config.json is missing)")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"cannot load the model in {folder}: {' '.join(str(error).split())}") from error
    return Policy(model.eval(), tiny_format(tokenizer), model.config.max_position_embeddings)
