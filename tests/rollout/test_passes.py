"""A pass of a fixed shape at fixed addresses must give what a plain pass gives, whatever rows, lengths and weights."""

import asyncio
import dataclasses
import functools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tests.rollout.models import (
    DRAWN,
    GREEDY,
    MODELS,
    TOLERANCE,
    VOCABULARY,
    generate,
    make_model,
    same,
    tokens,
    with_adapters,
)
from tests.rollout.playing import POLICY

from turnwise.engines import passes
from turnwise.engines.base import Sampling
from turnwise.engines.build import make_engine
from turnwise.engines.local import LocalEngine
from turnwise.engines.passes import Feed, Passes
from turnwise.engines.settings import LocalEngineConfig
from turnwise.models import attention
from turnwise.models.policy import frozen_copy

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")),
]


@pytest.fixture(autouse=True)
def static_from_the_first(monkeypatch):
    """Make every pass that may be static so."""
    monkeypatch.setattr(passes, "SEEN", 1)


@pytest.fixture
def computed(monkeypatch):
    """Shapes of all passes that are computed by the model, not by a graph."""
    shapes = []
    real = Passes._compute
    monkeypatch.setattr(
        Passes, "_compute", lambda self, model, shape, packed: shapes.append(shape) or real(self, model, shape, packed)
    )
    return shapes


