"""Which responses are rejected, by hand."""

import numpy as np
import pytest
from tests.methods.batches import batch_of, group_of

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.metrics import credit_metrics, effective_size


def test_mismatch_is_rejected_outside_its_bounds_and_the_bounds_are_kept():
    ratios = np.array([0.999, 1.001, 0.9989, 1.0011, 1.0, 1.0])
    least = np.array([1e-4, 0.5, 0.5, 0.5, 0.99e-4, 1.01e-4])
    for over, lengths in (("responses", [[6]]), ("trajectories", [[1] * 6])):  # six turns of one, or six of one turn
        batch = batch_of(
            lengths, [1, 2, 3, 4, 5, 6], mismatch=np.log(ratios), mismatch_min=np.log(least), length=[7] * 6
        )
        for options, expected in (
            ({}, [1, 2, 0, 0, 0, 6]),
            ({"min_ratio": 0.0}, [1, 2, 0, 0, 5, 6]),
            ({"low": 0.0, "high": 2.0}, [1, 2, 3, 4, 0, 6]),
        ):
            np.testing.assert_array_equal(tw.reject_mismatch(over=over, **options)(batch), expected)


def test_mismatch_is_that_of_all_tokens_of_the_trajectory():
    """The scripts that Dr. Kernel ships ask for "geometric": one number for all turns."""
    batch = batch_of([[2, 2]], [1, 2, 3, 4], mismatch=[0.002, -0.002, 0, 0.004], mismatch_min=[-1] * 4, length=[5] * 4)
    np.testing.assert_array_equal(tw.reject_mismatch()(batch), [1, 2, 0, 0])
    np.testing.assert_array_equal(tw.reject_mismatch(over="responses")(batch), [0, 0, 3, 0])
    # 9 tokens of 0 and 1 of 0.004 have a mean of 0.0004
    by_tokens = batch_of([[2]], [3, 4], mismatch=[0, 0.004], mismatch_min=[-1] * 2, length=[9, 1])
    np.testing.assert_array_equal(tw.reject_mismatch()(by_tokens), [3, 4])
    # one impossible token rejects all turns
    vetoed = batch_of([[2, 1]], [1, 2, 3], mismatch=[0, 0, 0], mismatch_min=[-1, -9.3, -1], length=[5] * 3)
    np.testing.assert_array_equal(tw.reject_mismatch()(vetoed), [0, 0, 3])
    np.testing.assert_array_equal(tw.reject_mismatch(over="responses")(vetoed), [1, 0, 3])
    assert "length" not in tw.reject_mismatch(over="responses").needs


def test_mismatch_is_rejected_behind_any_method():
    batch = batch_of([[2, 1]], [0, 1, 0], mismatch=[0.0, 0.1, 0.0], mismatch_min=[0.0] * 3, length=[1] * 3)
    base = tw.trloo()(batch)
    for over, kept in (("trajectories", [0, 0, 1]), ("responses", [1, 0, 1])):
        np.testing.assert_array_equal(tw.chain(tw.trloo(), tw.reject_mismatch(over=over))(batch), base * kept)


def test_what_is_rejected_can_leave_the_loss():
    """As by the mask of Dr. Kernel's code, the loss counts the kept responses alone; elsewhere they teach nothing."""
    batch = group_of(
        1, 0, 3, mismatch=[0.0, 0.1, 0.0], mismatch_min=[0.0] * 3, length=[1] * 3, profile_frac=[0, 0, 0.9]
    )
    for reject, kept in (
        (tw.reject_mismatch(rejected="leave_out"), [True, False, True]),
        (tw.reject_by_profile(rejected="leave_out"), [False, True, True]),
    ):
        trace, _ = tw.chain(tw.trloo(), reject).trace(batch)
        np.testing.assert_array_equal(trace.advantage_R, tw.trloo()(batch) * kept)
        assert trace.kept_R.tolist() == kept


def test_profiles_are_kept_with_their_probability():
    num = 4000
    batch = batch_of([[num] * 4], np.ones(4 * num), profile_frac=np.repeat([0.2, 0.3, 0.325, 0.4], num))
    kept = tw.reject_by_profile()(batch).reshape(4, num).mean(axis=1)
    assert kept[0] == kept[1] == 0.0
    assert abs(kept[2] - 0.25) < 4 * np.sqrt(0.25 * 0.75 / num)  # four standard errors
    assert kept[3] == 1.0
    assert set(tw.reject_by_profile()(batch)) == {0.0, 1.0}


