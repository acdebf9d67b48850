"""The KV-cache engine must say what a plain forward pass over the whole conversation says."""

import asyncio

import pytest
import torch
from tests.rollout.models import MODELS, STOPS, TOLERANCE, VOCABULARY, generate, make_model, plain_greedy, plain_logits

from turnwise.base.errors import EngineFault
from turnwise.engines import local
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.extensions.step_budget.line import Line


class Conversations:
    """Conversations that grow by random prompts, checked after every turn against the reference."""

    def __init__(self, model, seed: int = 0, **options):
        self.model, self.engine = model, LocalEngine(model, **options)
        self.ids: dict[int, list[int]] = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.stopped = self.cut = 0

    def prompt(self, number: int, length: int) -> None:
        new = torch.randint(0, VOCABULARY, (length,), generator=self.generator).tolist()
        self.ids[number] = [*self.ids.get(number, []), *new]

    def turn(self, numbers: list[int], max_new: int = 6) -> None:
        expected = {number: plain_greedy(self.model, self.ids[number], max_new) for number in numbers}
        sampling = Sampling(max_new_tokens=max_new, stop_ids=STOPS, temperature=0.0)
        got = generate(self.engine, {number: self.ids[number] for number in numbers}, sampling)
        for number, (tokens, logprobs, truncated) in expected.items():
            assert got[number].token_ids == tokens
            assert got[number].logprobs == pytest.approx(logprobs, abs=TOLERANCE)
            assert got[number].truncated == truncated
            state = got[number].state
            assert state is not None
            with torch.no_grad():
                states = self.model.get_decoder()(torch.tensor([self.ids[number]])).last_hidden_state
            torch.testing.assert_close(torch.from_numpy(state), states[0, -1].float(), atol=TOLERANCE, rtol=0)
            self.ids[number] += tokens
            self.cut += truncated
            self.stopped += not truncated


def test_a_response_in_pieces_has_the_state_before_its_first_token():
    model, prompt, sampling = make_model("qwen3"), [5, 6, 7], Sampling(max_new_tokens=6, seed=1)

    async def in_pieces():
        waits = asyncio.Event()
        line = Line(by_turns=False, cuts=True, on_change=waits.set)
        response = asyncio.ensure_future(line.generate(LocalEngine(model), 0, prompt, sampling))
        for share in (2, 4):
            await waits.wait()
            waits.clear()
            line.grant(share)
        return await response

    whole, pieces = generate(LocalEngine(model), {0: prompt}, sampling)[0], asyncio.run(in_pieces())
    assert pieces.token_ids == whole.token_ids
    torch.testing.assert_close(pieces.state, whole.state, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_turns_equal_a_plain_forward_pass(name):
    conversations = Conversations(make_model(name))
    for max_new, lengths in ((6, (3, 11, 7, 1)), (2, (5, 1, 2, 14)), (6, (1, 8, 3, 2)), (1, (70, 1, 1, 1))):
        for number, length in enumerate(lengths):
            conversations.prompt(number, length)
        conversations.turn(list(range(len(lengths))), max_new)
    assert conversations.stopped  # else the law was checked for one kind of ending only
    assert conversations.cut


def test_rows_may_be_dropped_added_left_out_and_reordered():
    conversations = Conversations(make_model("qwen3", seed=3), seed=1)

    def turn(*numbers: int) -> None:
        for number in numbers:
            conversations.prompt(number, 1 + (7 * number) % 5)
        conversations.turn(list(numbers))

    turn(0, 1, 2, 3)
    turn(3, 1, 0, 2)  # another order
    conversations.engine.close([1])
    turn(0, 2, 3)
    turn(2)  # a subset; the others stay cached
    turn(7, 3, 8)  # new ones among old ones
    turn(8, 0, 2, 3, 7)  # all back, in one more order
    conversations.engine.close([0, 3, 9])  # 9 never was
    turn(2, 7, 8)
    conversations.engine.close([2, 7, 8])
    conversations.ids.clear()
    turn(2, 4)  # the same number, another conversation
    turn(4, 5, 2)


def test_only_the_new_tokens_are_computed():
    model, fed = make_model(), []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    engine, sampling = LocalEngine(model), Sampling(max_new_tokens=1, temperature=0.0)
    first = generate(engine, {0: [1] * 9, 1: [2] * 7}, sampling)
    generate(engine, {n: [*p, *first[n].token_ids, 3, 4] for n, p in ((0, [1] * 9), (1, [2] * 7))}, sampling)
    hook.remove()
    assert fed == [(2, 9), (2, 3)]  # the last token of a response is fed with the next prompt


def test_stop_token_ends_a_response_and_belongs_to_it():
    model = make_model()
    greedy = plain_greedy(model, [1, 2, 3], 8, stops=())[0]
    stop = greedy[2]
    length = greedy.index(stop) + 1
    got = generate(
        LocalEngine(model), {0: [1, 2, 3]}, Sampling(max_new_tokens=8, stop_ids=(stop, 999), temperature=0.0)
    )[0]
    assert got.token_ids == greedy[:length]
    assert not got.truncated
    exact = Sampling(max_new_tokens=length, stop_ids=(stop,), temperature=0.0)
    assert not generate(LocalEngine(model), {0: [1, 2, 3]}, exact)[0].truncated  # the stop came with the last token
    shorter = Sampling(max_new_tokens=max(1, length - 1), stop_ids=(stop,), temperature=0.0)
    assert generate(LocalEngine(model), {0: [1, 2, 3]}, shorter)[0].truncated


def test_without_stop_tokens_responses_have_full_length():
    got = generate(LocalEngine(make_model()), {0: [1], 1: [2, 3]}, Sampling(max_new_tokens=4, temperature=1.0))
    assert [len(g.token_ids) for g in got.values()] == [4, 4]
    assert all(g.truncated for g in got.values())


def test_seeds_reproduce_and_differ():
    model = make_model()
    prompts = {number: [1 + number, 2, 3] for number in range(6)}

    def play(seed: int):
        return generate(LocalEngine(model), prompts, Sampling(max_new_tokens=8, stop_ids=STOPS, seed=seed))

    assert play(1) == play(1)
    assert play(1) != play(2)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.6), (0.7, 0.8)])