class Twins:
    """Feed the same to plain and to static passes, and compare logits and states."""

    def __init__(self, model, rows: int = 5, places: int = 96, seed: int = 0):
        self.model, self.rng = model, np.random.default_rng(seed)
        layers = model.config.num_hidden_layers
        self.both = Passes(layers, static=False), Passes(layers, static=True)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.reserve(rows, places)

    def reserve(self, rows: int, places: int) -> None:
        self.places, self.lengths = places, np.concatenate([self.lengths, np.zeros(rows - len(self.lengths), int)])
        with torch.inference_mode():
            for each in self.both:
                each.reserve(rows, places)

    def feed(self, rows, num_new, wanted=None, tolerance: float = TOLERANCE) -> None:
        rows, num_new = np.array(rows), np.array(num_new)
        places = np.minimum(self.lengths[rows, None] + np.arange(num_new.max()), self.places - 1)
        index = np.arange(len(rows)) if wanted is None else np.array(wanted)
        length = int((self.lengths[rows] + num_new)[index].max())
        drawn = self.rng.integers(0, VOCABULARY, places.shape)
        feed = Feed(rows, drawn, places, np.stack([index, num_new[index] - 1]), length)
        (logits, states), (again, repeated) = (each.forward(self.model, feed) for each in self.both)
        assert logits.dtype == again.dtype == torch.float32
        scale = max(1.0, float(logits.abs().max())) if tolerance > TOLERANCE else 1.0
        torch.testing.assert_close(again, logits, rtol=0, atol=tolerance * scale)
        torch.testing.assert_close(repeated, states, rtol=0, atol=tolerance * scale)
        self.lengths[rows[index]] += num_new[index]

    def play(self, tolerance: float = TOLERANCE) -> None:
        """Prompts of different lengths, responses, single rows, idle ones, a growth, and rows that begin again."""
        self.feed([0, 1, 2], [7, 3, 12], tolerance=tolerance)
        for _ in range(3):
            self.feed([0, 1, 2], [1, 1, 1], tolerance=tolerance)
        self.feed([3], [20], tolerance=tolerance)
        self.feed([1, 3], [2, 9], tolerance=tolerance)
        for _ in range(3):
            self.feed([0, 1, 2, 3], [1] * 4, wanted=[1, 3], tolerance=tolerance)  # the others are idle
        self.reserve(7, 160)
        self.feed([0, 2, 4, 5, 6], [5, 1, 33, 4, 2], tolerance=tolerance)
        for _ in range(2):
            self.feed(range(7), [1] * 7, tolerance=tolerance)
        self.lengths[2] = 4  # of another conversation now, whose first tokens are the same
        self.feed([2, 5], [70, 1], tolerance=tolerance)
        self.feed(range(7), [1] * 7, wanted=[2, 5, 6], tolerance=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_static_passes_are_plain_passes(name, device, computed):
    twins = Twins(make_model(name).to(device))
    twins.play(TOLERANCE if device == "cpu" else 1e-3)  # a GPU takes other kernels for other shapes
    assert twins.both[1].static
    shapes = [shape for shape in computed if shape.rows == shape.wanted]
    assert any(shape.first for shape in shapes)
    assert not all(shape.first for shape in shapes)


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_is_as_exact_as_its_rounding(device):
    model = frozen_copy(make_model("qwen3"), torch.bfloat16).to(device)  # pyright: ignore
    Twins(model).play(tolerance=2**-5)  # bfloat16 has 8 bits; two layers round some twenty times


@pytest.mark.parametrize("device", DEVICES)
def test_a_shape_that_repeats_is_not_computed_anew(device, computed):
    """On a GPU its graph is replayed; on a CPU it is computed at the same addresses."""
    twins = Twins(make_model("llama").to(device))
    twins.feed([0, 1], [5, 9])
    computed.clear()
    for _ in range(4):
        twins.feed([0, 1], [1, 1], tolerance=1e-3)
    plain, static = twins.both
    assert len(static._statics) == 2  # the prompts' and the tokens'
    ours = [shape for shape in computed if shape.length == passes.LEAST_LENGTH]
    assert len(ours) == (4 if device == "cpu" else 2)  # computed once, and captured
    assert static.num_graphs == (0 if device == "cpu" else 2)
    addresses = {each.packed.data_ptr() for each in static._statics.values()}
    twins.feed([0, 1], [1, 1], tolerance=1e-3)
    assert {each.packed.data_ptr() for each in static._statics.values()} == addresses
    assert not plain._statics


def play(model, conversations, sampling, **options):
    """Play the turns of all conversations side by side, each at its own pace; each is closed at its end."""
    engine = LocalEngine(model, **options)

    async def converse(number, prompts):
        ids, got = [], []
        for prompt in prompts:
            ids += prompt
            got.append(await engine.generate(number, ids, sampling))
            ids += got[-1].token_ids
            for _ in range(number % 3):
                await asyncio.sleep(0)
        engine.close([number])
        return got

    async def everybody():
        await engine.update_weights()
        return await asyncio.gather(*(converse(*each) for each in conversations.items()))

    return dict(zip(conversations, asyncio.run(everybody()), strict=True)), engine


def ragged(count: int = 9):
    """Conversations of one to four turns, some of which begin alike."""
    system = tokens(12, seed=99)
    first = [[*(system if n % 3 else []), *tokens(1 + 5 * n % 17, n % 4)] for n in range(count)]
    return {n: [first[n], *(tokens(1 + n % 5, n + turn) for turn in range(n % 4))] for n in range(count)}


OPTIONS = [{}, {"patience": 0.0}, {"max_rows": 3}, {"share_prefixes": False}, {"apart": True}]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, dataclasses.replace(DRAWN, top_p=0.8, spread_top=5)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_engine_generates_the_same(options, sampling):
    model = make_model("qwen2", seed=5)
    expected, _ = play(model, ragged(), sampling, graphs=False, **options)
    got, engine = play(model, ragged(), sampling, graphs=True, **options)
    assert engine._passes._statics
    for number, generations in expected.items():
        for one, other in zip(got[number], generations, strict=True):
            assert same(one, other)
            assert one.entropies == pytest.approx(other.entropies, abs=TOLERANCE)
            assert (one.spreads is None) == (other.spreads is None) == (not sampling.spread_top)
            assert one.spreads == pytest.approx(other.spreads, abs=TOLERANCE)
            assert one.state is not None
            assert other.state is not None
            np.testing.assert_allclose(one.state, other.state, rtol=0, atol=TOLERANCE)


def test_states_of_responses_outlive_the_next_pass():
    model, engine = make_model(), LocalEngine(make_model(), graphs=True)
    first = generate(engine, {0: [1, 2, 3]}, GREEDY)[0]
    assert first.state is not None
    kept = first.state.copy()
    generate(engine, {1: [4, 5, 6]}, GREEDY)
    np.testing.assert_array_equal(first.state, kept)
    expected = generate(LocalEngine(model), {0: [1, 2, 3]}, GREEDY)[0].state
    assert expected is not None
    np.testing.assert_allclose(kept, expected, rtol=0, atol=TOLERANCE)


# --- weights ---


def changed(model, seed: int):
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("make", [functools.partial(make_model, "qwen3"), with_adapters], ids=["whole", "adapters"])
def test_new_weights_are_followed_where_they_lie(make, apart):
    model = make()
    engine = LocalEngine(model, graphs=True, apart=apart)
    prompts, seen = {0: [1, 2, 3], 1: [4, 5]}, []
    for seed in range(3):
        asyncio.run(engine.update_weights())
        got = generate(engine, prompts, DRAWN)
        seen.append(list(engine._passes._statics.values()))
        for number, one in generate(LocalEngine(model, graphs=False), prompts, DRAWN).items():
            assert same(got[number], one)
        changed(model, seed)
    assert seen[0]
    assert all(one is other for one, other in zip(seen[1], seen[2], strict=True))  # nothing was captured anew


def test_weights_that_moved_are_noticed():
    model = make_model()
    engine = LocalEngine(model, graphs=True)
    generate(engine, {0: [1, 2, 3]}, GREEDY)
    before = list(engine._passes._statics.values())
    for weight in model.parameters():
        weight.data = weight.data.clone() + 0.1
    engine.close()
    got = generate(engine, {0: [1, 2, 3]}, GREEDY)
    assert same(got[0], generate(LocalEngine(model), {0: [1, 2, 3]}, GREEDY)[0])
    assert not set(map(id, before)) & set(map(id, engine._passes._statics.values()))


# --- bounds ---


def test_a_growing_cache_and_a_release_drop_what_was_captured():
    twins = Twins(make_model())
    static = twins.both[1]
    twins.feed([0], [3])
    assert len(static._statics) == 1
    twins.reserve(6, 96)
    assert not static._statics
    twins.feed([0], [3])
    old = static.cache
    assert static.release() is not old
    assert not static._statics
    assert static.capacity == (0, 0)


def test_conversations_that_end_leave_the_cache_where_it_lies():
    engine = LocalEngine(make_model(), graphs=True)
    generate(engine, {0: [1, 2, 3], 1: [4]}, GREEDY)
    layer: Any = engine._cache.layers[0]
    before, address = dict(engine._passes._statics), layer.keys.data_ptr()
    engine.close()
    once = generate(engine, {0: [1, 2, 3], 1: [4]}, GREEDY)
    assert engine._cache.layers[0] is layer
    assert layer.keys.data_ptr() == address
    assert engine._passes._statics.keys() == before.keys()
    assert all(each is before[shape] for shape, each in engine._passes._statics.items())
    assert once == generate(LocalEngine(make_model(), graphs=True), {0: [1, 2, 3], 1: [4]}, GREEDY)


def test_a_shape_is_captured_when_it_was_seen_before(monkeypatch):
    monkeypatch.setattr(passes, "SEEN", 3)
    twins = Twins(make_model())
    for count in (0, 0, 1, 1):
        twins.feed([0], [1])
        assert len(twins.both[1]._statics) == count


def test_few_shapes_are_held_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(passes, "MOST_GRAPHS", 2)
    twins = Twins(make_model(), rows=8)
    static = twins.both[1]
    for count in (1, 2, 1, 4, 2):
        twins.feed(range(count), [1] * count)
    assert [shape.rows for shape in static._statics] == [4, 2]  # 1 was used before 4, 2 longer ago


@pytest.mark.parametrize(("bound", "value"), [("MOST_ROWS", 2), ("MOST_TOKENS", 11)])
def test_large_passes_are_plain(monkeypatch, bound, value):
    monkeypatch.setattr(passes, bound, value)
    twins = Twins(make_model())
    twins.feed([0, 1, 2], [4, 4, 4])
    assert not twins.both[1]._statics
    twins.feed([0, 1], [1, 1])
    assert len(twins.both[1]._statics) == 1


def test_padding_wastes_less_than_a_third_of_tokens_and_lengths():
    assert [passes._step(n) for n in (1, 2, 3, 4, 5, 7, 9, 13, 17, 33, 49, 65)] == [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64, 96,
    ]  # fmt: skip
    assert max((passes._step(n) - n) / passes._step(n) for n in range(1, 5000)) < 1 / 3
    assert [passes._power(n) for n in (1, 2, 3, 4, 5, 16, 17)] == [1, 2, 4, 4, 8, 16, 32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wished", [True, False])
def test_the_setting_reaches_the_engine_and_a_cpu_ignores_it(device, wished):
    model: Any = make_model().to(device)
    policy = dataclasses.replace(POLICY, model=model)
    engine = make_engine(LocalEngineConfig(graphs=wished), "fp32", policy)
    assert isinstance(engine, LocalEngine)
    assert engine.graphs == (wished and device == "cuda")
    assert LocalEngineConfig().graphs


# --- captures, on a GPU alone ---

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU: nothing can be captured")


@needs_gpu
@pytest.mark.parametrize("options", [{"rounded": True}, {"apart": True}, {}], ids=str)
def test_captured_responses_are_plain_ones(options):
    model = make_model("qwen3", seed=5).to("cuda")
    expected, _ = play(model, ragged(), DRAWN, graphs=False, **options)
    got, engine = play(model, ragged(), DRAWN, **options)
    assert engine.graphs  # by default, on a GPU
    assert engine._passes.static
    assert engine._passes.num_graphs > 3
    bound, forks = (0.25, 4) if options.get("rounded") else (1e-3, 1)  # bfloat16 rounds otherwise in other shapes
    apart, total = 0, 0
    for number, generations in expected.items():
        for one, other in zip(got[number], generations, strict=True):
            if one.token_ids != other.token_ids:  # a draw fell between two tokens: what follows is another text
                apart += 1
                break
            total += 1
            assert one.logprobs == pytest.approx(other.logprobs, abs=bound)
    assert apart <= forks < total


@needs_gpu
def test_a_graph_follows_new_weights():
    model = make_model("qwen3").to("cuda")
    engine = LocalEngine(model, apart=True)
    for seed in range(3):
        asyncio.run(engine.update_weights())
        got = generate(engine, {0: [1, 2, 3]}, GREEDY)
        expected = generate(LocalEngine(model, apart=True, graphs=False), {0: [1, 2, 3]}, GREEDY)
        assert got[0].token_ids == expected[0].token_ids
        assert got[0].logprobs == pytest.approx(expected[0].logprobs, abs=1e-3)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to("cuda")
    assert engine._passes.num_graphs


@needs_gpu
def test_a_pass_that_cannot_be_captured_is_computed_all_the_same(caplog):
    model = make_model("qwen3").to("cuda")
    expected = generate(LocalEngine(model, graphs=False), {0: [1, 2, 3]}, GREEDY)[0]
    hook = model.get_decoder().register_forward_pre_hook(  # waits for the device, which is not allowed in a capture
        lambda _, args, kwargs: (args, {**kwargs, "input_ids": kwargs["input_ids"].cpu().to("cuda")}), with_kwargs=True
    )
    engine = LocalEngine(model)
    with caplog.at_level(logging.WARNING):
        got = [generate(engine, {n: [1, 2, 3]}, GREEDY)[n] for n in range(3)]
    hook.remove()
    assert all(one.token_ids == expected.token_ids for one in got)
    assert len([each for each in caplog.records if "without CUDA graphs" in each.message]) == 1
    assert not engine._passes.static
    other = LocalEngine(model)
    assert generate(other, {0: [1, 2, 3]}, GREEDY)[0].token_ids == expected.token_ids
    assert other._passes.num_graphs


@needs_gpu
def test_another_thread_may_use_the_gpu_during_captures():
    model, ends = make_model("qwen3", seed=5).to("cuda"), threading.Event()

    def train() -> int:
        steps = 0
        while not ends.is_set():
            weights = torch.full((200 + steps % 50, 300), 0.1, device="cuda", requires_grad=True)
            (weights @ weights.T).relu().mean().backward()
            assert weights.grad is not None
            assert weights.grad.isfinite().all().item()  # waits
            steps += 1
        return steps

    expected = generate(LocalEngine(model, apart=True, graphs=False), {0: [1, 2, 3], 1: [4]}, GREEDY)
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(train)
        try:
            for _ in range(3):
                engine = LocalEngine(model, apart=True)
                got = generate(engine, {0: [1, 2, 3], 1: [4]}, GREEDY)
                assert all(got[number].token_ids == one.token_ids for number, one in expected.items())
                assert engine._passes.static
                assert engine._passes.num_graphs
        finally:
            ends.set()
        assert steps.result() > 3


def test_masks_of_static_passes_are_aligned():
    """Lengths that need no copy of the mask on a GPU."""
    twins = Twins(make_model("llama"))
    twins.play()
    lengths = {shape.length for shape in twins.both[1]._seen}
    assert {length % attention.ALIGNED for length in lengths} == {0}
    assert len(lengths) > 1


def test_limits_of_responses_and_several_samplings_side_by_side():
    model, prompt = make_model(seed=2), [4, 9, 1]
    samplings = [Sampling(max_new_tokens=3 + n, temperature=float(n % 2), seed=n // 2) for n in range(6)]

    async def everybody(engine):
        return await asyncio.gather(*(engine.generate(n, prompt, each) for n, each in enumerate(samplings)))

    expected = asyncio.run(everybody(LocalEngine(model)))
    for one, other in zip(asyncio.run(everybody(LocalEngine(model, graphs=True))), expected, strict=True):
        assert same(one, other)
