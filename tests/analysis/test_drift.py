"""Drift of entropy: enumeration against closed forms, finite steps against first order, and the effect of AEM."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.analysis.drift import ADVANTAGES, POLICIES, REGIMES, OneState
from turnwise.credit.entropy import TreePolicy

EXACT = {"rtol": 1e-10, "atol": 1e-12}  # the same sum in another order
REWARD = np.array([1.0, -1.0, 0.5, 2.0, -0.3, 0.0])
each = pytest.mark.parametrize("name", POLICIES)


def covariance(probability, a, b) -> float:
    return float(probability @ ((a - probability @ a) * (b - probability @ b)))


@each
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_predicted_drift_of_baselines_is_a_covariance(name, size):
    """E[A (S - H)] is Cov(R, S) for RLOO and for the raw reward, and (K - 1) / K of it for Dr. GRPO."""
    state = OneState(POLICIES[name], size)
    expected = covariance(state.probability_Y, REWARD, -np.log(state.probability_Y))
    for method, factor in ((tw.reinforce(), 1.0), (tw.rloo(), 1.0), (tw.dr_grpo(), (size - 1) / size)):
        np.testing.assert_allclose(state.drift(state.credit(method, REWARD)), factor * expected, **EXACT)


@each
def test_grpo_of_two_drifts_by_a_fraction_of_the_covariance(name):
    """Groups of two that win and lose: A = +-1 / sqrt(2), where Dr. GRPO has +-1 / 2 (rewards 1 and 0)."""
    state = OneState(POLICIES[name], 2)
    reward = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    expected = np.sqrt(2) * 0.5 * covariance(state.probability_Y, reward, -np.log(state.probability_Y))
    np.testing.assert_allclose(state.drift(state.credit(tw.grpo(), reward)), expected, rtol=3e-6)  # eps 1e-6 in the std


@each
def test_the_plain_drift_is_the_gradient_of_entropy_along_the_expected_step(name):
    """To first order: grad H = -pi (log pi + H), and E[g] = pi (R - J) for the raw reward."""
    state = OneState(POLICIES[name], 3)
    p = state.probability_Y
    expected = (-p * (np.log(p) + state.entropy)) @ (p * (REWARD - p @ REWARD))
    np.testing.assert_allclose(state.plain_drift(state.credit(tw.reinforce(), REWARD)), expected, **EXACT)


@each
@pytest.mark.parametrize("natural", [True, False], ids=["natural", "plain"])
@pytest.mark.parametrize("method", [tw.grpo(), tw.aem(tw.rloo())], ids=["grpo", "aem(rloo)"])
def test_a_finite_step_tends_to_the_prediction_linearly(name, natural, method):
    state = OneState(POLICIES[name], 3)
    credit = state.credit(method, REWARD)
    predicted = state.drift(credit) if natural else state.plain_drift(credit)
    errors = [state.step(credit, size=size, natural=natural) - predicted for size in (4e-4, 2e-4, 1e-4)]
    ratios = np.divide(errors[:-1], errors[1:])
    np.testing.assert_allclose(ratios, 2.0, rtol=0.05)  # an error of first order halves with the step
    assert abs(errors[-1]) < 0.02


def test_a_step_by_hand():
    """Two responses of 3/4 and 1/4, groups of one, rewards +1 and -1.

    Natural step h: logits log(3/4) + h / (3/4) if the first is drawn, log(1/4) - h / (1/4) if the second.
    """
    state = OneState(TreePolicy({(): [0.75, 0.25]}), 1)
    credit = state.credit(tw.reinforce(), np.array([1.0, -1.0]))
    step = 0.3

    def entropy(a, b):
        p = a / (a + b)
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    before = entropy(0.75, 0.25)
    first = entropy(0.75 * np.exp(step / 0.75), 0.25)
    second = entropy(0.75, 0.25 * np.exp(-step / 0.25))
    expected = (0.75 * first + 0.25 * second - before) / step
    np.testing.assert_allclose(state.step(credit, size=step, natural=True), expected, **EXACT)
    first = entropy(0.75 * np.exp(step * 0.25), 0.25 * np.exp(-step * 0.25))
    second = entropy(0.75 * np.exp(step * 0.75), 0.25 * np.exp(-step * 0.75))  # A = -1 turned about
    expected = (0.75 * first + 0.25 * second - before) / step
    np.testing.assert_allclose(state.step(credit, size=step, natural=False), expected, **EXACT)


def test_the_policies_show_and_hide_what_aem_looks_at():
    def correlation(state: OneState) -> float:
        p = state.probability_Y
        spread = covariance(p, state.token_entropy_Y, state.token_entropy_Y) * (p @ state.relative_Y**2)
        return covariance(p, state.token_entropy_Y, state.relative_Y) / np.sqrt(spread)

    assert correlation(OneState(POLICIES["shown"], 2)) > 0.5
    assert correlation(OneState(POLICIES["hidden"], 2)) < -0.3


def test_forgetting_the_chances_of_groups_is_no_expectation():
    state = OneState(POLICIES["shown"], 2)
    credit = state.credit(tw.reinforce(), REWARD)
    forgetful = float((credit * state.relative_Y[state.member_GK]).mean())
    assert abs(forgetful - covariance(state.probability_Y, REWARD, -np.log(state.probability_Y))) > 0.1


@pytest.fixture
def table(drift):
    return {(d.policy, d.advantage, d.regime): d for d in drift}


def test_every_setting_is_there_and_every_success_set_counted(table):
    assert len(table) == len(POLICIES) * len(ADVANTAGES) * len(REGIMES)
    for policy in POLICIES:
        for advantage in ADVANTAGES:
            assert sum(table[policy, advantage, regime].num_sets for regime in REGIMES) == 2**6 - 2


def test_failures_and_successes_mirror_each_other(table):
    """To exchange success and failure turns every A about, and with it all that is of first order."""
    for policy in POLICIES:
        for advantage in ADVANTAGES:
            failures = table[policy, advantage, "failures dominate"]
            successes = table[policy, advantage, "successes dominate"]
            np.testing.assert_allclose(failures.predicted, -successes.predicted, **EXACT)
            np.testing.assert_allclose(failures.aem_failures, -successes.aem_successes, **EXACT)
            assert failures.agree == successes.agree
            np.testing.assert_allclose(table[policy, advantage, "balanced"].aem, 0.0, atol=1e-12)


# what the page says


def test_by_sign_aem_does_what_it_promises_where_entropy_shows_surprise_and_the_reverse_where_it_hides_it(table):
    for (policy, advantage, regime), d in table.items():
        sign = 1 if policy == "shown" else -1
        assert sign * d.aem_failures > 0.01, (policy, advantage, regime)
        assert sign * d.aem_successes < -0.01, (policy, advantage, regime)


def test_in_all_aem_keeps_its_promise_for_raw_rewards_and_not_for_centred_ones(table):
    raw, centred = (table["shown", advantage, "failures dominate"] for advantage in ("raw", "grpo"))
    assert raw.agree > 0.9
    assert raw.aem > 0.1
    assert raw.aem_natural > 0.1
    assert raw.aem_plain > 0.03
    assert centred.agree < 0.5
    assert centred.aem < 0
    assert centred.aem_natural < 0
    assert centred.aem_plain < 0
    assert abs(centred.aem) < 0.25 * centred.aem_failures, "loss and gain nearly cancel"


def test_a_step_costs_entropy_where_none_is_predicted(table):
    for policy in POLICIES:
        for advantage in ADVANTAGES:
            balanced = table[policy, advantage, "balanced"]
            np.testing.assert_allclose(balanced.predicted, 0.0, atol=1e-9)
            assert balanced.natural < -0.01
            assert balanced.plain < -0.001
