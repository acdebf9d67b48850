"""Joined layers must compute what transformers computes, and follow the trainer's weights where theirs lie."""

import asyncio
import copy
import importlib

import pytest
import torch
from tests.rollout.models import DRAWN, MODELS, generate, make_model, same
from transformers import Gemma2Config, Gemma2ForCausalLM

from turnwise.engines import local
from turnwise.models import joined
from turnwise.models.policy import frozen_copy

IDS = torch.tensor([[1, 5, 2, 9, 4], [3, 3, 8, 1, 2]])


def shaken(model, seed: int = 3):
    """The model with biases that are not zero and gains that differ from one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "bias" in name:
                weight += 0.5 * torch.randn(weight.shape, generator=generator)
    return model


def kinds(model) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_plain_layers(name):
    model = shaken(make_model(name))
    twin = joined.join(frozen_copy(model, torch.float32))
    assert kinds(twin).count("JoinedAttention") == kinds(twin).count("JoinedFeedForward") == 2
    assert not set(kinds(twin)) & {*joined.ATTENTION, *joined.FEED_FORWARD}
    with torch.inference_mode():
        torch.testing.assert_close(twin(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_new_weights_are_followed_where_they_lie(name):
    model = make_model(name)
    twin = joined.join(frozen_copy(model, torch.float32))
    addresses = [weight.data_ptr() for weight in twin.parameters()]
    again = joined.join(frozen_copy(shaken(model), torch.float32, twin))
    assert again is twin
    assert [weight.data_ptr() for weight in twin.parameters()] == addresses
    assert kinds(twin).count("_SignedRotation") == 1
    with torch.inference_mode():
        torch.testing.assert_close(twin(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


def test_bfloat16_rounds_no_more_than_plain_layers():
    model = shaken(make_model("qwen3"))
    plain = frozen_copy(model, torch.bfloat16)
    twin = joined.join(copy.deepcopy(plain))
    with torch.inference_mode():
        exact, theirs, ours = (each(IDS).logits.float() for each in (copy.deepcopy(plain).float(), plain, twin))
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama-gqa"])
def test_the_engine_generates_with_joined_layers_and_new_weights(name, monkeypatch):
    monkeypatch.setattr(local, "fuse", lambda model: joined.join(joined.fuse_norms(model)))
    model = make_model(name)
    engines = [local.LocalEngine(model, apart=True, graphs=graphs) for graphs in (False, True)]
    prompts = {0: [1, 2, 3], 1: [4, 5, 6, 7, 8, 9, 1, 2, 3, 4]}
    for _ in range(2):
        expected = generate(local.LocalEngine(model), prompts, DRAWN)
        for engine in engines:
            asyncio.run(engine.update_weights())
            assert "JoinedAttention" in kinds(engine.model)
            got = generate(engine, prompts, DRAWN)
            assert all(same(got[number], one) for number, one in expected.items())
        shaken(model)


@pytest.mark.parametrize("name", [*joined.ATTENTION, *joined.FEED_FORWARD])
def test_named_layers_exist(name):
    family = name.removesuffix("Attention").removesuffix("MLP").lower()
    assert hasattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def test_other_layers_are_left_alone():
    model = make_model("qwen3")
    model.model.layers[0].self_attn.q_proj = torch.nn.Sequential(model.model.layers[0].self_attn.q_proj)
    twin = joined.join(copy.deepcopy(model))
    assert "JoinedAttention" not in kinds(twin)  # one is not plain: the rotation is shared by all of them
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 23}
    other = Gemma2ForCausalLM(Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=1))  # pyright: ignore
    before = kinds(other)
    assert kinds(joined.join(other)) == before
