"""Uniform numbers that depend on what is drawn only, and tokens that come as often as they should."""

import pytest
import torch
from scipy import stats

from turnwise.engines import sampling
from turnwise.engines.base import Sampling
from turnwise.engines.sampling import sample


def uniform(seed: int, conversation: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(sampling.uniform(seed, conversation.numpy(), position.numpy()))


def grid(conversations: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    conversation, position = torch.meshgrid(torch.arange(conversations), torch.arange(positions), indexing="ij")
    return conversation.flatten(), position.flatten()


def splitmix(bits: int) -> int:
    """The published finaliser, in Python's integers."""
    mask = 2**64 - 1
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return bits ^ (bits >> 31)


@pytest.mark.parametrize("seed", [0, 1, 7, 2**40 + 3, 2**63 - 1, 2**63 + 7])
def test_numbers_are_the_published_hash(seed):
    conversation, position = grid(5, 7)
    expected = []
    for c, p in zip(conversation.tolist(), position.tolist(), strict=True):
        bits = seed % 2**63
        for part in (0, c, p):
            bits = splitmix((bits + part + 0x9E3779B97F4A7C15) % 2**64)
        expected.append((bits >> 40) / 2**24)
    assert uniform(seed, conversation, position).tolist() == expected


def test_the_finaliser_is_the_one_of_the_reference_implementation():
    assert (
        splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    )  # the first number of SplitMix64 seeded with 0, as published


def test_numbers_are_uniform_and_differ():
    numbers = uniform(3, *grid(300, 300))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(numbers.unique()) > 89_700  # 90,000 draws of 2^24 collide about 241 times
    for axis in (numbers, numbers.reshape(300, 300).T.flatten()):
        counts = torch.histc(axis, bins=50, min=0, max=1)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
        serial = torch.corrcoef(torch.stack([axis[:-1], axis[1:]]))[0, 1]
        assert abs(serial) < 4 / 300  # four standard errors


@pytest.mark.parametrize("what", ["seed", "conversation", "position"])
def test_every_argument_counts(what):
    conversation, position = grid(20, 20)
    first = uniform(5, conversation, position)
    shift = [int(name == what) for name in ("seed", "conversation", "position")]
    second = uniform(5 + shift[0], conversation + shift[1], position + shift[2])
    assert (first == second).float().mean() < 0.01
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.2  # 400 numbers: four standard errors


def test_numbers_do_not_depend_on_what_is_drawn_beside():
    conversation, position = grid(6, 6)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(1, conversation[order], position[order]), uniform(1, conversation, position)[order])
    assert uniform(1, conversation[7:8], position[7:8]) == uniform(1, conversation, position)[7]


PROBABILITY = torch.tensor([0.0, 0.05, 0.4, 0.0, 0.3, 0.25, 0.0])


def draw(numbers: torch.Tensor, **options) -> tuple[torch.Tensor, torch.Tensor]:
    logits = PROBABILITY.log().expand(len(numbers), -1)
    return sample(logits, Sampling(max_new_tokens=1, **options), numbers)[:2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 0.05, 0.4, 0, 0.3, 0.25, 0]),
        ({"temperature": 0.5}, [0, 1 / 126, 64 / 126, 0, 36 / 126, 25 / 126, 0]),  # squares: 25, 1600, 900, 625 of 3150
        ({"top_p": 0.65}, [0, 0, 4 / 7, 0, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [0, 0, 8 / 19, 0, 6 / 19, 5 / 19, 0]),
        ({"top_p": 0.01}, [0, 0, 1, 0, 0, 0, 0]),
        ({"temperature": 0.0}, [0, 0, 1, 0, 0, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_they_should_with_their_logprobs(options, expected):
    conversation, position = grid(200, 200)
    token, logprob = draw(uniform(11, conversation, position), **options)
    counts = torch.bincount(token, minlength=7).numpy()
    assert (counts > 0).tolist() == [share > 0 for share in expected]
    possible = [n for n, share in enumerate(expected) if share > 0]
    if len(possible) > 1:
        assert stats.chisquare(counts[possible], [40_000 * expected[n] for n in possible]).pvalue > 1e-3
    if options.get("temperature") == 0:
        expected = PROBABILITY.tolist()  # greedy reports the probability that the model gives
    assert torch.allclose(logprob.exp(), torch.tensor(expected, dtype=torch.float32)[token], atol=1e-6)


def test_the_ends_of_the_unit_interval_draw_tokens_that_exist():
    ends = torch.tensor([0.0, 2.0**-24, 1 - 2.0**-24, 1.0])
    assert draw(ends)[0].tolist() == [1, 1, 5, 5]
    assert draw(ends, top_p=0.65)[0].tolist() == [2, 2, 4, 4]


def test_thresholds_are_the_cumulative_probabilities():
    numbers = torch.tensor([0.049, 0.051, 0.449, 0.451, 0.749, 0.751])
    assert draw(numbers)[0].tolist() == [1, 2, 2, 4, 4, 5]


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
def test_as_many_tokens_are_ranked_as_have_the_probability_top_p(top_p):
    """Of 5,000: from one to most of them, in rows beside each other."""
    width = torch.tensor([0.0, 0.1, 1.0, 3.0, 9.0, 60.0]).repeat(20)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(width), 5000, generator=generator) * width[:, None]
    logits += 1e-4 * torch.arange(5000)  # none are equally likely
    logprobs = torch.log_softmax(logits, -1)
    ranked, order = logprobs.sort(-1, descending=True)
    before = torch.cat([torch.zeros(len(width), 1), ranked.exp().cumsum(-1)[:, :-1]], -1)
    kept = torch.zeros_like(logprobs).scatter(-1, order, torch.where(before < top_p, ranked.exp(), 0.0))
    kept /= kept.sum(-1, keepdim=True)
    numbers = torch.rand(len(width), generator=generator)
    token, logprob, _ = sample(logits, Sampling(max_new_tokens=1, top_p=top_p), numbers)
    assert (kept.gather(-1, token[:, None]) > 0).all()
    torch.testing.assert_close(logprob, kept.gather(-1, token[:, None])[:, 0].log(), rtol=1e-4, atol=1e-4)
    if top_p == 0.9:
        ranks = (kept > 0).sum(-1)
        assert ranks.min() < 64 < 4096 < ranks.max()


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.9}])
def test_what_is_not_finite_draws_a_token_and_says_so(options):
    for bad in (float("nan"), float("inf")):
        for vocabulary in (4, 1000):
            logits = torch.zeros(3, vocabulary)
            logits[1, 2] = bad
            token, logprob, _ = sample(logits, Sampling(max_new_tokens=1, **options), torch.full((3,), 0.99))
            assert token.max() < vocabulary
            assert torch.isfinite(logprob).tolist() == [True, False, True]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.5}])
def test_entropies_are_those_of_all_tokens_at_the_temperature(options):
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(0)) * 3
    entropy = sample(logits, Sampling(max_new_tokens=1, **options), torch.full((6,), 0.4))[2]
    expected = torch.distributions.Categorical(logits=logits / (options.get("temperature") or 1.0)).entropy()
    torch.testing.assert_close(entropy, expected, rtol=1e-5, atol=1e-6)