def test_reported_logprobs_are_those_of_the_distribution_sampled_from(temperature, top_p):
    model, prompt = make_model(seed=2), [4, 9, 1]
    sampling = Sampling(max_new_tokens=6, stop_ids=STOPS, temperature=temperature, top_p=top_p, seed=11)
    for generation in generate(LocalEngine(model), dict.fromkeys(range(8), prompt), sampling).values():
        ids = list(prompt)
        for token, logprob in zip(generation.token_ids, generation.logprobs, strict=True):
            probability = nucleus(torch.softmax(plain_logits(model, ids).double() / temperature, -1), top_p)
            assert logprob == pytest.approx(float(probability[token].log()), abs=TOLERANCE)
            ids.append(token)


def nucleus(probability: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest set of tokens with at least `top_p`, renormalised; written out, one token at a time."""
    kept, mass = torch.zeros_like(probability), 0.0
    for token in sorted(range(len(probability)), key=lambda token: -float(probability[token])):
        if mass >= top_p:
            break
        kept[token] = probability[token]
        mass += float(probability[token])
    return kept / kept.sum()


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3], [1, 2, 3, 4], [1, 2, 9, 4, 5, 6, 7, 8], [2, 2, 3, 4, 5, 6, 7, 8]],
    ids=["shorter", "nothing new", "differs at its end", "differs at its start"],
)
def test_a_conversation_that_does_not_extend_is_a_fault(prompt):
    engine = LocalEngine(make_model())
    sampling = Sampling(max_new_tokens=1, temperature=0.0)
    generate(engine, {0: [1, 2, 3, 4], 1: [1]}, sampling)
    with pytest.raises(EngineFault, match=r"conversation 0 must extend the 4 tokens"):
        generate(engine, {1: [1, 2, 3], 0: prompt}, sampling)


def test_an_engine_works_on_after_a_fault():
    model = make_model()
    engine, sampling = LocalEngine(model), Sampling(max_new_tokens=3, temperature=0.0)
    generate(engine, {0: [1, 2], 1: [3]}, sampling)
    with pytest.raises(EngineFault):
        generate(engine, {0: [1, 2], 2: [3, 4]}, sampling)
    engine.close([0, 1, 2])
    with pytest.raises(EngineFault):
        generate(engine, {0: []}, sampling)
    got = generate(engine, {5: [4, 4], 0: [1, 2]}, sampling)
    assert got[0].token_ids == plain_greedy(model, [1, 2], 3)[0]
    assert got[5].token_ids == plain_greedy(model, [4, 4], 3)[0]


def test_no_prompts_no_generations():
    assert generate(LocalEngine(make_model()), {}, Sampling(max_new_tokens=1)) == {}


def test_after_close_a_change_of_weights_takes_effect():
    model, other = make_model(seed=0), make_model(seed=1)
    engine, sampling = LocalEngine(model), Sampling(max_new_tokens=5, temperature=0.0)
    generate(engine, {0: [1, 2, 3, 4]}, sampling)
    model.load_state_dict(other.state_dict())
    engine.close()
    again = generate(engine, {0: [1, 2, 3, 4]}, sampling)
    assert again == generate(LocalEngine(other), {0: [1, 2, 3, 4]}, sampling)
    assert again[0].token_ids == plain_greedy(other, [1, 2, 3, 4], 5)[0]


def test_generation_leaves_the_model_trainable():
    model = make_model()
    generate(LocalEngine(model), {0: [1, 2]}, Sampling(max_new_tokens=2))
    model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_responses_of_different_limits_are_drawn_together(temperature, monkeypatch):
    """A budget of tokens gives each trajectory its own limit, which is no reason for a draw of its own."""
    limits = {0: 3, 1: 5, 2: 5, 3: 8}
    prompts = {number: [number + 1, 3] for number in limits}
    given = {n: Sampling(max_new_tokens=most, temperature=temperature, seed=5) for n, most in limits.items()}
    model = make_model()
    alone = {n: generate(LocalEngine(model), {n: prompts[n]}, given[n])[n] for n in limits}
    draws = []
    real = local.sample
    monkeypatch.setattr(local, "sample", lambda logits, *more: draws.append(len(logits)) or real(logits, *more))
    engine = LocalEngine(model)

    async def play():
        return await asyncio.gather(*(engine.generate(n, prompts[n], given[n]) for n in limits))

    together = dict(zip(limits, asyncio.run(play()), strict=True))
    assert {n: len(each.token_ids) for n, each in together.items()} == limits
    assert all(together[n].token_ids == alone[n].token_ids for n in limits)
    assert draws == [4, 4, 4, 3, 3, 1, 1, 1]
