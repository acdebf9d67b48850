"""The building blocks, on batches small enough to check by hand."""

import math
import subprocess
import sys

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError
from turnwise.credit.transforms.grouping import Over, choice

# one prompt of three trajectories with 1, 2 and 3 turns, then a lone trajectory
GROUPS, TRAJECTORIES = tw.Segments([0, 3, 4]), tw.Segments([0, 1, 3, 6, 7])


def make_batch(reward, **columns) -> tw.Batch:
    return tw.Batch(GROUPS, TRAJECTORIES, reward, columns)


SPARSE = make_batch([3, 0, 6, 0, 0, 0, 5])


def test_outcome_return_gives_every_turn_the_whole_return():
    np.testing.assert_array_equal(tw.outcome_return()(make_batch([3, 1, 6, 1, 1, 1, 5])), [3, 7, 7, 3, 3, 3, 5])


def test_discounted_return_looks_ahead_only():
    batch = make_batch([3, 1, 6, 4, 2, 8, 5])
    np.testing.assert_array_equal(tw.discounted_return(discount=0.5)(batch), [3, 4, 6, 7, 6, 8, 5])
    np.testing.assert_array_equal(tw.discounted_return()(batch), [3, 7, 6, 14, 10, 8, 5])


def test_add_penalty_moves_its_own_response():
    batch = make_batch([0] * 7, penalty=[0, -0.5, 0, 0, 0, -1, 0])
    np.testing.assert_array_equal(tw.add_penalty()(batch), [0, -0.5, 0, 0, 0, -1, 0])
    np.testing.assert_array_equal(tw.add_penalty(weight=2.0)(batch), [0, -1, 0, 0, 0, -2, 0])


def credit(*blocks, batch=SPARSE):
    return tw.chain(tw.outcome_return(), *blocks)(batch)


def test_center_by_group_over_trajectories_counts_each_once():
    np.testing.assert_array_equal(credit(tw.center_by_group()), [0, 3, 3, -3, -3, -3, 0])  # mean (3 + 6 + 0) / 3


def test_center_by_group_over_responses_counts_long_trajectories_more():
    over_rows = credit(tw.center_by_group(over="responses"))
    np.testing.assert_array_equal(over_rows, [0.5, 3.5, 3.5, -2.5, -2.5, -2.5, 0])  # mean 15 / 6


def test_a_lone_member_gets_nothing_or_keeps_its_own():
    assert credit(tw.center_by_group())[-1] == 0
    assert credit(tw.center_by_group(lone="keep"))[-1] == 5
    assert credit(tw.subtract_leave_one_out())[-1] == 0
    assert credit(tw.subtract_leave_one_out(lone="keep"))[-1] == 5


def test_subtract_leave_one_out_compares_with_the_others():
    np.testing.assert_array_equal(credit(tw.subtract_leave_one_out()), [0, 4.5, 4.5, -4.5, -4.5, -4.5, 0])