def test_profiles_of_failures_reject_nothing():
    """Dr. Kernel rejects correct code only; rejecting failures as well would leave no negative advantage."""
    batch = group_of(1, 0, profile_frac=[0.9, 0.0])
    np.testing.assert_array_equal(tw.chain(tw.trloo(), tw.reject_by_profile())(batch), [1, -1])
    hollow = group_of(1, 0, profile_frac=[0.0, 0.0])
    np.testing.assert_array_equal(tw.chain(tw.trloo(), tw.reject_by_profile())(hollow), [0, -1])


def test_a_column_can_say_which_responses_are_correct():
    batch = group_of(1, 2, 3, profile_frac=[0.0] * 3, success=[1.0, 0.0, 0.5])
    np.testing.assert_array_equal(tw.reject_by_profile(correct="success")(batch), [0, 2, 3])
    assert tw.reject_by_profile(correct="success").needs == ("profile_frac", "success")


def test_profile_draws_depend_on_the_seed_and_the_batch_alone():
    share = np.linspace(0.3, 0.4, 200)
    batch = batch_of([[200]], np.ones(200), profile_frac=share)
    other = batch_of([[200]], 2 * np.ones(200), profile_frac=share)
    first = tw.reject_by_profile()(batch)
    np.testing.assert_array_equal(tw.reject_by_profile()(batch), first)
    assert (tw.reject_by_profile(seed=1)(batch) != first).any()
    assert (tw.reject_by_profile()(other) != 2 * first).any()
    assert tw.reject_by_profile().across_groups, "a draw depends on where the response lies in its batch"


def test_a_width_of_nothing_is_refused():
    for width in (0.0, -1.0):
        with pytest.raises(tw.ConfigError, match="must be positive"):
            tw.reject_by_profile(width=width)(group_of(1, 0, profile_frac=[0.5, 0.5]))


# -- doses -------------------------------------------------------------------------------------------------------------


def drawn_credit(num):
    """A batch of one trajectory per response, whose credit is its reward."""
    values = np.random.default_rng(0).normal(size=num) * (np.arange(num) % 3 > 0)
    return tw.Batch.from_trajectories([[[{"reward": value}] for value in values]]), values


def size_of(values):
    return sum(abs(value) for value in values) ** 2 / sum(value * value for value in values)


def test_the_effective_size_is_the_number_of_equal_weights():
    assert effective_size(np.array([2.0, -2.0, 0.0, 2.0])) == 3
    assert effective_size(np.array([3.0, 1.0])) == 1.6
    assert effective_size(np.zeros(3)) == 0
    _, values = drawn_credit(50)
    assert effective_size(values) == pytest.approx(size_of(values))


def test_a_sample_has_the_dose_and_keeps_its_credit():
    batch, values = drawn_credit(300)
    trace, _ = tw.match_dose(share=0.2).trace(batch)
    kept = trace.kept_R
    assert kept is not None
    np.testing.assert_array_equal(trace.advantage_R, np.where(kept, values, 0.0))
    assert 57 < size_of(values[kept]) <= 60 < size_of(values)
    again, _ = tw.match_dose(share=0.2).trace(batch)
    np.testing.assert_array_equal(again.advantage_R, trace.advantage_R)
    other, _ = tw.match_dose(share=0.2, seed=1).trace(batch)
    assert (other.advantage_R != trace.advantage_R).any()


def test_a_sample_is_drawn_whatever_the_credit():
    """Choosing the largest credit would reach the size with fewer responses, and change the mean."""
    batch, values = drawn_credit(300)
    share = [tw.match_dose(share=0.2, seed=seed).trace(batch)[0].kept_R for seed in range(200)]
    chosen = np.mean(share, axis=0)
    assert abs(np.corrcoef(chosen, np.abs(values))[0, 1]) < 0.2
    assert np.mean([values[kept].mean() for kept in share]) == pytest.approx(values.mean(), abs=0.02)


def test_a_scale_has_all_responses_and_a_smaller_step():
    batch, values = drawn_credit(300)
    trace, _ = tw.match_dose(share=0.2, by="scale").trace(batch)
    np.testing.assert_array_equal(trace.advantage_R, values)
    assert trace.rate == pytest.approx(np.sqrt(60 / size_of(values)))
    assert credit_metrics(batch, trace)["effective_frac"] == pytest.approx(0.2)


def test_a_smaller_dose_stays_as_it_is():
    batch, values = drawn_credit(30)
    for by in ("sample", "scale"):
        np.testing.assert_array_equal(tw.match_dose(share=1.0, by=by)(batch), values)
    nothing = tw.Batch.from_trajectories([[[{"reward": 0.0}]] * 4])
    np.testing.assert_array_equal(tw.match_dose(share=0.1)(nothing), np.zeros(4))
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match=r"share=.* must be above 0 and at most 1"):
            tw.match_dose(share=share)(batch)
