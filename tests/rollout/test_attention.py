"""Attention of few tokens to a cache must be SDPA's, whatever the groups of heads and the layout of the cache."""

import pytest
import torch
from tests.rollout.models import GREEDY, generate, make_model, same
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.models import attention


def parts(heads: int, groups: int, size: int, tokens: int, dtype: torch.dtype = torch.float32):
    """Queries of the last tokens of five rows; keys and values that are the first places of a larger cache."""
    generator = torch.Generator().manual_seed(heads + tokens)
    draw = lambda *shape: (2 * torch.randn(*shape, generator=generator)).to(dtype)  # noqa: E731
    query, caches = draw(5, heads, tokens, size), (draw(7, groups, 60, size), draw(7, groups, 60, size))
    key, value = (cache[:5, :, :40] for cache in caches)
    places = torch.arange(5)[:, None] + torch.arange(tokens)  # rows of different lengths
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = heads // groups, True  # pyright: ignore
    return module, query, key, value, torch.arange(40) <= places[:, None, :, None]


@pytest.fixture
def by_group(monkeypatch):
    """Count the calls."""
    calls = []
    real = attention._by_group
    monkeypatch.setattr(attention, "_by_group", lambda *given: calls.append(0) or real(*given))
    return calls


@pytest.mark.parametrize(("heads", "groups", "size"), [(6, 2, 16), (4, 1, 8), (6, 2, 24)])
@pytest.mark.parametrize("tokens", [1, 2, 13])
def test_grouped_heads_attend_as_if_keys_were_repeated(heads, groups, size, tokens, by_group):
    given = parts(heads, groups, size, tokens)
    expected, _ = sdpa_attention_forward(*given)
    got, _ = attention.attend(*given, cached=True)
    assert by_group
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    scaled, _ = attention.attend(*given, cached=True, scaling=0.5)
    torch.testing.assert_close(scaled, sdpa_attention_forward(*given, scaling=0.5)[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(scaled, expected, atol=1e-2)


def test_values_may_be_narrower_than_keys(by_group):
    module, query, key, value, mask = parts(6, 2, 16, 3)
    given = module, query, key, value[..., :8], mask
    torch.testing.assert_close(attention.attend(*given, cached=True)[0], sdpa_attention_forward(*given)[0])
    assert by_group


@pytest.mark.parametrize("at_once", [False, True])  # whether one token of a head without a group is asked twice
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_bfloat16_is_as_exact_as_its_rounding(groups, tokens, at_once, by_group, monkeypatch):
    monkeypatch.setattr(attention, "_multiplies_vectors", lambda: at_once)
    module, query, key, value, mask = parts(4, groups, 16, tokens, torch.bfloat16)
    exact, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask)
    got, _ = attention.attend(module, query, key, value, mask, cached=True)
    assert by_group
    assert got.shape == exact.shape
    assert (got.float() - exact).abs().max() < 2e-2 * exact.abs().max()


def test_other_attention_is_left_to_transformers(by_group, monkeypatch):
    grouped = parts(4, 2, 16, 2)
    attention.attend(*grouped)  # not of a cache: it may need gradients
    monkeypatch.setattr(attention, "FEW", 1)
    attention.attend(*grouped, cached=True)
    assert not by_group


def test_the_engine_attends_by_group(by_group):
    model = make_model("qwen3")  # grouped heads
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    generate(LocalEngine(model), {0: [1, 2, 3]}, Sampling(max_new_tokens=3))
    assert by_group


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_masks_aligned_for_a_gpu_change_nothing(family, monkeypatch):
    """They are numbers once per pass, of a length that needs no copy, and wider than what the rows hold."""
    model = make_model(family)
    prompts = {0: [1, 2, 3], 1: [4, 5, 6, 7, 8, 9] * 4, 2: [2, 2]}
    expected = generate(LocalEngine(model), prompts, Sampling(max_new_tokens=70))
    masks = []

    def attend(module, query, key, value, mask, *given, cached, **options):
        masks.append((mask.dtype, mask.shape[-1], key.shape[-2]))
        return sdpa_attention_forward(module, query, key, value, mask, *given, **options)

    monkeypatch.setattr(attention, "aligns", lambda device: True)
    monkeypatch.setitem(attention.ALL_ATTENTION_FUNCTIONS._global_mapping, attention.NAME, attend)
    again = generate(LocalEngine(model), prompts, Sampling(max_new_tokens=70))
    for number, one in expected.items():
        assert again[number].token_ids == one.token_ids
        assert again[number].logprobs == pytest.approx(one.logprobs, abs=1e-5)
    assert {dtype for dtype, _, _ in masks} == {torch.float32}
    assert {length % attention.ALIGNED for _, length, _ in masks} == {0}
    assert all(length == keys for _, length, keys in masks)
    assert max(length for _, length, _ in masks) == 96  # 94 places, the last of which is never fed


def test_a_model_with_another_attention_keeps_it(by_group):
    model = make_model("qwen3")
    model.set_attn_implementation("eager")
    assert not attention.use(model)
    prompts = {0: [1, 2, 3], 1: [4, 5, 6, 7, 8, 9]}
    got = generate(LocalEngine(model), prompts, GREEDY)
    assert model.config._attn_implementation == "eager"
    assert not by_group
    expected = generate(LocalEngine(make_model("qwen3")), prompts, GREEDY)
    assert all(same(got[number], expected[number]) for number in prompts)
