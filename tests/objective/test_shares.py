"""Metrics of the update are means and shares, whatever the loss divides by."""

import numpy as np
import pytest
import torch
from tests.toys import small_config

from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace, Traced
from turnwise.objective.losses import policy_loss
from turnwise.objective.terms import StepView
from turnwise.train.loop import train


@pytest.mark.parametrize("aggregate", ["token-mean", "response-mean", "trajectory-mean", "constant"])
def test_shares_of_a_step_sum_to_its_mini_batches(aggregate):
    tokens = Segments.from_lengths([3, 1, 2])
    batch = Batch(Segments.from_lengths([2]), Segments.from_lengths([2, 1]), np.zeros(3), {}, tokens)
    step = StepView(batch, None, mini_batches=2, max_new_tokens=8)  # pyright: ignore[reportArgumentType]
    object.__setattr__(step, "credit", type("Credit", (), {"kept_R": None}))
    share, weight = step.shares(aggregate), step.weights(aggregate)
    assert share.sum() == pytest.approx(2)
    np.testing.assert_allclose(share * weight.sum() / 2, weight)


def test_the_weights_of_metrics_do_not_change_the_loss():
    given = [torch.tensor(each) for each in ([0.5, -0.2], [0.0, 0.0], [1.0, 1.0], [3.0, 5.0])]
    plain, shared = policy_loss(*given), policy_loss(*given, share=torch.tensor([0.25, 0.75]))
    assert plain.loss == shared.loss
    assert (plain.clipped, shared.clipped) == pytest.approx((3.0, 0.25))
    assert shared.kl == pytest.approx(-0.25 * 0.5 + 0.75 * 0.2)


@pytest.mark.parametrize(
    "update", [{"aggregate": "constant"}, {"mismatch_cap": 4.0, "mismatch_floor": 3.0}, {"aggregate": "token-mean"}]
)
def test_a_share_of_tokens_is_none_above_1(tmp_path, update):
    """With `constant` it was 2.9, with weights of 3 for the mismatch 1.9."""
    moving = {"epochs": 4, "learning_rate": 0.1, "max_grad_norm": 100.0, "clip": "cispo", "clip_low": 1e-4}
    moving |= {"clip_high": 1e-4, **update}
    run = train(small_config(tmp_path, update=moving, method="dr_grpo", evaluate={"episodes": 0, "final_episodes": 0}))
    for record in run.metrics():
        if "update/clipped_frac" in record:
            assert 0.3 < record["update/clipped_frac"] <= 1.0 + 1e-6


def test_kept_tokens_of_a_rule_stay_within_the_responses_that_a_method_keeps():
    tokens, two = Segments.from_lengths([2, 2]), np.ones(2)
    batch = Batch(Segments.from_lengths([2]), Segments.from_lengths([1, 1]), np.zeros(2), {}, tokens)
    kept = Traced("x", two, two, two, kept_R=np.array([True, False]))
    step = StepView(batch, Trace(two, (kept,)))
    assert step.weights("token-mean", np.array([True, False, True, True])).tolist() == [1.0, 0.0, 0.0, 0.0]
