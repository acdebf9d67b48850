"""Statistics of partitions, against loops that anybody can read."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import turnwise as tw

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=6)
numbers = st.floats(-1e6, 1e6, width=32)


@st.composite
def segmented(draw):
    """Lengths of segments, and one value an element."""
    drawn = draw(lengths)
    return drawn, np.array(draw(st.lists(numbers, min_size=sum(drawn), max_size=sum(drawn))))


@st.composite
def labelled(draw):
    """A label of each element, wherever it lies, and one value an element."""
    labels = draw(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
    return labels, np.array(draw(st.lists(numbers, min_size=len(labels), max_size=len(labels))))


def numbered(lengths: list[int]) -> list[int]:
    """The number of each element's segment."""
    return [number for number, length in enumerate(lengths) for _ in range(length)]


def by_part(part_of: list[int], values: np.ndarray) -> list[list[float]]:
    """The values of each part, given the part of each element."""
    parts: list[list[float]] = [[] for _ in set(part_of)]
    for part, value in zip(part_of, values.tolist(), strict=True):
        parts[part].append(value)
    return parts


def naive_std(part: list[float], ddof: int) -> float:
    mean = math.fsum(part) / len(part)
    divisor = len(part) - ddof
    return math.sqrt(math.fsum((value - mean) ** 2 for value in part) / divisor) if divisor > 0 else 0.0


# sums of at most 36 numbers up to 1e6: an error of a few 1e-9; where one value dwarfs the others the mean loses their
# digits
CLOSE = {"rtol": 1e-9, "atol": 1e-7}


@given(drawn=segmented())
def test_statistics_of_segments_equal_those_of_a_loop(drawn):
    check_statistics(tw.Segments.from_lengths(drawn[0]), numbered(drawn[0]), drawn[1])


@given(drawn=labelled())
def test_statistics_of_labels_equal_those_of_a_loop(drawn):
    in_order = sorted(set(drawn[0]))
    check_statistics(tw.Labels.of(np.array(drawn[0])), [in_order.index(label) for label in drawn[0]], drawn[1])


def check_statistics(partition: tw.Partition, part_of: list[int], values: np.ndarray) -> None:
    parts = by_part(part_of, values)
    assert len(partition) == len(parts)
    np.testing.assert_array_equal(partition.lengths, [len(part) for part in parts])
    np.testing.assert_allclose(partition.sum(values), [math.fsum(part) for part in parts], **CLOSE)
    np.testing.assert_allclose(partition.mean(values), [math.fsum(part) / len(part) for part in parts], **CLOSE)
    for ddof in (0, 1, 2):
        expected = [naive_std(part, ddof) for part in parts]
        np.testing.assert_allclose(partition.std(values, ddof=ddof), expected, rtol=1e-6, atol=1e-4)
    np.testing.assert_array_equal(partition.min(values), [min(part) for part in parts])
    np.testing.assert_array_equal(partition.max(values), [max(part) for part in parts])
    np.testing.assert_array_equal(partition.first(values), [part[0] for part in parts])
    np.testing.assert_array_equal(partition.broadcast(partition.first(values)), [parts[part][0] for part in part_of])


@given(drawn=segmented(), discount=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_suffix_sum_equals_a_loop_from_the_end(drawn, discount):
    segments, values = tw.Segments.from_lengths(drawn[0]), drawn[1]
    expected = []
    for part in by_part(numbered(drawn[0]), values):
        running, backwards = 0.0, []
        for value in reversed(part):
            running = value + discount * running
            backwards.append(running)
        expected += backwards[::-1]
    np.testing.assert_array_equal(segments.suffix_sum(values, discount=discount), expected)  # the same operations


@given(drawn=segmented(), data=st.data())
def test_suffix_sum_with_a_discount_an_element_equals_a_loop_from_the_end(drawn, data):
    segments, values = tw.Segments.from_lengths(drawn[0]), drawn[1]
    discount = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(values), max_size=len(values)))
    )
    expected = np.array(values)
    for row in reversed(range(len(values) - 1)):
        if segments.ids[row] == segments.ids[row + 1]:
            expected[row] += discount[row] * expected[row + 1]
    np.testing.assert_array_equal(segments.suffix_sum(values, discount=discount), expected)


@given(drawn=segmented(), end=numbers)
def test_following_and_preceding_undo_each_other_inside_a_segment(drawn, end):
    segments, values = tw.Segments.from_lengths(drawn[0]), drawn[1]
    back = segments.preceding(segments.following(values, end=end), start=segments.first(values))
    np.testing.assert_array_equal(back, values)
    np.testing.assert_array_equal(segments.last(segments.following(values, end=end)), end)


@given(drawn=segmented())
def test_segments_know_their_elements(drawn):
    segments, values = tw.Segments.from_lengths(drawn[0]), drawn[1]
    offset = 0
    for number, length in enumerate(segments.lengths.tolist()):
        inside = slice(offset, offset + length)
        np.testing.assert_array_equal(segments.ids[inside], number)
        np.testing.assert_array_equal(segments.positions[inside], np.arange(length))
        assert segments.last(values)[number] == values[inside][-1]
        offset += length
    assert offset == segments.num_elements == len(values)
    np.testing.assert_array_equal(tw.Segments.from_sorted_ids(segments.ids).offsets, segments.offsets)


@given(outer=lengths, data=st.data())
def test_segments_of_segments_cover_the_inner_elements(outer, data):
    inner = data.draw(st.lists(st.integers(1, 4), min_size=sum(outer), max_size=sum(outer)))
    groups, trajectories = tw.Segments.from_lengths(outer), tw.Segments.from_lengths(inner)
    np.testing.assert_array_equal(groups.of(trajectories).lengths, groups.sum(np.array(inner, dtype=np.float64)))


@given(
    data=st.data(),
    count=st.integers(1, 20),
    kinds=st.lists(
        st.sampled_from([[0, 1], [-5, 0, 5], [-0.5, 0.5, 1.5], [2**62, -(2**62), 0], [1e300, 1e-300]]),
        min_size=1,
        max_size=4,
    ),
)
def test_labels_of_several_columns_part_what_differs_in_any(data, count, kinds):
    columns = [np.array(data.draw(st.lists(st.sampled_from(k), min_size=count, max_size=count))) for k in kinds]
    labels = tw.Labels.of(*columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    same = np.array([[a == b for b in rows] for a in rows])
    np.testing.assert_array_equal(labels.ids[:, None] == labels.ids[None, :], same)
    assert sorted(set(labels.ids.tolist())) == list(range(len(labels))), "no part is empty"


@given(value=st.floats(-1e12, 1e12), drawn=segmented())
def test_the_mean_of_a_constant_is_that_constant_to_the_last_digit(value, drawn):
    segments, values = tw.Segments.from_lengths(drawn[0]), drawn[1]
    constant = np.full_like(values, value)
    np.testing.assert_array_equal(segments.mean(constant), value)
    np.testing.assert_array_equal(segments.std(constant, ddof=1), 0.0)


@given(drawn=segmented())
def test_arrays_of_a_partition_are_read_only(drawn):
    segments = tw.Segments.from_lengths(drawn[0])
    labels = tw.Labels.of(segments.ids)
    for array in (segments.offsets, segments.lengths, segments.ids, segments.positions, labels.ids, labels.lengths):
        assert not array.flags.writeable
