"""Truncated importance weights: numbers by hand, the gradient for any micro-batches, and the inverted ratio."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.invariants.test_objectives import all_tokens, defined_weights, policy_term
from tests.invariants.test_update import (
    Frozen,
    Gradient,
    assert_same,
    difference,
    experience,
    flat_gradient,
    make_config,
    scored_by_old,
)
from tests.steps import updated as update_policy
from tests.steps import with_column
from tests.toys import small_config
from tests.train.test_loop import steps

from turnwise.config import Config
from turnwise.credit.segments import Segments
from turnwise.objective.mismatch import mismatch_weights
from turnwise.objective.token_rules import TokenCredit
from turnwise.train.loop import train
from turnwise.train.update import Measured


def test_weights_by_hand():
    ratios = np.array([1.0, 0.5, 1.5, 1.99, 2.5, 1e-9])
    behavior = np.full(6, -3.0)
    weights, capped = mismatch_weights(behavior + np.log(ratios), behavior, cap=2.0)
    assert weights == pytest.approx([1.0, 0.5, 1.5, 1.99, 2.0, 1e-9])
    assert capped.tolist() == [False, False, False, False, True, False]


def test_weights_of_spans_by_hand():
    ratios = np.array([0.5, 1.5, 2.0, 1.5, 3.0])
    spans = Segments.from_lengths([2, 1, 2])
    weights, capped = mismatch_weights(np.log(ratios), np.zeros(5), cap=4.0, spans=spans)
    assert weights == pytest.approx([0.75, 0.75, 2.0, 4.0, 4.0])  # 4.5 is capped
    assert capped.tolist() == [False, False, False, True, True]


def test_no_ratio_is_too_large_for_its_cap():
    weights, capped = mismatch_weights(np.array([0.0]), np.array([-5000.0]), cap=3.0)
    assert weights == pytest.approx([3.0])
    assert capped.all()


def with_mismatch(config: Config) -> Measured:
    """As if the engine had reported other log-probabilities: ratios from 0.5 to 2, drawn once."""
    scored = scored_by_old(config)
    noise = np.random.default_rng(4).uniform(-math.log(2), math.log(2), len(scored.batch.columns["logprob_T"]))
    return with_column(scored, behavior_logprob_T=scored.batch.columns["logprob_T"] + noise)


def updated(config: Config, scored: Measured) -> tuple[Gradient, dict[str, float]]:
    policy, _, _, _, advantage_R = experience()
    model = copy.deepcopy(policy.model)
    metrics, _ = update_policy(model, Frozen(model.parameters()), scored, advantage_R, config, step=1)
    return flat_gradient(model), metrics


def right(config: Config, log_ratios: list[float]) -> float:
    assert config.update.mismatch_cap
    return min(math.exp(sum(log_ratios)), config.update.mismatch_cap)


def upside_down(config: Config, log_ratios: list[float]) -> float:
    return right(config, [-log_ratio for log_ratio in log_ratios])


def bounded_below(config: Config, log_ratios: list[float]) -> float:
    assert config.update.mismatch_cap
    return max(math.exp(sum(log_ratios)), config.update.mismatch_cap)


def mean_over_span(config: Config, log_ratios: list[float]) -> float:
    return right(config, [sum(log_ratios) / len(log_ratios)])


def defined(config: Config, weigh: Callable[[Config, list[float]], float] = right) -> Gradient:
    """Token by token in float64, from the definition."""
    model = copy.deepcopy(experience()[0].model).double()
    tokens = all_tokens(config, model)
    # The log-ratio is the noise itself; what old_logprob is to the last digit does not matter for it.
    scored = with_mismatch(config)
    log_ratio = (scored.batch.columns["logprob_T"] - scored.batch.columns["behavior_logprob_T"]).tolist()
    weights = defined_weights(tokens, config.update.aggregate, [True] * len(tokens), config)
    loss = torch.zeros((), dtype=torch.float64)
    for at, weight in enumerate(weights):
        whole = config.update.mismatch_level == "trajectory"
        span = [n for n, other in enumerate(tokens) if other.trajectory == tokens[at].trajectory] if whole else [at]
        factor = weigh(config, [log_ratio[n] for n in span])
        loss = loss - weight * factor * policy_term(config, tokens, TokenCredit(), at)
    loss.backward()
    return flat_gradient(model)


OPTIONS: dict[str, dict[str, Any]] = {
    "token": {"mismatch_cap": 1.3},
    "trajectory": {"mismatch_cap": 1.3, "mismatch_level": "trajectory"},
    "trajectory ratio": {"mismatch_cap": 1.5, "importance": "trajectory", "aggregate": "trajectory-mean"},
    "cispo": {"mismatch_cap": 1.2, "clip": "cispo", "aggregate": "response-mean"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_gradient_is_the_one_of_the_definition(option):
    config = make_config(**OPTIONS[option])
    assert_same(updated(config, with_mismatch(config))[0], defined(config))


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("token", upside_down), ("token", bounded_below), ("trajectory", upside_down), ("trajectory", mean_over_span)],
)
def test_wrong_weights_are_far_from_the_definition(option, wrong):
    config = make_config(**OPTIONS[option])
    assert difference(defined(config, wrong), defined(config))[0] > 0.05


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("max_tokens", [1, 60])
def test_the_size_of_micro_batches_does_not_matter(max_tokens, option):
    one, other = make_config(**OPTIONS[option]), make_config(**OPTIONS[option], max_tokens=max_tokens)
    assert_same(updated(other, with_mismatch(other))[0], updated(one, with_mismatch(one))[0])


def test_an_engine_that_agrees_is_left_alone():
    config, plain = make_config(mismatch_cap=1.5), make_config()
    scored = scored_by_old(config)
    agreeing = with_column(scored, behavior_logprob_T=scored.batch.columns["logprob_T"])
    gradient, metrics = updated(config, agreeing)
    assert torch.equal(gradient, updated(plain, agreeing)[0])
    assert metrics["mismatch_weight"] == 1.0
    assert metrics["mismatch_capped_frac"] == 0.0


def test_what_was_done_is_logged():
    config = make_config(mismatch_cap=1.3)
    scored = with_mismatch(config)
    ratio_T = np.exp(scored.batch.columns["logprob_T"] - scored.batch.columns["behavior_logprob_T"])
    metrics = updated(config, scored)[1]
    assert metrics["mismatch_weight"] == pytest.approx(np.minimum(ratio_T, 1.3).mean())
    assert metrics["mismatch_capped_frac"] == pytest.approx((ratio_T > 1.3).mean())
    assert 0 < metrics["mismatch_capped_frac"] < 1
    assert "mismatch_weight" not in updated(make_config(), with_mismatch(make_config()))[1]


def test_a_run_with_importance_weights_logs_them(tmp_path):
    for record in steps(train(small_config(tmp_path, update={"mismatch_cap": 2.0, "learning_rate": 0.01}))):
        assert record["update/mismatch_weight"] == pytest.approx(1.0, abs=1e-4)  # the local engine rounds alike
        assert record["update/mismatch_capped_frac"] == 0.0
