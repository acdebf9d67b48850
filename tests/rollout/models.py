"""Small models of several families, what to ask of them, and what a plain forward pass says they generate."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from turnwise.engines.base import Engine, Generation, Sampling

VOCABULARY = 23
STOPS = (5, 6, 7, 8, 9)
TOLERANCE = 1e-5  # float32: sums of 16 products in another order; the log-probabilities are of size 1 to 10
GREEDY = Sampling(max_new_tokens=6, stop_ids=STOPS, temperature=0.0)
DRAWN = Sampling(max_new_tokens=6, stop_ids=STOPS, temperature=1.0, seed=4)


def _sizes(**more) -> dict:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,  # grouped queries
        "max_position_embeddings": 256,
        "initializer_range": 0.4,  # large, so that tokens differ clearly and no maximum is a tie
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        **more,
    }


MODELS: dict[str, Callable] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_sizes(num_key_value_heads=4))),
    "llama-gqa": lambda: LlamaForCausalLM(LlamaConfig(**_sizes(num_key_value_heads=1))),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_sizes())),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_sizes(head_dim=8, tie_word_embeddings=True))),
}


def make_model(name: str = "llama", seed: int = 0):
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def with_adapters():
    """A model with random adapters in all linear layers."""
    peft = pytest.importorskip("peft")
    model = make_model("qwen3")
    settings = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(3)
    peft.inject_adapter_in_model(settings, model)
    return model


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


@torch.no_grad()
def plain_logits(model, ids: list[int]) -> torch.Tensor:
    """Logits after the last token, from one pass over everything, without a cache."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def plain_greedy(
    model, ids: list[int], max_new: int, stops: tuple[int, ...] = STOPS
) -> tuple[list[int], list[float], bool]:
    """The reference: one conversation, one pass a token."""
    ids, new, logprobs = list(ids), [], []
    while len(new) < max_new:
        best = torch.log_softmax(plain_logits(model, ids), -1).max(-1)
        new.append(int(best.indices))
        logprobs.append(float(best.values))
        ids.append(new[-1])
        if new[-1] in stops:
            return new, logprobs, False
    return new, logprobs, True


async def together(engine: Engine, prompts: Mapping[int, Sequence[int]], sampling: Sampling) -> dict[int, Generation]:
    """Ask for all responses at the same time."""
    generations = await asyncio.gather(*(engine.generate(number, ids, sampling) for number, ids in prompts.items()))
    return dict(zip(prompts, generations, strict=True))


def generate(engine: Engine, prompts: Mapping[int, Sequence[int]], sampling: Sampling) -> dict[int, Generation]:
    """The same, from code that is not async."""
    return asyncio.run(together(engine, prompts, sampling))


def same(one: Generation, other: Generation) -> bool:
    assert one.logprobs == pytest.approx(other.logprobs, abs=TOLERANCE), (one, other)
    return (one.token_ids, one.truncated) == (other.token_ids, other.truncated)
