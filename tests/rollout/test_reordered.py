"""Reordered weights must give the results of plain ones, bit for bit, and follow the trainer's weights."""

import asyncio
import copy

import pytest
import torch
from tests.rollout.models import generate, make_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.models import reordered
from turnwise.models.policy import frozen_copy

IDS = torch.tensor([[1, 5, 2, 9, 4]])


def plain_copy(model):
    return copy.deepcopy(model).to(torch.bfloat16).eval().requires_grad_(False)


needs_operators = pytest.mark.skipif(
    not reordered.can_reorder(plain_copy(make_model("qwen3"))), reason="this processor has no bfloat16 products"
)


def with_biases():
    torch.manual_seed(1)
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, initializer_range=0.3, tie_word_embeddings=True)).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    return model


@needs_operators
@pytest.mark.parametrize("make", [lambda: make_model("qwen3"), with_biases])
def test_results_are_those_of_plain_weights(make):
    model = make()
    twin = reordered.reorder(frozen_copy(model, torch.bfloat16))
    assert any(isinstance(module, reordered.ReorderedLinear) for module in twin.modules())
    with torch.inference_mode():
        assert torch.equal(twin(IDS).logits, plain_copy(model)(IDS).logits)


@needs_operators
@pytest.mark.parametrize("make", [lambda: make_model("qwen3"), with_biases])
def test_new_weights_are_reordered_too(make):
    model = make()
    twin = reordered.reorder(frozen_copy(model, torch.bfloat16))
    with torch.no_grad():
        before = twin(IDS).logits
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    again = reordered.reorder(frozen_copy(model, torch.bfloat16, twin))
    assert again is twin
    with torch.inference_mode():
        got = again(IDS).logits
        assert torch.equal(got, plain_copy(model)(IDS).logits)
    assert not torch.equal(got, before)


@needs_operators
def test_a_model_in_float32_is_left_alone():
    model = make_model("qwen3")
    twin = reordered.reorder(frozen_copy(model, torch.float32))
    assert not any(isinstance(module, reordered.ReorderedLinear) for module in twin.modules())


def test_without_the_operators_weights_stay_plain(monkeypatch):
    monkeypatch.setattr(reordered, "can_reorder", lambda model: False)
    model = make_model("qwen3")
    engine = LocalEngine(model, rounded=True)
    asyncio.run(engine.update_weights())
    assert len(generate(engine, {0: [1, 2, 3]}, Sampling(max_new_tokens=3))[0].token_ids) <= 3
    assert not any(isinstance(module, reordered.ReorderedLinear) for module in engine.model.modules())
