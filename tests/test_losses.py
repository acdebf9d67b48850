"""Objectives, by numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.base.errors import ConfigError
from turnwise.credit.segments import Segments
from turnwise.objective.kl import kl_penalty
from turnwise.objective.losses import policy_loss, span_log_ratio, token_weights
from turnwise.objective.regularizers import entropy_loss

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


@pytest.mark.parametrize(("ratio", "advantage", "loss", "binds"), CLIP)
def test_a_clip_that_keeps_the_gradient_above_its_bound(ratio, advantage, loss, binds):
    """The value is PPO's. A good token above the bound has the slope of the bound; the card of AEPO: 1.2 at 1 + 0.2."""
    old = torch.tensor([-1.0], dtype=torch.float64)
    logprob = (old + math.log(ratio)).requires_grad_()
    result = policy_loss(logprob, old, tokens(advantage), tokens(1.0), clip="keep", clip_low=0.2, clip_high=0.3)
    assert result.loss.item() == pytest.approx(loss)
    assert result.clipped == float(binds)
    result.loss.backward()
    assert logprob.grad is not None
    kept = -1.3 * advantage if ratio > 1.3 and advantage > 0 else 0.0
    assert logprob.grad.item() == pytest.approx(kept if binds else -ratio * advantage)
    single: Any = {"clip_low": tokens(0.2), "clip_high": tokens(0.3)}
    wide = policy_loss(logprob, old, tokens(advantage), tokens(1.0), clip="keep", **single)
    assert wide.loss.item() == pytest.approx(loss)


def gradient_of(loss, *leaves: torch.Tensor) -> list[float]:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)]).tolist()


def tokens(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ratio, advantage, loss under dual_clip=3 and widths .2/.3, d(loss)/d(logprob)
DUAL = [
    (1.2, -2.0, 2.4, 2.4),  # unclipped: rho * |A|
    (0.7, -2.0, 1.6, 0.0),  # PPO's own clip
    (2.9, -2.0, 5.8, 5.8),  # below the bound
    (3.5, -2.0, 6.0, 0.0),  # above: 3 * |A|, no gradient
    (3.5, 2.0, -2.6, 0.0),  # a good token: PPO's clip, never the dual one
    (0.2, 2.0, -0.4, -0.4),
    (9.0, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), DUAL)
def test_dual_clip_by_regions(ratio, advantage, loss, slope):
    old = tokens(-1.0)
    logprob = (old + math.log(ratio)).requires_grad_()
    options: Any = {"clip_low": 0.2, "clip_high": 0.3}
    result = policy_loss(logprob, old, tokens(advantage), tokens(1.0), dual_clip=3.0, **options)
    assert result.loss.item() == pytest.approx(loss)
    assert gradient_of(result.loss, logprob) == pytest.approx([slope])
    assert result.clipped == float(slope == 0 and advantage != 0)


def test_dual_clip_bounds_the_ratio_of_bad_tokens_whatever_the_clip():
    """Without a clip there is no gradient beyond the bound; CISPO's factor stays at it."""
    old, advantage = tokens(-1, -1, -1), tokens(-2, -2, 2)
    logprob = (old + tokens(2, 5, 5).log()).requires_grad_()
    for clip, slopes in [("none", [4, 0, -10]), ("cispo", [4, 6, -8])]:
        widths = {"clip_high": 3.0, "dual_clip": 3.0}
        result = policy_loss(logprob, old, advantage, tokens(1, 1, 1), clip=clip, **widths)  # pyright: ignore
        assert gradient_of(result.loss, logprob) == pytest.approx(slopes)


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.0, 1.1, 1.3, 4.0])
@pytest.mark.parametrize("advantage", [-2.0, 1.5])
def test_cispo_bounds_the_factor_and_keeps_the_gradient(ratio, advantage):
    """Its gradient is clip(rho) * A * grad(logprob), also where PPO has none."""
    old = tokens(-1.7)
    logprob = (old + math.log(ratio)).requires_grad_()
    result = policy_loss(logprob, old, tokens(advantage), tokens(0.5), clip="cispo", clip_low=0.2, clip_high=0.3)
    bounded = min(max(ratio, 0.8), 1.3)
    assert result.loss.item() == pytest.approx(-0.5 * bounded * advantage * (-1.7 + math.log(ratio)))
    assert gradient_of(result.loss, logprob) == pytest.approx([-0.5 * bounded * advantage])
    if ratio in (0.5, 1.0, 1.1, 4.0):  # at a bound itself rounding decides
        assert result.clipped == 0.5 * (ratio != bounded)


