"""Continuous batching: what a conversation gets must not depend on when, and beside whom, it is served."""

import asyncio
import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.models import DRAWN, GREEDY, STOPS, VOCABULARY, generate, make_model, plain_greedy, same, tokens
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.base.errors import ConfigError
from turnwise.engines.base import Generation, Sampling
from turnwise.engines.local import LocalEngine
from turnwise.engines.passes import own_time, split_prompts

OPTIONS = [
    {},
    {"patience": 0.0},
    {"patience": 100.0},
    {"max_rows": 1},
    {"max_rows": 3},
    {"max_rows": 3, "patience": 0.0, "share_prefixes": False},
]


async def converse(
    engine: LocalEngine, number: int, prompts: Sequence[Sequence[int]], sampling: Sampling, pause: int = 0
) -> list[Generation]:
    """One conversation, as `collect` has it: ids are appended, and it is closed at the end."""
    ids, generations = [], []
    for prompt in prompts:
        ids += prompt
        generations.append(await engine.generate(number, ids, sampling))
        ids += generations[-1].token_ids
        for _ in range(pause * (number % 3)):
            await asyncio.sleep(0)
    engine.close([number])
    return generations


def play(engine: LocalEngine, conversations: dict[int, list[list[int]]], sampling: Sampling, pause: int = 0):
    async def everybody() -> list[list[Generation]]:
        return await asyncio.gather(*(converse(engine, n, p, sampling, pause) for n, p in conversations.items()))

    return dict(zip(conversations, asyncio.run(everybody()), strict=True))


def ragged(count: int = 9) -> dict[int, list[list[int]]]:
    """Conversations of one to four turns, some of which begin alike."""
    system = tokens(12, seed=99)
    return {
        n: [
            [*(system if n % 3 else []), *tokens(1 + 5 * n % 17, n % 4)],
            *(tokens(1 + n % 5, 10 * n + t) for t in range(n % 4)),
        ]
        for n in range(count)
    }


@contextmanager
def watched(model) -> Iterator[list[tuple[int, int]]]:
    """Shapes of what the model is fed."""
    fed: list[tuple[int, int]] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield fed
    hook.remove()


@functools.cache
def alone(name: str) -> dict[int, list[Generation]]:
    """What each conversation gets from an engine of its own."""
    model = make_model(name, seed=5)
    return {n: play(LocalEngine(model), {n: prompts}, DRAWN)[n] for n, prompts in ragged().items()}


