"""Small random chat models in folders, as a user would name them: tokenizer, chat template and weights."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TEMPLATES = Path(__file__).parent / "templates"
FAMILIES = {
    "smollm2": lambda **sizes: LlamaForCausalLM(LlamaConfig(**sizes)),
    "qwen2_5": lambda **sizes: Qwen2ForCausalLM(Qwen2Config(**sizes)),
    "qwen3": lambda **sizes: Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=8)),
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@functools.cache
def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A small byte-level BPE tokenizer with the family's chat template."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    inner.decoder = decoders.ByteLevel()  # pyright: ignore
    text = ["system user assistant say red green blue you said go to cabinet 1 <think> </think> <action> </action>"] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=(TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8"),
    )


@functools.cache
def chat_model(family: str) -> Path:
    """A folder with a random model of the family, kept for the session."""
    folder = Path(tempfile.mkdtemp(prefix=f"turnwise-{family}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = tokenizer(family)
    sizes = {
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "eos_token_id": words.convert_tokens_to_ids("<|im_end|>"),
        "bos_token_id": None,
        "pad_token_id": words.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        FAMILIES[family](**sizes).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