def test_without_a_lower_bound_cispo_follows_small_ratios():
    old = tokens(-1.0)
    logprob = (old + math.log(0.01)).requires_grad_()
    loss = policy_loss(logprob, old, tokens(1.0), tokens(1.0), clip="cispo", clip_low=1.0, clip_high=0.3).loss
    assert gradient_of(loss, logprob) == pytest.approx([-0.01])


@pytest.mark.parametrize(("ratio", "advantage"), [(0.01, -2.0), (7.0, 3.0), (1.0, 1.0)])
def test_without_a_clip_the_ratio_goes_anywhere(ratio, advantage):
    old = tokens(-1.0)
    logprob = (old + math.log(ratio)).requires_grad_()
    result = policy_loss(logprob, old, tokens(advantage), tokens(1.0), clip="none")
    assert result.loss.item() == pytest.approx(-ratio * advantage)
    assert gradient_of(result.loss, logprob) == pytest.approx([-ratio * advantage])
    assert result.clipped == 0


def test_clip_widths_can_differ_between_tokens():
    old, ratio = tokens(-1.0, -1.0, -1.0, -1.0), tokens(1.4, 1.4, 0.7, 0.7)
    low, high = tokens(0.2, 0.2, 0.2, 0.4), tokens(0.3, 0.5, 0.3, 0.3)
    advantage = tokens(1.0, 1.0, -1.0, -1.0)
    result = policy_loss(
        old + ratio.log(), old, advantage, tokens(1.0, 10.0, 100.0, 1000.0), clip_low=low, clip_high=high
    )
    assert result.loss.item() == pytest.approx(-1.3 - 14 + 80 + 700)
    assert result.clipped == 101


def test_an_unknown_clip_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"clip='pop' is unknown. Did you mean 'ppo'\?"):
        policy_loss(tokens(0.0), tokens(0.0), tokens(0.0), tokens(0.0), clip="pop")  # pyright: ignore


LOG_RATIO = tokens(0.1, -0.3, 0.5, 0.2, -0.4, 0.7)  # one turn of three tokens, then turns of one and of two
TURN = torch.tensor([0, 0, 0, 1, 2, 2])


def test_the_ratio_of_a_turn_is_the_exponential_of_its_mean_log_ratio():
    ratio = span_log_ratio(LOG_RATIO, TURN).exp()
    np.testing.assert_allclose(ratio[:3], 1.10517, atol=5e-6)  # exp(0.1)
    np.testing.assert_allclose(ratio[3:], np.exp([0.2, 0.15, 0.15]))


def test_the_numbers_of_spans_mean_nothing():
    """A micro-batch has the spans of some trajectories, in the order of their lengths."""
    shuffled = torch.tensor([4, 1, 0, 5, 3, 2])
    numbers = torch.tensor([17, 3, 90])[TURN]
    ours = span_log_ratio(LOG_RATIO[shuffled], numbers[shuffled])
    torch.testing.assert_close(ours, span_log_ratio(LOG_RATIO, TURN)[shuffled], rtol=0, atol=1e-15)


def direct_span_loss(logprob, old, advantage, weight, span, low, high):
    """GSPO without stop-gradients: a span's ratio, one advantage a span, the tokens' weights added up."""
    loss = torch.zeros((), dtype=torch.float64)
    for number in span.unique():
        own = span == number
        ratio = (logprob[own] - old[own]).mean().exp()
        a = advantage[own][0]
        loss = loss - weight[own].sum() * torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
    return loss


@pytest.mark.parametrize("widths", [(0.5, 0.5), (0.05, 0.12)])
def test_the_token_form_has_the_gradient_of_the_direct_formula(widths):
    old = tokens(-1.0, -0.2, -3.0, -0.7, -2.0, -0.1)
    advantage, weight = tokens(1.0, -2.0, 0.5)[TURN], tokens(1, 1, 1, 2, 3, 3) / 10
    logprob = (old + LOG_RATIO).requires_grad_()
    low, high = widths
    ours = policy_loss(logprob, old, advantage, weight, span=TURN, clip_low=low, clip_high=high).loss
    direct = direct_span_loss(logprob, old, advantage, weight, TURN, low, high)
    assert ours.item() == pytest.approx(direct.item())
    gradient = gradient_of(ours, logprob)
    assert gradient == pytest.approx(gradient_of(direct, logprob))
    assert (0.0 in gradient) == (widths[0] == 0.05)


