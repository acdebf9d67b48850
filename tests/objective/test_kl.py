"""Estimators of the KL divergence: exact means and gradients over all tokens of a policy, and wrong ones rejected."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.base.errors import ConfigError
from turnwise.config import parse_config
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace
from turnwise.objective.kl import KLTerm, kl_penalty, reward_of_kl
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, StepView

LOGITS = torch.tensor([0.9, 0.1, -0.4, -1.2], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([-0.6, 0.7, 0.2, 0.0], dtype=torch.float64), 0)
Penalty = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# log p, log q, and by hand: d = log p - log q, d^2 / 2, exp(-d) + d - 1, |d|
LN2, LN4 = math.log(2), math.log(4)
BY_HAND = [
    (-LN2, -LN4, {"k1": LN2, "k2": LN2**2 / 2, "k3": 0.5 + LN2 - 1, "abs": LN2}),
    (-LN4, -LN2, {"k1": -LN2, "k2": LN2**2 / 2, "k3": 2 - LN2 - 1, "abs": LN2}),
    (-LN2, -LN2, {"k1": 0.0, "k2": 0.0, "k3": 0.0, "abs": 0.0}),
]
# their derivatives by log p: 1, d, 1 - exp(-d), sign(d)
SLOPES = [
    {"k1": 1.0, "k2": LN2, "k3": 0.5, "abs": 1.0},
    {"k1": 1.0, "k2": -LN2, "k3": -1.0, "abs": -1.0},
    {"k1": 1.0, "k2": 0.0, "k3": 0.0, "abs": 0.0},
]


@pytest.mark.parametrize("at", range(len(BY_HAND)))
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"])
def test_values_and_slopes_by_hand(at, estimator):
    logprob, reference, values = BY_HAND[at]
    leaf = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    value = kl_penalty(leaf, torch.tensor(reference, dtype=torch.float64), estimator)
    value.backward()
    base = estimator.rstrip("+")
    assert value.item() == pytest.approx(values[base])
    assert leaf.grad is not None
    assert leaf.grad.item() == pytest.approx(SLOPES[at]["k2" if "+" in estimator else base])


def golden() -> list[dict[str, Any]]:
    return json.loads((Path(__file__).parent / "verl_kl_penalty.json").read_text())["cases"]


@pytest.mark.parametrize("case", golden(), ids=lambda case: case["estimator"])
def test_verls_own_numbers(case):
    """`kl_penalty` of verl 0.9.1, as `tests/crosscheck/verl` runs it; k3 with its bounds."""
    leaf = torch.tensor(case["logprob"], dtype=torch.float64, requires_grad=True)
    value = kl_penalty(leaf, torch.tensor(case["reference"], dtype=torch.float64), case["estimator"], bounds="verl")
    value.sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(value.detach(), case["value"], rtol=1e-12)
    np.testing.assert_allclose(leaf.grad, case["gradient"], rtol=1e-12)


def gradient(of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Gradient by the logits of a function of the log-probabilities."""
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(of(torch.log_softmax(logits, 0)), logits)[0]


def reverse(logprob: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference), exactly."""
    return (logprob.exp() * (logprob - REFERENCE)).sum()


def forward(logprob: torch.Tensor) -> torch.Tensor:
    return (REFERENCE.exp() * (REFERENCE - logprob)).sum()


def in_the_loss(penalty: Penalty) -> torch.Tensor:
    """Mean over the policy's tokens of the gradient of the estimate."""
    return gradient(lambda logprob: (logprob.detach().exp() * penalty(logprob, REFERENCE)).sum())


def in_the_reward(penalty: Penalty) -> torch.Tensor:
    """Mean gradient of the score, weighed by an estimate without gradient: what a reward does."""
    return gradient(lambda p: (p.detach().exp() * penalty(p.detach(), REFERENCE) * p).sum())


def of(name: Any) -> Penalty:
    return lambda logprob, reference: kl_penalty(logprob, reference, name)


@pytest.mark.parametrize("name", ["k1", "k3", "k1+", "k3+"])
def test_k1_and_k3_are_unbiased(name):
    logprob = torch.log_softmax(LOGITS, 0)
    mean = (logprob.exp() * kl_penalty(logprob, REFERENCE, name)).sum()
    torch.testing.assert_close(mean, reverse(logprob))


RIGHT = [in_the_loss(of(name)) for name in ("k2", "k1+", "k3+", "abs+")] + [in_the_reward(of("k1"))]


