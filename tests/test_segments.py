"""Partitions, by hand."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import BatchError

VALUES = np.array([1.0, 2.0, 3.0, 4.0, 6.0])


def test_statistics_of_segments():
    segments = tw.Segments.from_lengths([2, 3])
    np.testing.assert_array_equal(segments.sum(VALUES), [3, 13])
    np.testing.assert_array_equal(segments.mean(VALUES), [1.5, 13 / 3])
    np.testing.assert_allclose(segments.std(VALUES, ddof=1), [np.sqrt(1 / 2), np.sqrt(7 / 3)], rtol=1e-15)
    np.testing.assert_allclose(segments.std(VALUES, ddof=0), [1 / 2, np.sqrt(14 / 9)], rtol=1e-15)
    np.testing.assert_array_equal(segments.min(VALUES), [1, 3])
    np.testing.assert_array_equal(segments.max(VALUES), [2, 6])
    np.testing.assert_array_equal(segments.first(VALUES), [1, 3])
    np.testing.assert_array_equal(segments.last(VALUES), [2, 6])
    np.testing.assert_array_equal(segments.broadcast(np.array([10.0, 20.0])), [10, 10, 20, 20, 20])


def test_statistics_of_labels_that_lie_apart():
    labels = tw.Labels.of(np.array([7, 3, 7, 3, 7]))  # parts in the order of the labels: 3, 7
    assert len(labels) == 2
    np.testing.assert_array_equal(labels.ids, [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(labels.lengths, [2, 3])
    np.testing.assert_array_equal(labels.sum(VALUES), [6, 10])
    np.testing.assert_array_equal(labels.first(VALUES), [2, 1])
    np.testing.assert_array_equal(labels.min(VALUES), [2, 1])
    np.testing.assert_array_equal(labels.max(VALUES), [4, 6])
    np.testing.assert_array_equal(labels.broadcast(np.array([10.0, 20.0])), [20, 10, 20, 10, 20])


def test_labels_of_two_columns_part_what_differs_in_either():
    labels = tw.Labels.of(np.array([0, 0, 1, 1, 0]), np.array([5, 6, 5, 6, 5]))
    np.testing.assert_array_equal(labels.ids, [0, 1, 2, 3, 0])


def test_labels_of_negative_and_broken_numbers_do_not_merge_groups():
    # groups 0 and 1 with 0.5 and -0.5: as digits of one number, 0 * 1 + 0.5 equals 1 * 1 - 0.5
    labels = tw.Labels.of(np.array([0, 1]), np.array([0.5, -0.5]))
    np.testing.assert_array_equal(labels.ids, [0, 1])


def test_labels_single_is_one_part():
    single = tw.Labels.single(3)
    assert len(single) == 1
    np.testing.assert_array_equal(single.ids, 0)


def test_ids_positions_and_lengths():
    segments = tw.Segments([0, 1, 4])
    np.testing.assert_array_equal(segments.ids, [0, 1, 1, 1])
    np.testing.assert_array_equal(segments.positions, [0, 0, 1, 2])
    np.testing.assert_array_equal(segments.lengths, [1, 3])
    assert (len(segments), segments.num_elements, repr(segments)) == (2, 4, "Segments(lengths=[1, 3])")


def test_segments_of_segments():
    groups, trajectories = tw.Segments.from_lengths([2, 1]), tw.Segments.from_lengths([3, 1, 2])
    assert repr(groups.of(trajectories)) == "Segments(lengths=[4, 2])"


def test_segments_from_ids_begin_where_the_id_changes():
    assert repr(tw.Segments.from_sorted_ids(np.array([4, 4, 2, 9, 9, 9]))) == "Segments(lengths=[2, 1, 3])"


def test_suffix_sum_discounts_by_distance_and_stays_in_its_segment():
    segments = tw.Segments.from_lengths([3, 1, 2])
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    np.testing.assert_array_equal(segments.suffix_sum(values, discount=0.5), [3, 4, 4, 8, 32, 32])
    np.testing.assert_array_equal(segments.suffix_sum(values), [7, 6, 4, 8, 48, 32])
    np.testing.assert_array_equal(segments.suffix_sum(values, discount=0.0), values)
    np.testing.assert_array_equal(values, [1, 2, 4, 8, 16, 32])


def test_suffix_sum_takes_a_discount_an_element_and_applies_it_to_what_follows():
    segments = tw.Segments.from_lengths([3, 2])
    values, discount = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array([0.5, 0.25, 99.0, 2.0, 99.0])
    np.testing.assert_array_equal(
        segments.suffix_sum(values, discount=discount), [1 + 0.5 * 3, 2 + 0.25 * 4, 4, 40, 16]
    )
    np.testing.assert_array_equal(discount, [0.5, 0.25, 99.0, 2.0, 99.0])


def test_following_and_preceding_look_one_element_away_within_the_segment():
    segments = tw.Segments.from_lengths([3, 1, 1])
    np.testing.assert_array_equal(segments.following(VALUES), [2, 3, 0, 0, 0])
    np.testing.assert_array_equal(segments.following(VALUES, end=np.array([7.0, 8.0, 9.0])), [2, 3, 7, 8, 9])
    np.testing.assert_array_equal(segments.preceding(VALUES), [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(segments.preceding(VALUES, start=np.array([7.0, 8.0, 9.0])), [7, 1, 2, 8, 9])
    np.testing.assert_array_equal(segments.preceding(VALUES, start=5.0), [5, 1, 2, 5, 5])
    np.testing.assert_array_equal(VALUES, [1, 2, 3, 4, 6])


def test_the_std_is_zero_where_the_divisor_is_not_positive():
    segments = tw.Segments.from_lengths([1, 2, 3])
    values = np.array([5.0, 1.0, 3.0, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(segments.std(values, ddof=2), [0, 0, np.sqrt(2)], rtol=1e-15)


def test_a_sum_keeps_small_values_behind_large_ones():
    """A difference of cumulative sums would give 0 for the second segment."""
    segments = tw.Segments.from_lengths([1, 2])
    np.testing.assert_array_equal(segments.sum(np.array([1e18, 0.25, 0.5])), [1e18, 0.75])


@pytest.mark.parametrize("value", [0.1, -1 / 3, 1e300, 5e-324])
def test_the_mean_of_a_constant_is_exact(value):
    segments = tw.Segments.from_lengths([3, 7])
    np.testing.assert_array_equal(segments.mean(np.full(10, value)), value)


@pytest.mark.parametrize(
    ("offsets", "complaint"),
    [
        ([0, 2, 2, 3], r"segment 1 is empty \(offsets 2 to 2\); leave it out"),
        ([0, 3, 1], "segment 1 is empty"),
        ([0], "two or more"),
        ([1, 2], r"\[0, ..., num_elements\]"),
        (np.array([[0, 1]]), "must be a vector"),
    ],
)
def test_offsets_that_are_none_are_refused(offsets, complaint):
    with pytest.raises(BatchError, match=complaint):
        tw.Segments(offsets)


def test_the_caller_keeps_an_array_that_can_be_written():
    offsets = np.array([0, 2])
    segments = tw.Segments(offsets)
    offsets[1] = 99
    assert segments.num_elements == 2


def test_the_next_chosen_element_is_looked_for_within_the_segment():
    chosen = np.array([False, True, False, True, False, False])
    np.testing.assert_array_equal(tw.Segments([0, 3, 4, 6]).next_where(chosen), [1, 1, -1, 3, -1, -1])
