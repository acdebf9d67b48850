"""Log-probabilities through an output layer: the gradient of autograd in float64, and how often logits are computed."""

import copy

import pytest
import torch

from turnwise.objective import output, tokens
from turnwise.objective.tokens import chunked_logprobs

TOKENS, WIDTH, WORDS = 50, 24, 300


def make_layer(*, frozen: bool = False, bias: bool = False) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WORDS, bias=bias).requires_grad_(not frozen)


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, targets of which some repeat, and a weight per token."""
    torch.manual_seed(1)
    return torch.randn(TOKENS, WIDTH), torch.randint(0, WORDS // 10, (TOKENS,)), torch.randn(TOKENS)


def exact(states, layer, targets, temperature):
    logprobs = torch.log_softmax(layer(states) / temperature, -1)
    return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def gradients(compute, layer, wanted, temperature, dtype):
    """Of the states and of the layer, in float64."""
    states, targets, weight_T = given()
    states, layer = states.to(dtype, copy=True).requires_grad_(), layer.to(dtype)
    parts = zip(wanted, compute(states, layer, targets, temperature), strict=True)
    torch.stack([share * (weight_T.to(dtype) * each).sum() for share, each in parts if share]).sum().backward()
    return [part.grad.double() for part in (states, *layer.parameters()) if part.grad is not None]


@pytest.mark.parametrize("wanted", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.3)], ids=["logprob", "entropy", "both"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [8, 1000])
@pytest.mark.parametrize("kind", ["trained", "frozen", "bias"])
def test_the_gradient_is_that_of_autograd_in_float64(wanted, temperature, chunk, kind):
    def layer():
        return make_layer(frozen=kind == "frozen", bias=kind == "bias")

    truth = gradients(exact, layer(), wanted, temperature, torch.float64)
    compute = lambda *arguments: chunked_logprobs(*arguments, chunk_tokens=chunk)  # noqa: E731
    ours = gradients(compute, layer(), wanted, temperature, torch.float32)
    assert len(ours) == len(truth) == {"trained": 2, "frozen": 1, "bias": 3}[kind]
    for found, true in zip(ours, truth, strict=True):
        # Processors round differently, autograd to 9 units of float32; a wrong term is thousands of times as large.
        assert (found - true).abs().max() < 16 * torch.finfo(torch.float32).eps * true.abs().max()


@pytest.mark.parametrize("kind", ["trained", "frozen", "bias"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_are_those_of_float64_in_one_chunk_and_in_several(temperature, kind):
    states, targets, _ = given()
    layer = make_layer(frozen=kind == "frozen", bias=kind == "bias")
    truth = exact(states.double(), copy.deepcopy(layer).double(), targets, temperature)
    several, one = (chunked_logprobs(states, layer, targets, temperature, chunk) for chunk in (8, 1000))
    for in_several, in_one, true in zip(several, one, truth, strict=True):
        torch.testing.assert_close(in_several, in_one, rtol=0, atol=1e-6)
        torch.testing.assert_close(in_one.double(), true, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["trained", "frozen", "bias"])
def test_the_layer_learns_without_gradients_of_states_and_entropies(kind):
    states, targets, _ = given()
    layer = make_layer(frozen=kind == "frozen", bias=kind == "bias")
    logprob, entropy = chunked_logprobs(states, layer, targets, chunk_tokens=8)
    assert logprob.requires_grad is entropy.requires_grad is (kind != "frozen")
    if kind != "frozen":
        logprob.sum().backward()
        assert layer.weight.grad is not None


@pytest.mark.parametrize("frozen", [False, True])
def test_under_autocast_only_the_products_are_rounded(frozen):
    """The sum over the vocabulary in bfloat16 would be off by a hundredth."""
    states, targets, _ = given()
    layer = make_layer(frozen=frozen)
    rounded = make_layer().to(torch.bfloat16)
    logits = rounded(states.to(torch.bfloat16)).double()
    truth = exact(logits, torch.nn.Identity(), targets, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = chunked_logprobs(states.requires_grad_(), layer, targets, chunk_tokens=8)
    for ours, true in zip(found, truth, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=0, atol=1e-5)

    def rounding(*arguments):
        with torch.autocast("cpu", torch.bfloat16):
            return chunked_logprobs(*arguments, chunk_tokens=8)

    truth = gradients(exact, make_layer(frozen=frozen), (1.0, 0.5), 1.0, torch.float64)
    ours = gradients(rounding, make_layer(frozen=frozen), (1.0, 0.5), 1.0, torch.float32)
    for found, true in zip(ours, truth, strict=True):
        assert (found - true).abs().max() < 2 * torch.finfo(torch.bfloat16).eps * true.abs().max()


@pytest.mark.parametrize(("kind", "passes"), [("trained", 14), ("frozen", 7), ("bias", 14)])
def test_logits_are_computed_once_more_on_the_way_back_unless_the_layer_is_frozen(kind, passes, monkeypatch):
    states, targets, _ = given()
    layer, rows = make_layer(frozen=kind == "frozen", bias=kind == "bias"), []
    plain = torch.nn.functional.linear

    def counted(inputs, *matrix):
        rows.append(len(inputs))
        return plain(inputs, *matrix)

    for place in (output, torch.nn.functional):
        monkeypatch.setattr(place, "linear", counted)
    chunked_logprobs(states.requires_grad_(), layer, targets, chunk_tokens=8)[0].sum().backward()
    assert max(rows) <= 8
    assert (len(rows), sum(rows)) == (passes, TOKENS * passes // 7)


def test_a_cpus_chunk_fits_its_cache_or_has_as_many_tokens_as_states_have_numbers(monkeypatch):
    rows = []
    monkeypatch.setattr(tokens, "linear_logprobs", lambda *arguments: rows.append(arguments[-1]))
    for words, width in ((1000, 64), (50_000, 64), (50_000, 2000), (10_000_000, 64)):
        layer = torch.nn.Linear(width, 1, bias=False)
        layer.weight = torch.nn.Parameter(torch.empty(1).expand(words, width))
        chunked_logprobs(torch.zeros(1, width), layer, torch.zeros(1, dtype=torch.long))
    assert rows == [1048, 64, 167, 1]
