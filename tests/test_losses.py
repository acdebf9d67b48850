"""Objectives, by numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from turnwise.errors import ConfigError
from turnwise.losses import kl_loss, policy_loss, token_weights
from turnwise.segments import Segments

# ratio, advantage, -min(ratio * A, clip(ratio, 0.8, 1.3) * A), does the clip bind
CLIP = [
    (1.0, 2.0, -2.0, False),
    (1.2, 2.0, -2.4, False),  # between 1 + clip_low and 1 + clip_high
    (1.5, 2.0, -2.6, True),  # the gain is capped at 1.3 * 2
    (0.5, 2.0, -1.0, False),  # a good action that became unlikely keeps its whole gradient
    (1.5, -2.0, 3.0, False),  # a bad action that became likely keeps its whole gradient
    (0.75, -2.0, 1.6, True),  # what a bad action can lose is capped at 0.8 * 2
    (0.9, -2.0, 1.8, False),
    (7.0, 0.0, 0.0, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "binds"), CLIP)
def test_clip_by_hand(ratio, advantage, loss, binds):
    old = torch.tensor([-1.0], dtype=torch.float64)
    logprob = (old + math.log(ratio)).requires_grad_()
    result = policy_loss(logprob, old, torch.tensor([advantage]), torch.ones(1), clip_low=0.2, clip_high=0.3)
    assert result.loss.item() == pytest.approx(loss)
    assert result.clipped == float(binds)
    assert result.kl == pytest.approx(-math.log(ratio))
    result.loss.backward()
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(0.0 if binds else -ratio * advantage)


def test_losses_are_weighted_sums():
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*CLIP, strict=True)]
    weight = torch.arange(1.0, len(CLIP) + 1, dtype=torch.float64)
    old = torch.full((len(CLIP),), -1.0, dtype=torch.float64)
    result = policy_loss(old + columns[0].log(), old, columns[1], weight, clip_low=0.2, clip_high=0.3)
    assert result.loss.item() == pytest.approx(float((weight * columns[2]).sum()))
    assert result.clipped == pytest.approx(float((weight * columns[3]).sum()))


# trajectory 0: responses of 1 and 3 tokens; trajectory 1: one response of 2 tokens
RESPONSES, TRAJECTORIES = Segments.from_lengths([1, 3, 2]), Segments.from_lengths([2, 1])
WEIGHTS = {
    "token-mean": [1 / 6] * 6,
    "response-mean": [1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6],
    "trajectory-mean": [1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4],
    "constant": [1 / 10] * 6,  # two trajectories, constant 5
}


@pytest.mark.parametrize("aggregate", WEIGHTS)
def test_token_weights_by_hand(aggregate):
    weights = token_weights(RESPONSES, TRAJECTORIES, aggregate=aggregate, constant=5.0)
    np.testing.assert_allclose(weights, WEIGHTS[aggregate])
    if aggregate != "constant":
        assert weights.sum() == pytest.approx(1.0)


def test_an_unknown_aggregate_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"aggregate='token_mean' is unknown. Did you mean 'token-mean'\?"):
        token_weights(RESPONSES, TRAJECTORIES, aggregate="token_mean")  # pyright: ignore[reportArgumentType]


POLICY = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)


def test_the_kl_estimate_is_never_negative_and_zero_for_equal_policies():
    for policy, reference in zip(POLICY, REFERENCE, strict=True):
        assert kl_loss(policy.log()[None], reference.log()[None], torch.ones(1)).item() > 0
        assert kl_loss(policy.log()[None], policy.log()[None], torch.ones(1)).item() == 0


def test_the_kl_estimate_is_unbiased():
    """Its mean over all tokens, weighted by the policy that samples them, is the divergence itself."""
    mean = kl_loss(POLICY.log(), REFERENCE.log(), POLICY).item()
    exact = float((POLICY * (POLICY / REFERENCE).log()).sum())
    assert mean == pytest.approx(exact, rel=1e-12)
    swapped = float((REFERENCE * (REFERENCE / POLICY).log()).sum())
    assert abs(mean - swapped) > 0.05  # the other direction is another number


def test_the_kl_term_pulls_towards_the_reference():
    logprob = POLICY.log().requires_grad_()
    kl_loss(logprob, REFERENCE.log(), torch.ones(4)).backward()
    assert logprob.grad is not None
    assert torch.equal(logprob.grad > 0, POLICY > REFERENCE)