@pytest.mark.parametrize("pause", [0, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_conversation_in_company_gets_what_it_gets_alone(name, options, pause):
    got = play(LocalEngine(make_model(name, seed=5), **options), ragged(), DRAWN, pause)
    for number, generations in alone(name).items():
        assert all(same(one, other) for one, other in zip(got[number], generations, strict=True))
    assert len({len(g.token_ids) for generations in got.values() for g in generations}) > 3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_greedy_conversations_equal_a_plain_forward_pass(options):
    model = make_model("qwen2", seed=6)
    for number, generations in play(LocalEngine(model, **options), ragged(), GREEDY).items():
        ids: list[int] = []
        for prompt, generation in zip(ragged()[number], generations, strict=True):
            ids += prompt
            assert same(generation, Generation(*plain_greedy(model, ids, 6)))
            ids += generation.token_ids


def test_runs_are_equal_bit_for_bit():
    model = make_model(seed=5)
    for options in OPTIONS:
        once = play(LocalEngine(model, **options), ragged(), DRAWN, pause=1)
        assert play(LocalEngine(model, **options), ragged(), DRAWN, pause=1) == once
    engine = LocalEngine(model)
    once = play(engine, ragged(), DRAWN)
    engine.close()
    assert play(engine, ragged(), DRAWN) == once


def test_conversations_draw_differently_and_so_do_turns():
    model = make_model(seed=5)
    got = generate(LocalEngine(model), {number: [1, 2, 3] for number in range(12)}, DRAWN)
    assert len({tuple(g.token_ids) for g in got.values()}) > 8


# --- overlap ---


def test_a_short_response_does_not_wait_for_a_long_one():
    model, order = make_model(), []

    async def scenario(engine: LocalEngine) -> None:
        async def one(number: int, turns: int, length: int) -> None:
            sampling, ids = Sampling(max_new_tokens=length, temperature=0.0), [number]
            for turn in range(turns):
                generation = await engine.generate(number, ids, sampling)
                ids += [*generation.token_ids, 1]
                order.append((number, turn))

        await asyncio.gather(one(0, 1, 30), one(1, 4, 2), one(2, 2, 5))

    with watched(model) as fed:
        asyncio.run(scenario(LocalEngine(model, patience=0.0)))
    assert order[-1] == (0, 0)
    assert len(fed) < 30 + 4 + 2 + 1  # the others cost a pass for each of their prompts, and ride along otherwise


def test_patience_gathers_prompts_for_a_pass():
    passes = {}
    for patience in (0.0, 1.0):
        model = make_model()
        with watched(model) as fed:
            play(LocalEngine(model, patience=patience, share_prefixes=False), ragged(9), DRAWN)
        passes[patience] = sum(width > 1 for _, width in fed)
    assert passes[1.0] < passes[0.0]


def test_only_a_turns_own_rows_are_fed_its_prompts():
    model = make_model()
    engine = LocalEngine(model)
    first = generate(engine, {n: [n] * 5 for n in range(6)}, GREEDY)
    with watched(model) as fed:
        generate(engine, {n: [*[n] * 5, *first[n].token_ids, 7, 7] for n in (1, 4)}, Sampling(max_new_tokens=1))
    assert fed == [(2, 3)]


# --- prefixes ---


def test_rollouts_of_one_prompt_compute_it_once():
    model, prompt = make_model("qwen3"), tokens(40, seed=1)
    one = Sampling(max_new_tokens=1, temperature=0.0)
    for share, expected in ((True, 40 + 7), (False, 8 * 40)):  # the last token is fed by each: it wants its logits
        with watched(model) as fed:
            generate(LocalEngine(model, share_prefixes=share), dict.fromkeys(range(8), prompt), one)
        assert sum(rows * width for rows, width in fed) == expected


def test_groups_share_their_prompts_and_a_common_beginning():
    model, system = make_model(), tokens(30, seed=2)
    prompts = {n: [*system, *tokens(10, seed=n // 4 + 50)] for n in range(12)}  # three groups of four
    with watched(model) as fed:
        got = generate(LocalEngine(model), prompts, Sampling(max_new_tokens=1, temperature=0.0))
    assert fed == [
        (1, 40),
        (5, 10),
        (6, 1),
    ]  # one prompt; the rest of the others', and the last token of its group; theirs
    for number, prompt in prompts.items():
        assert got[number].token_ids == plain_greedy(model, prompt, 1)[0]


@pytest.mark.parametrize("closed", [True, False])
def test_a_later_conversation_shares_with_an_earlier_one(closed):
    model, prompt = make_model(seed=3), tokens(20, seed=3)
    engine = LocalEngine(model)
    generate(engine, {0: prompt, 1: tokens(9, seed=8)}, GREEDY)
    if closed:
        engine.close([0])
    other = [*prompt[:15], *[t + 1 if t + 1 < VOCABULARY else 0 for t in prompt[15:]]]
    with watched(model) as fed:
        got = generate(engine, {2: other}, Sampling(max_new_tokens=1, temperature=0.0))
    assert fed == [(1, 5)]
    assert got[2].token_ids == plain_greedy(model, other, 1)[0]


def test_a_shorter_prompt_shares_all_but_its_last_token():
    model, prompt = make_model(seed=3), tokens(20, seed=3)
    engine = LocalEngine(model)
    generate(engine, {0: prompt}, GREEDY)
    with watched(model) as fed:
        got = generate(engine, {1: prompt[:9], 2: prompt}, Sampling(max_new_tokens=1, temperature=0.0))
    assert fed == [(2, 1)]
    assert got[1].token_ids == plain_greedy(model, prompt[:9], 1)[0]


def test_those_who_shared_a_prompt_go_their_own_ways():
    model, prompt = make_model("qwen2", seed=8), tokens(25, seed=4)
    conversations = {n: [prompt, tokens(3 + n, seed=n), tokens(2, seed=n + 9)] for n in range(5)}
    for share in (True, False):
        for number, generations in play(LocalEngine(model, share_prefixes=share), conversations, GREEDY).items():
            ids: list[int] = []
            for added, generation in zip(conversations[number], generations, strict=True):
                ids += added
                assert same(generation, Generation(*plain_greedy(model, ids, 6)))
                ids += generation.token_ids


def test_after_close_nothing_is_shared_with_the_weights_before():
    model, other, prompt = make_model(seed=0), make_model(seed=1), tokens(30, seed=5)
    engine = LocalEngine(model)
    generate(engine, {0: prompt}, GREEDY)
    model.load_state_dict(other.state_dict())
    engine.close()
    got = generate(engine, {1: [*prompt, 3]}, GREEDY)[1]
    assert same(got, Generation(*plain_greedy(other, [*prompt, 3], 6)))


# --- rows ---


@pytest.mark.parametrize("max_rows", [1, 2, 4])
def test_there_are_never_more_rows_than_allowed(max_rows):
    model = make_model()
    with watched(model) as fed:
        play(LocalEngine(model, max_rows=max_rows), ragged(), DRAWN)
    assert max(rows for rows, _ in fed) == max_rows


def test_memory_stays_within_max_rows_too():
    model = make_model()

    async def scenario(engine: LocalEngine) -> int:
        for number in range(5):  # one more at a time, so that the storage grows step by step
            await engine.generate(number, [number, 1], GREEDY)
        return max(layer.keys.shape[0] for layer in engine._cache.layers)  # pyright: ignore

    assert asyncio.run(scenario(LocalEngine(model, max_rows=5))) == 5  # by half it would grow from 4 to 6


def test_a_row_is_free_for_others_once_its_conversation_is_closed():
    model = make_model()

    async def scenario(engine: LocalEngine) -> Generation:
        await engine.generate(0, tokens(30, seed=1), GREEDY)
        waiting = asyncio.ensure_future(engine.generate(1, tokens(5, seed=2), GREEDY))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()  # conversation 0 may go on
        engine.close([0])
        return await waiting

    got = asyncio.run(scenario(LocalEngine(model, max_rows=1)))
    assert same(got, Generation(*plain_greedy(model, tokens(5, seed=2), 6)))


def test_max_rows_must_leave_room():
    with pytest.raises(ConfigError, match="max_rows=0: expected 1 or more"):
        LocalEngine(make_model(), max_rows=0)


def time_of(sizes: np.ndarray, passes: Sequence[np.ndarray], own: float) -> float:
    return sum(len(part) * sizes[part].max() + own for part in passes)


@pytest.mark.parametrize("own", [0.0, 30.0, 200.0, 10_000.0])
@pytest.mark.parametrize(
    "sizes", [[1], [5, 5, 5], [1000, 50, 50, 50, 50], [9000, 9000, 9000], [20000, 3], [1] * 500 + [300] * 3]
)
def test_passes_hold_every_prompt_once_and_are_not_too_large(sizes, own):
    num_new = np.array(sizes)
    passes = split_prompts(num_new, own)
    assert sorted(np.concatenate(passes).tolist()) == list(range(len(sizes)))
    assert all(len(part) == 1 or len(part) * num_new[part].max() <= 16384 for part in passes)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.sampled_from([0.0, 7.0, 40.0]))
def test_no_other_passes_of_prompts_by_length_take_less_time(sizes, own):
    num_new = np.array(sizes)
    order = np.argsort(-num_new, kind="stable")
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, len(sizes)), n) for n in range(len(sizes)))
    others = min(time_of(num_new, np.split(order, each), own) for each in cuts)
    assert time_of(num_new, split_prompts(num_new, own), own) == pytest.approx(others)


def test_passes_of_a_small_model_take_more_padding_than_those_of_a_large_one():
    shape = {"vocab_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4}
    small, large = (
        LlamaForCausalLM(LlamaConfig(hidden_size=width, intermediate_size=4 * width, **shape)) for width in (64, 512)
    )
    assert own_time(small, graphs=False) == pytest.approx(215, abs=2)  # the default recipe's layers
    assert 32 < own_time(large, graphs=False) < 40


# --- samplings side by side ---


def test_everyone_is_sampled_as_asked():
    model, prompt = make_model(seed=2), [4, 9, 1]
    samplings = [
        Sampling(max_new_tokens=3, temperature=0.0),
        Sampling(max_new_tokens=9, temperature=1.0, seed=1, stop_ids=(3, 4)),
        Sampling(max_new_tokens=5, temperature=0.7, top_p=0.5, seed=2),
        Sampling(max_new_tokens=9, temperature=0.0, stop_ids=STOPS),
    ] * 2

    async def everybody(engine: LocalEngine, numbers: Sequence[int]) -> list[Generation]:
        return await asyncio.gather(*(engine.generate(n, prompt, samplings[n]) for n in numbers))

    got = asyncio.run(everybody(LocalEngine(model), range(8)))
    for number, generation in enumerate(got):
        assert same(generation, asyncio.run(everybody(LocalEngine(model), [number]))[0])
        assert len(generation.token_ids) <= samplings[number].max_new_tokens
        assert generation.truncated == (generation.token_ids[-1] not in samplings[number].stop_ids)
    assert len({tuple(g.token_ids) for g in got}) >= 4