@pytest.mark.parametrize("clip", ["ppo", "cispo", "none"])
def test_spans_of_one_token_are_plain_ratios(clip):
    old = tokens(-1.0, -0.2, -3.0, -0.7, -2.0, -0.1)
    advantage, weight = tokens(1.0, -2.0, 0.5)[TURN], tokens(1, 1, 1, 2, 3, 3) / 10
    logprob = (old + LOG_RATIO).requires_grad_()
    plain = policy_loss(logprob, old, advantage, weight, clip=clip)
    spans = policy_loss(logprob, old, advantage, weight, clip=clip, span=torch.arange(6))
    assert spans.loss.item() == pytest.approx(plain.loss.item(), rel=1e-15)
    assert spans.clipped == plain.clipped
    assert gradient_of(spans.loss, logprob) == pytest.approx(gradient_of(plain.loss, logprob), rel=1e-15)


def test_the_log_ratio_of_a_span_is_bounded():
    logprob = tokens(30.0, -5.0).requires_grad_()
    loss = policy_loss(logprob, tokens(0.0, 0.0), tokens(-1, -1), tokens(1, 1), span=torch.tensor([0, 0])).loss
    assert loss.item() == pytest.approx(2 * math.exp(10))
    assert gradient_of(loss, logprob) == [0, 0]


def test_the_penalty_is_the_absolute_log_ratio_at_chosen_tokens():
    old, penalty = tokens(-1, -1, -1, -1), tokens(0.5, 0, 2, 2)
    logprob = (old + tokens(0.3, 0.3, -0.2, 0.0)).requires_grad_()
    zero, weight = torch.zeros(4, dtype=torch.float64), tokens(1, 2, 3, 4)
    loss = policy_loss(logprob, old, zero, weight, clip="none", penalty=penalty).loss
    assert loss.item() == pytest.approx(1 * 0.5 * 0.3 + 3 * 2 * 0.2)
    assert gradient_of(loss, logprob) == pytest.approx([0.5, 0, -6, 0])


# tilt, ratio, the factor on A, for widths .2/.4: inside is (0.9, 1.2)
TILT = [(0.5, 1.1, 1.0), (0.5, 1.3, 1.5), (0.5, 0.85, 1.5), (-0.5, 1.1, 0.5), (-0.5, 1.3, 1.0), (-0.5, 0.85, 1.0)]
TILT += [(0.0, 1.1, 1.0), (0.0, 1.3, 1.0), (-1.0, 1.0, 0.0), (1.0, 1.35, 2.0)]


@pytest.mark.parametrize(("tilt", "ratio", "factor"), TILT)
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_redistribution_by_regions(tilt, ratio, factor, advantage):
    old = tokens(-1.0)
    logprob = (old + math.log(ratio)).requires_grad_()
    options: Any = {"clip_low": 0.2, "clip_high": 0.4}
    ours = policy_loss(logprob, old, tokens(advantage), tokens(1.0), tilt=tokens(tilt), **options).loss
    plain = policy_loss(logprob, old, tokens(factor * advantage), tokens(1.0), **options).loss
    assert ours.item() == pytest.approx(plain.item())
    assert gradient_of(ours, logprob) == pytest.approx(gradient_of(plain, logprob))


# trajectory 0: responses of 1 and 3 tokens; trajectory 1: one response of 2 tokens
RESPONSES, TRAJECTORIES = Segments.from_lengths([1, 3, 2]), Segments.from_lengths([2, 1])
WEIGHTS = {
    "token-mean": [1 / 6] * 6,
    "response-mean": [1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6],
    "trajectory-mean": [1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4],
    "nested-mean": [1 / 4, 1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 4],
    "constant": [1 / 10] * 6,  # two trajectories, constant 5
}
# trajectory 0 keeps the token of its first response and the last two of its second; trajectory 1 keeps none
KEPT = np.array([True, False, True, True, False, False])
KEPT_WEIGHTS = {
    "token-mean": [1 / 3, 0, 1 / 3, 1 / 3, 0, 0],
    "response-mean": [1 / 2, 0, 1 / 4, 1 / 4, 0, 0],
    "trajectory-mean": [1 / 3, 0, 1 / 3, 1 / 3, 0, 0],
    "nested-mean": [1 / 2, 0, 1 / 4, 1 / 4, 0, 0],
    "constant": [1 / 10, 0, 1 / 10, 1 / 10, 0, 0],
}


@pytest.mark.parametrize("aggregate", WEIGHTS)
def test_token_weights_by_hand(aggregate):
    weights = token_weights(RESPONSES, TRAJECTORIES, aggregate=aggregate, constant=5.0)
    np.testing.assert_allclose(weights, WEIGHTS[aggregate])
    if aggregate != "constant":
        assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("aggregate", KEPT_WEIGHTS)
