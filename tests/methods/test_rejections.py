"""Which responses are rejected, by hand."""

import numpy as np
import pytest
from tests.methods.batches import batch_of, group_of

import turnwise as tw


def test_mismatch_is_rejected_outside_its_bounds_and_the_bounds_are_kept():
    ratios = np.array([0.999, 1.001, 0.9989, 1.0011, 1.0, 1.0])
    least = np.array([1e-4, 0.5, 0.5, 0.5, 0.99e-4, 1.01e-4])
    batch = batch_of([[6]], [1, 2, 3, 4, 5, 6], mismatch=np.log(ratios), mismatch_min=np.log(least))
    np.testing.assert_array_equal(tw.reject_mismatch()(batch), [1, 2, 0, 0, 0, 6])
    np.testing.assert_array_equal(tw.reject_mismatch(min_ratio=0.0)(batch), [1, 2, 0, 0, 5, 6])
    np.testing.assert_array_equal(tw.reject_mismatch(low=0.0, high=2.0)(batch), [1, 2, 3, 4, 0, 6])


def test_mismatch_is_rejected_by_response_behind_any_method():
    batch = batch_of([[2, 1]], [0, 1, 0], mismatch=[0.0, 0.1, 0.0], mismatch_min=[0.0] * 3)
    base = tw.trloo()(batch)
    np.testing.assert_array_equal(tw.chain(tw.trloo(), tw.reject_mismatch())(batch), base * [1, 0, 1])


def test_profiles_are_kept_with_their_probability():
    num = 4000
    batch = batch_of([[num] * 4], np.ones(4 * num), profile_frac=np.repeat([0.2, 0.3, 0.325, 0.4], num))
    kept = tw.reject_by_profile()(batch).reshape(4, num).mean(axis=1)
    assert kept[0] == kept[1] == 0.0
    assert abs(kept[2] - 0.25) < 4 * np.sqrt(0.25 * 0.75 / num)  # four standard errors
    assert kept[3] == 1.0
    assert set(tw.reject_by_profile()(batch)) == {0.0, 1.0}


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
