"""TP-GRPO: step rewards by values, and turning points."""

import numpy as np
import pytest
from tests.methods.valued import CLOSE, NUM_RESPONSES, make_batch, random_batch

import turnwise as tw


def step_rewards(reward, value, lengths=None):
    batch = make_batch(lengths or [[len(reward)]], reward, value=value)
    return tw.reward_turning_points()(batch)


def test_a_step_is_paid_what_it_changed():
    np.testing.assert_array_equal(step_rewards([0, 0, 1], [0.5, 0.75, 0.25]), [0.5, -0.5, 0.75])  # first: goes on up
    np.testing.assert_array_equal(step_rewards([0, 0, 0], [0.5, 0.75, 0.25]), [0.25, -0.75, -0.25])
    np.testing.assert_array_equal(step_rewards([2, 0, -1], [0.5, 0.5, 0.25]), [2, -0.25, -1.25])


def test_a_turning_point_is_paid_for_all_that_followed():
    # V: 1/2, 1/4, 1/2, then 1. The second response turns the fall; 1 - 1/4 came from there on.
    np.testing.assert_array_equal(step_rewards([0, 0, 1], [0.5, 0.25, 0.5]), [-0.25, 0.75, 0.5])
    # downwards: V 1/2, 3/4, 1/4, then 0
    np.testing.assert_array_equal(step_rewards([0, 0, 0], [0.5, 0.75, 0.25]), [0.25, -0.75, -0.25])


@pytest.mark.parametrize(
    ("value", "second", "why"),
    [
        ((0.5, 0.25, 1.25), 1.0, "it overshoots: what follows goes down again, against it"),
        ((0.5, 0.5, 0.75), 0.25, "the one before it stood still: no turn"),
        ((0.5, 0.75, 0.875), 0.125, "the one before it went the same way"),
        ((0.5, 0.25, 0.125), -0.125, "it goes against the whole"),
    ],
)
def test_what_is_no_turning_point(value, second, why):
    assert step_rewards([0, 0, 1], value)[1] == second, why


def test_rounding_is_no_change():
    # V: 1/2, 3/10, 2/10 + 1/10, so that the second response changes nothing: in floats 0.1 + 0.2 - 0.3 = 5.6e-17
    for unit in (1.0, 12345.678, 1e-4):
        rewards, values = np.array([0, 0.1, 0.9]) * unit, np.array([0.5, 0.3, 0.2]) * unit
        np.testing.assert_allclose(step_rewards(rewards, values), np.array([-0.2, 0.0, 0.7]) * unit, atol=1e-15 * unit)


def test_the_first_response_turns_when_the_rest_goes_its_way():
    assert step_rewards([0, 1], [0.25, 0.5])[0] == 0.75
    assert step_rewards([0, 1], [0.25, 1.5])[0] == 1.25  # the rest falls
    assert step_rewards([0, 0], [0.5, 0.25])[0] == -0.5
    assert step_rewards([1], [0.25])[0] == 0.75  # nothing follows


def test_changes_sum_to_the_outcome_minus_the_first_value():
    batch = random_batch()
    changes = tw.sum_td_errors(decay=0.0)(batch)
    paid = tw.reward_turning_points()(batch)
    turned = paid != changes
    assert 0 < turned.sum() < NUM_RESPONSES
    ahead = tw.reinforce()(batch) - batch.columns["value"]
    np.testing.assert_allclose(paid[turned], ahead[turned], **CLOSE)


def test_tp_grpo_compares_responses_of_the_same_turn_in_the_group():
    value = [0.5, 0.5, 0.25, 0.5, 0.5, 0.5]
    batch = make_batch([[2, 2], [1, 1]], [0, 1, 0, 0, 0, 3], value=value)
    # turn 0: 0 and 1/4 (goes on down: no turning point); turn 1: 1/2 and -1/2
    z = np.sqrt(0.5)
    eps = [0.25 / 2 / (0.25 * z + 1e-6), 0.5 / (z + 1e-6), 1.5 / (3 * z + 1e-6)]
    expected = [-eps[0], eps[1], eps[0], -eps[1], -eps[2], eps[2]]
    np.testing.assert_allclose(tw.tp_grpo()(batch), expected, rtol=1e-12)
    lone = make_batch([[2, 1]], [0, 1, 1], value=[0.5, 0.25, 0.5])
    assert tw.tp_grpo()(lone)[1] == 0.0


def released_turning_points(values, rewards):
    """YunzeTong/TurningPoint-GRPO with the flags of common_op3.sh: process rewards of trajectories of equal length.

    `values[b]` are R_ode, R_1, ..., R_n: what is expected before every step, and after the last one.
    """
    expected = np.array(values)
    outcome = np.array(rewards, dtype=float)
    change, gain = np.diff(expected, axis=1), outcome - expected[:, 0]
    sign = np.sign(change) * np.sign(gain)[:, None]
    goes_on = np.sign(change) * np.sign(outcome[:, None] - expected[:, 1:]) > 0
    first, turned = np.ones((len(sign), 1), dtype=bool), (sign[:, :-1] < 0) & (sign[:, 1:] > 0)
    indicator = goes_on & np.concatenate([first, turned], axis=1)
    up, down = (np.flatnonzero(indicator & (s * gain > 0)[:, None]) for s in (1, -1))
    if min(len(up), len(down)) > 0:
        size = np.broadcast_to(np.abs(gain)[:, None], indicator.shape).ravel()
        kept = [side[np.argsort(-size[side], kind="stable")[: min(len(up), len(down))]] for side in (up, down)]
        indicator = np.zeros(indicator.size, dtype=bool)
        indicator[np.concatenate(kept)] = True
        indicator = indicator.reshape(change.shape)
    return np.where(indicator, outcome[:, None] - expected[:, :-1], change)


@pytest.mark.parametrize("seed", range(6))
def test_tp_grpo_of_the_release(seed):
    generator = np.random.default_rng(seed)
    groups, size, turns = 3, 4, 5
    outcome = generator.integers(0, 2, groups * size)
    values = generator.uniform(0, 1, (groups * size, turns))  # before every response; all is paid at the end
    rewards = np.zeros((groups * size, turns))
    rewards[:, -1] = outcome
    batch = make_batch([[turns] * size] * groups, rewards.ravel(), value=values.ravel())
    # the release knows what is expected after every step; at the end that is the outcome
    paid = released_turning_points(np.concatenate([values, outcome[:, None]], axis=1), outcome)
    np.testing.assert_allclose(tw.reward_turning_points(balance=True)(batch), paid.ravel(), **CLOSE)
    assert (tw.reward_turning_points()(batch) != paid.ravel()).any()
    by_prompt = paid.reshape(groups, size, turns)
    z = (by_prompt - by_prompt.mean(axis=1, keepdims=True)) / (by_prompt.std(axis=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(tw.tp_grpo(convention="release")(batch), z.ravel(), rtol=1e-9, atol=1e-9)


def test_turning_points_of_one_kind_are_all_paid():
    batch = make_batch([[3]], [0, 0, 1], value=[0.5, 0.25, 0.5])
    np.testing.assert_array_equal(tw.reward_turning_points(balance=True)(batch), tw.reward_turning_points()(batch))
    assert tw.reward_turning_points(balance=True).across_groups
    assert not tw.reward_turning_points().across_groups