def test_means_run_over_kept_tokens(aggregate):
    weights = token_weights(RESPONSES, TRAJECTORIES, aggregate=aggregate, constant=5.0, kept=KEPT)
    np.testing.assert_allclose(weights, KEPT_WEIGHTS[aggregate])
    everything = token_weights(RESPONSES, TRAJECTORIES, aggregate=aggregate, constant=5.0, kept=np.ones(6, dtype=bool))
    np.testing.assert_array_equal(everything, token_weights(RESPONSES, TRAJECTORIES, aggregate=aggregate, constant=5.0))
    nothing = token_weights(RESPONSES, TRAJECTORIES, aggregate=aggregate, constant=5.0, kept=np.zeros(6, dtype=bool))
    np.testing.assert_array_equal(nothing, 0)


def test_an_unknown_aggregate_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"aggregate='token_mean' is unknown. Did you mean 'token-mean'\?"):
        token_weights(RESPONSES, TRAJECTORIES, aggregate="token_mean")  # pyright: ignore[reportArgumentType]


POLICY = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)


def test_the_kl_estimate_is_never_negative_and_zero_for_equal_policies():
    for policy, reference in zip(POLICY, REFERENCE, strict=True):
        assert kl_penalty(policy.log(), reference.log()).item() > 0
        assert kl_penalty(policy.log(), policy.log()).item() == 0


def test_the_kl_estimate_is_unbiased():
    """Its mean over all tokens, weighted by the policy that samples them, is the divergence itself."""
    mean = (POLICY * kl_penalty(POLICY.log(), REFERENCE.log())).sum().item()
    exact = float((POLICY * (POLICY / REFERENCE).log()).sum())
    assert mean == pytest.approx(exact, rel=1e-12)
    swapped = float((REFERENCE * (REFERENCE / POLICY).log()).sum())
    assert abs(mean - swapped) > 0.05  # the other direction is another number


def test_the_kl_term_pulls_towards_the_reference():
    logprob = POLICY.log().requires_grad_()
    kl_penalty(logprob, REFERENCE.log()).sum().backward()
    assert logprob.grad is not None
    assert torch.equal(logprob.grad > 0, POLICY > REFERENCE)


# H, penalty * ([low - H]+ + [H - high]+) - bonus * H for bonus 0.1, penalty 0.4, corridor 0.5 .. 2, and its slope
CORRIDOR = [(0.25, 0.1 - 0.025, -0.4 - 0.1), (1.0, -0.1, -0.1), (3.0, 0.4 - 0.3, 0.4 - 0.1)]


def test_the_corridor_pushes_back_what_leaves_it():
    for entropy, loss, slope in CORRIDOR:
        leaf = tokens(entropy).requires_grad_()
        ours = entropy_loss(leaf, tokens(2.0), bonus=0.1, penalty=0.4, low=0.5, high=2.0)
        assert ours.item() == pytest.approx(2 * loss)
        assert gradient_of(ours, leaf) == pytest.approx([2 * slope])


def release_penalty(entropy: torch.Tensor, *, penalty: float, low: float, high: float) -> torch.Tensor:
    """Known wrong: EPO's release, which compares instead of measuring."""
    return torch.where((entropy > low) & (entropy < high), 0.0, penalty).sum()


def test_a_penalty_that_compares_has_no_gradient_and_ours_has():
    leaf = tokens(0.25, 1.0, 3.0).requires_grad_()
    corridor = {"penalty": 0.4, "low": 0.5, "high": 2.0}
    assert release_penalty(leaf, **corridor).item() == pytest.approx(0.8)
    assert not release_penalty(leaf, **corridor).requires_grad  # so all that the release trains on is the bonus
    ours = entropy_loss(leaf, tokens(1, 1, 1), bonus=0.0, **corridor)
    assert gradient_of(ours, leaf) == pytest.approx([-0.4, 0, 0.4])


def test_a_plain_bonus_has_no_corridor():
    leaf = tokens(0.0, 50.0).requires_grad_()
    assert gradient_of(entropy_loss(leaf, tokens(1, 2), bonus=0.3), leaf) == pytest.approx([-0.3, -0.6])


def test_a_penalty_is_on_the_tokens_own_ratio_whatever_the_span():
    new, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.3, -1.9])
    zero, ones = torch.zeros(2), torch.ones(2)
    made = policy_loss(new, old, zero, ones, clip="none", penalty=ones, span=torch.tensor([0, 0]))
    assert made.loss.item() == pytest.approx(0.3 + 0.1)


def test_the_kl_metric_is_of_the_free_log_ratio():
    given = [torch.tensor(each) for each in ([30.0, 2.0], [0.0, 0.0], [1.0, 1.0], [0.5, 0.5])]
    assert policy_loss(*given, bounds="verl").kl == pytest.approx(-16.0)
    assert policy_loss(*given, span=torch.tensor([0, 0])).kl == pytest.approx(-16.0)