def test_comparing_within_a_state_a_turn_or_a_role():
    batch = make_batch(
        [1, 2, 3, 4, 5, 6, 7], state_key=["x", "x", "y", "y", "x", "z", "x"], role=["a", "b", "a", "b", "a", "b", "a"]
    )

    def within(column):
        return tw.center_by_group(over="responses", same=column)(batch)

    np.testing.assert_allclose(within("state_key"), [-5 / 3, -2 / 3, -0.5, 0.5, 7 / 3, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(within("turn"), [1 - 7 / 3, 2 - 7 / 3, -1, 4 - 7 / 3, 1, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(within("role"), [-2, -2, 0, 0, 2, 2, 0], atol=1e-15)


def test_comparing_within_a_column_of_any_numbers_never_leaves_the_prompt():
    batch = tw.Batch(tw.Segments([0, 1, 2]), tw.Segments([0, 1, 2]), [1, 3], {"level": [0.5, -0.5]})
    np.testing.assert_array_equal(tw.center_by_group(over="responses", same="level")(batch), 0)


def test_scale_by_group_std_divides_by_the_std_plus_eps_and_leaves_lone_members():
    scaled = credit(tw.center_by_group(lone="keep"), tw.scale_by_group_std(eps=0.5))
    np.testing.assert_allclose(scaled, np.array([0, 3, 3, -3, -3, -3, 0]) / 3.5 + [0, 0, 0, 0, 0, 0, 5], rtol=1e-15)
    population = credit(tw.center_by_group(), tw.scale_by_group_std(ddof=0, eps=0.0))
    np.testing.assert_allclose(population[[0, 1, 3]], [0, np.sqrt(1.5), -np.sqrt(1.5)], rtol=1e-15)  # 3 / sqrt(18 / 3)


def test_scale_by_group_std_over_responses_and_within_states():
    batch = make_batch([1, 3, 5, 9, 2, 2, 4], state_key=["x", "x", "y", "y", "z", "z", "w"])
    scaled = tw.scale_by_group_std(over="responses", same="state_key", eps=1.0)(batch)
    expected = [1 / (np.sqrt(2) + 1), 3 / (np.sqrt(2) + 1), 5 / (np.sqrt(8) + 1), 9 / (np.sqrt(8) + 1), 2, 2, 4]
    np.testing.assert_allclose(scaled, expected, rtol=1e-15)


@pytest.mark.parametrize("block", [tw.center_by_group, tw.subtract_leave_one_out, tw.scale_by_group_std])
def test_credit_that_varies_within_a_trajectory_has_no_one_value_to_count(block):
    with pytest.raises(
        BatchError,
        match=rf"{block.__name__} counts one value per trajectory, but the credit varies within it "
        r"\(group 0, trajectory 1, turn 1\); use outcome_return\(\) before it, or over='responses'",
    ):
        block()(SPARSE)
    block(over="responses")(SPARSE)


@pytest.mark.parametrize("block", [tw.center_by_group, tw.subtract_leave_one_out, tw.scale_by_group_std])
def test_a_column_to_compare_within_needs_responses(block):
    with pytest.raises(ConfigError, match=r"same='turn' compares responses; use over='responses' with it"):
        block(same="turn")(SPARSE)


def test_comparing_whole_trajectories_that_agree():
    """Returns 3, 6, 9 and 5; players a, b, a and a."""
    batch = make_batch([3, 6, 6, 9, 9, 9, 5], player=list("abbaaaa"))
    np.testing.assert_array_equal(tw.center_by_group(same="player")(batch), [-3, 0, 0, 3, 3, 3, 0])
    np.testing.assert_array_equal(tw.subtract_leave_one_out(same="player")(batch), [-6, 0, 0, 6, 6, 6, 0])
    over_batch = tw.center_by_group(same="player", scope="batch")(batch)
    np.testing.assert_allclose(over_batch, np.array([9 - 17, 0, 0, 27 - 17, 27 - 17, 27 - 17, 15 - 17]) / 3, atol=1e-14)
    several = make_batch([3, 6, 6, 9, 9, 9, 5], player=list("abbabaa"))
    with pytest.raises(
        BatchError,
        match=r"center_by_group compares whole trajectories with the same player, but player varies within one "
        r"\(group 0, trajectory 2, turn 1\); make each player a trajectory, or use over='responses'",
    ):
        tw.center_by_group(same="player")(several)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (
            "trajectory",
            r"over='trajectory' is not one of \('trajectories', 'responses', 'tokens'\). Did you mean 'trajectories'\?",
        ),
        ("turn", r"over='turn' is not one of .* Known: responses, tokens, trajectories."),
        (None, "over=None is not one of"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(value, complaint):
    with pytest.raises(ConfigError, match=complaint):
        choice("over", value, Over)


CHOICES = """
import turnwise as tw
for make, options in [
    (tw.center_by_group, {"over": "trajectory"}), (tw.center_by_group, {"lone": "drop"}),
    (tw.scale_by_group_std, {"over": "response"}), (tw.modulate_by_entropy, {"scope": "groups"}),
    (tw.aem, {"scope": "prompt"}), (tw.grpo, {"convention": "ver"}), (tw.rloo, {"convention": "trl"}),
    (tw.gigpo, {"convention": "verl_agent"}), (tw.center_by_distinct, {"scope": "groups"}),
]:
    try:
        make(**options)  # before it sees a batch
    except tw.ConfigError as error:
        print(error)
"""


def test_every_choice_is_checked_where_no_type_checker_runs():
    # in a process without run-time type checks, which would refuse the value before the library can explain
    done = subprocess.run([sys.executable, "-c", CHOICES], capture_output=True, text=True, check=True)
    starts = [line.split(" is not one of ")[0].split(": ")[-1] for line in done.stdout.splitlines()]
    assert starts == [
        *("over='trajectory'", "lone='drop'", "over='response'", "scope='groups'", "scope='prompt'"),
        *("convention='ver'", "convention='trl'", "convention='verl_agent'", "scope='groups'"),
    ]
    assert "Did you mean 'verl-agent'?" in done.stdout
    assert done.stdout.startswith("center_by_group: over='trajectory'")


def test_where_all_entropies_agree_the_clarity_bonus_is_whole():
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 3]), [0.0] * 3, {"entropy": [0.7] * 3})
    np.testing.assert_array_equal(tw.add_clarity_bonus(weight=0.25)(batch), [0.25, 0.25, 0.0])  # h is 0


def test_the_fallback_of_standardize_by_tokens_has_the_same_eps():
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 1, 2]), [1.0, 0.0], {"length": [1, 3]})
    made = tw.standardize_by_tokens(eps=0.5, limit=0.1)(batch)
    np.testing.assert_allclose(made, np.array([0.5, -0.5]) / (math.sqrt(0.5) + 0.5))


def test_the_deviation_over_tokens_has_its_eps():
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 1, 2]), [1.0, 0.0], {"length": [1, 3]})
    made = tw.standardize_by_tokens(eps=0.5)(batch)
    np.testing.assert_allclose(made, np.array([0.75, -0.25]) / (math.sqrt(3 / 16) + 0.5))
