"""REINFORCE, RLOO, GRPO, Dr. GRPO and GiGPO: their cards' checks and conventions, by hand."""

import inspect

import numpy as np
import pytest

import turnwise as tw


def group_of(*rewards, **columns) -> tw.Batch:
    """One prompt, one turn a trajectory."""
    num = len(rewards)
    return tw.Batch(tw.Segments([0, num]), tw.Segments(range(num + 1)), np.array(rewards, dtype=float), columns)


CARD = group_of(1, 0, 0, 0)


def test_rloo_card():
    np.testing.assert_allclose(tw.rloo()(CARD), [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-15)


def test_dr_grpo_card():
    np.testing.assert_array_equal(tw.dr_grpo()(CARD), [0.75, -0.25, -0.25, -0.25])


def test_grpo_standardises_with_the_sample_deviation():
    np.testing.assert_allclose(tw.grpo()(CARD), np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-6), rtol=1e-15)


@pytest.mark.parametrize(
    ("convention", "divisor"),
    [("turnwise", 0.5 + 1e-6), ("verl", 0.5 + 1e-6), ("trl", 0.5 + 1e-4), ("torchtitan", np.sqrt(3) / 4 + 1e-6)],
)
def test_grpo_conventions_differ_in_the_divisor(convention, divisor):
    np.testing.assert_allclose(tw.grpo(convention=convention)(CARD)[0], 0.75 / divisor, rtol=1e-15)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (tw.grpo(), 0), (tw.grpo(convention="trl"), 0), (tw.grpo(convention="torchtitan"), 0),
        (tw.rloo(), 0), (tw.dr_grpo(), 0), (tw.reinforce(), 3),
        (tw.grpo(convention="verl"), 3), (tw.grpo(convention="verl-agent"), 3), (tw.rloo(convention="verl"), 3),
    ],
)  # fmt: skip
def test_a_lone_trajectory(method, expected):
    np.testing.assert_array_equal(method(group_of(3)), [expected])


LONG = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 3, 4]), [0, 0, 1, 0])


def test_verl_agents_convention_counts_turn_rows():
    # three rows of return 1, one of return 0: mean 3/4, sample std 1/2
    np.testing.assert_allclose(
        tw.grpo(convention="verl-agent")(LONG), np.array([0.25, 0.25, 0.25, -0.75]) / (0.5 + 1e-6), rtol=1e-15
    )
    std = np.sqrt(0.5) + 1e-6
    np.testing.assert_allclose(tw.grpo()(LONG), np.array([0.5, 0.5, 0.5, -0.5]) / std, rtol=1e-15)


def test_verl_agents_lone_rule_is_about_rows_so_a_lone_long_trajectory_gets_nothing():
    lone = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0, 3])
    np.testing.assert_array_equal(tw.grpo(convention="verl-agent")(lone), 0)


def test_reinforce_is_the_discounted_reward_to_go():
    np.testing.assert_array_equal(tw.reinforce(discount=0.5)(LONG), [0.25, 0.5, 1, 0])
    assert str(tw.reinforce().gradient) == "unbiased"
    assert "discounted" in str(tw.reinforce(discount=0.5).gradient)


RACE = {"state_key": ["hall", "a", "hall", "b", "c"]}


def race(reward=(0, 1, 0, 0, 0)) -> tw.Batch:
    """Two trajectories leave the hall; the first succeeds."""
    return tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 2, 5]), reward, RACE)


def test_gigpo_adds_what_the_step_did_in_its_state():
    # episode: 1/2 and -1/2. In the hall: to go 1/2 and 0, mean 1/4, so 1/4 and -1/4. Elsewhere alone: 0.
    credit_R = tw.gigpo(discount=0.5, scale=False)(race())
    np.testing.assert_array_equal(credit_R, [0.75, 0.5, -0.75, -0.5, -0.5])
    half = tw.gigpo(discount=0.5, scale=False, weight=0.5)(race())
    np.testing.assert_array_equal(half, [0.625, 0.5, -0.625, -0.5, -0.5])


def test_gigpo_divides_both_parts_by_their_own_deviation():
    episode, step = 0.5 / (np.sqrt(0.5) + 1e-6), 0.25 / (np.sqrt(0.125) + 1e-6)
    np.testing.assert_allclose(
        tw.gigpo(discount=0.5)(race()), [episode + step, episode, -episode - step, -episode, -episode], rtol=1e-15
    )


def test_gigpo_without_a_state_visited_twice_is_grpo():
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 2, 5]), [0, 1, 0, 0, 0], {"state_key": range(5)})
    np.testing.assert_array_equal(tw.gigpo()(batch), tw.grpo()(batch))
    np.testing.assert_array_equal(tw.gigpo(scale=False)(batch), tw.dr_grpo()(batch))


def test_gigpo_compares_repeated_visits_of_one_trajectory():
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0, 1], {"state_key": ["x", "x"]})
    np.testing.assert_array_equal(tw.gigpo(discount=0.5, scale=False)(batch), [-0.25, 0.25])


def test_gigpo_in_verl_agents_convention_counts_rows_in_the_episode_part():
    credit_R = tw.gigpo(discount=0.5, scale=False, convention="verl-agent")(race())
    np.testing.assert_allclose(credit_R, [0.6 + 0.25, 0.6, -0.4 - 0.25, -0.4, -0.4], rtol=1e-15)  # mean 2 / 5
    lone = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 1]), [3], {"state_key": ["x"]})
    np.testing.assert_array_equal(tw.gigpo(convention="verl-agent")(lone), [3])
    np.testing.assert_array_equal(tw.gigpo()(lone), [0])


def test_gigpo_declares_the_gradient_of_what_is_left_without_its_step_part():
    assert str(tw.gigpo(weight=0.0, scale=False).gradient) == "scaled by (K - 1) / K"
    for biased in (
        tw.gigpo(weight=0.0),
        tw.gigpo(weight=0.0, scale=False, convention="verl-agent"),
        tw.gigpo(scale=False),
    ):
        assert biased.gradient is not None
        assert biased.gradient.kind == "biased"


def test_defaults_are_those_of_the_papers():
    """A default is part of the formula; nothing but the generated pages notices another one."""
    said = {
        tw.srgpo: {"weight": 0.5, "group_size": 16},
        tw.transforms.add_clarity_bonus: {"weight": 0.1, "temperature": 1.0, "scope": "batch"},
        tw.d3s: {"over": "trajectories", "seed": 0},
        tw.modulate_by_entropy: {"temperature": 1.0, "scope": "group", "min_range": 0.1, "shuffle": False},
        tw.transforms.add_potential_gain: {"weight": 0.5},
        tw.transforms.add_information: {"beta": 0.5, "temperature": 0.05, "gate": "sigmoid"},
        tw.transforms.reject_by_profile: {"low": 0.3, "width": 0.1},
        tw.transforms.add_length_reward: {"max_length": 32768},
        tw.transforms.center_by_halves: {"metric": "entropy", "mu": 1.0, "efficiency": 1.0},
    }
    for function, defaults in said.items():
        known = inspect.signature(function).parameters
        assert {name: known[name].default for name in defaults} == defaults, function
