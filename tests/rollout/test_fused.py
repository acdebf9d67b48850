"""Fused normalisation must compute what transformers computes, and follow the trainer's weights."""

import asyncio
import copy
import importlib

import pytest
import torch
from tests.rollout.models import DRAWN, generate, make_model
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from turnwise.engines import local
from turnwise.models import joined as fused
from turnwise.models.policy import frozen_copy

IDS = torch.tensor([[1, 5, 2, 9, 4]])


def shaken(model):
    """The model with gains of normalisation that differ from one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += 0.5 * torch.randn(weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_results_are_those_of_plain_layers(family):
    model = shaken(make_model(family))
    twin = fused.fuse_norms(copy.deepcopy(model))
    kinds = [type(module).__name__ for module in twin.modules()]
    assert kinds.count("FusedNorm") > 2
    assert not set(kinds) & set(fused.NORMS)
    with torch.inference_mode():
        torch.testing.assert_close(twin(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


def test_new_weights_are_followed():
    model = make_model("qwen3")
    twin = fused.fuse_norms(frozen_copy(model, torch.float32))
    again = fused.fuse_norms(frozen_copy(shaken(model), torch.float32, twin))
    assert again is twin
    with torch.inference_mode():
        torch.testing.assert_close(twin(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


def test_bfloat16_rounds_no_more_than_plain_layers():
    generator = torch.Generator().manual_seed(0)
    states, gains = torch.randn(64, 96, generator=generator), torch.randn(96, generator=generator)
    exact = torch.nn.functional.rms_norm(states.bfloat16().float(), (96,), gains.bfloat16().float(), 1e-6)
    layer = fused.FusedNorm(torch.nn.Parameter(gains.bfloat16()), 1e-6)
    assert ((layer(states.bfloat16()).float() - exact).abs() <= exact.abs() * 2**-8).all()


@pytest.mark.parametrize("name", fused.NORMS)
def test_named_layers_exist_and_have_what_is_taken(name):
    family = name.removesuffix("RMSNorm").lower()
    layers = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    layer = getattr(layers, name)(8, eps=0.5)
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    states = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(fused.FusedNorm(layer.weight, layer.variance_epsilon)(states), layer(states))


def test_the_engine_generates_with_fused_layers_and_new_weights(monkeypatch):
    monkeypatch.setattr(local, "fuse", fused.fuse_norms)
    model = make_model("qwen3")
    engine = local.LocalEngine(model, apart=True)
    for _ in range(2):
        asyncio.run(engine.update_weights())
        assert "FusedNorm" in {type(module).__name__ for module in engine.model.modules()}
        prompts = {0: [1, 2, 3], 1: [4, 5]}
        got = generate(engine, prompts, DRAWN)
        for number, one in generate(local.LocalEngine(model), prompts, DRAWN).items():
            assert got[number].token_ids == one.token_ids
            assert got[number].logprobs == pytest.approx(one.logprobs, abs=1e-5)
        shaken(model)


def test_layers_that_add_one_and_a_cpu_are_left_alone():
    assert GemmaRMSNorm.__name__ not in fused.NORMS
    model = make_model("qwen3")
    before = list(model.modules())
    assert fused.fuse(model) is model
    assert list(model.modules()) == before