@pytest.mark.parametrize("made", RIGHT, ids=["k2", "k1+", "k3+", "abs+", "k1 in the reward"])
def test_the_gradient_is_that_of_the_divergence(made):
    torch.testing.assert_close(made, gradient(reverse))


def test_k1_in_the_loss_has_no_mean_gradient():
    torch.testing.assert_close(in_the_loss(of("k1")), torch.zeros(4, dtype=torch.float64))


def test_k3_in_the_loss_has_the_gradient_of_the_other_direction():
    torch.testing.assert_close(in_the_loss(of("k3")), gradient(forward))


def test_k1_in_the_reward_and_k2_in_the_loss_agree_at_every_token():
    logprob = torch.log_softmax(LOGITS, 0)
    for one, other in zip(logprob, REFERENCE, strict=True):
        leaf = one.clone().requires_grad_()
        kl_penalty(leaf, other, "k2").backward()
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, kl_penalty(one, other, "k1"))


WRONG: dict[str, torch.Tensor] = {
    "k1 in the loss": in_the_loss(of("k1")),
    "k3 in the loss": in_the_loss(of("k3")),
    "abs in the loss": in_the_loss(of("abs")),
    "k2 in the reward": in_the_reward(of("k2")),
    "k3 in the reward": in_the_reward(of("k3")),
    "k2 without the half": in_the_loss(lambda logprob, reference: (logprob - reference) ** 2),
    "k1 in the reward, upside down": in_the_reward(lambda logprob, reference: reference - logprob),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_gradients_are_rejected(name):
    assert (WRONG[name] - gradient(reverse)).abs().max() > 0.02


def upside_down(logprob: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k3 of the other direction: exp(d) - d - 1."""
    return kl_penalty(reference, logprob, "k3")


def test_k3_upside_down_is_rejected():
    logprob = torch.log_softmax(LOGITS, 0)
    assert abs((logprob.exp() * upside_down(logprob, REFERENCE)).sum() - reverse(logprob)).item() > 0.02


def test_an_unknown_estimator_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"kl_estimator='k33' is unknown. Did you mean 'k3'\?"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k33")  # pyright: ignore[reportArgumentType]


DEFAULTS = [({"kl": 0.1}, "k3"), ({"kl": 0.1, "kl_in": "reward"}, "k1"), ({"kl": 0.1, "kl_estimator": "abs"}, "abs")]


@pytest.mark.parametrize(("settings", "estimator"), DEFAULTS)
def test_the_default_estimator_is_unbiased_where_it_stands(settings, estimator):
    assert UpdateConfig(**settings).estimator == estimator


REFUSED = [
    ({"kl_estimator": "k2"}, "update.kl_estimator='k2' has no effect without update.kl; set update.kl"),
    ({"kl_in": "reward"}, "update.kl_in='reward' has no effect without update.kl; set update.kl"),
    ({"kl": 0.1, "kl_in": "reward", "kl_estimator": "k3+"}, "names a gradient, and a reward has none; remove the +"),
    ({"kl": 0.1, "kl_in": "reward", "policy": False}, "which update.policy=false leaves out"),
    ({"mismatch": "mask"}, "update.mismatch='mask' has no effect without update.mismatch_cap; set"),
    ({"mismatch_floor": 0.5}, "update.mismatch_floor=0.5 has no effect without update.mismatch_cap; set"),
    ({"mismatch_cap": 2.0, "mismatch_floor": 3.0}, "update.mismatch_floor=3 is above update.mismatch_cap=2"),
    ({"mismatch_cap": 2.0, "mismatch_of": "geometric"}, "has no effect on single tokens; set update.mismatch_level"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        parse_config({"update": settings})
    assert message in str(caught.value)


def test_the_kl_metric_is_a_mean_whatever_the_loss_divides_by():
    tokens, one = Segments.from_lengths([2, 2]), Segments.from_lengths([1, 1])
    batch = Batch(Segments.from_lengths([2]), one, np.zeros(2), {"ref_logprob_T": np.array([-1.0, -2, -1, -2])}, tokens)
    step = StepView(batch, Trace(np.zeros(2)), mini_batches=2, max_new_tokens=8)
    _, metrics = reward_of_kl(step, np.zeros(4), UpdateConfig(kl=0.1, kl_in="reward"))
    assert metrics["kl_reference"] == pytest.approx(1.5)
    term = KLTerm(UpdateConfig(kl=0.1, kl_estimator="k1", aggregate="constant")).prepare(step)
    _, told = term.loss(Pass(torch.zeros(4), torch.zeros(4), torch.arange(4)))
    assert told["kl_reference"] == pytest.approx(2 * 1.5)  # two mini-batches see half of the tokens each
