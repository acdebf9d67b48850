"""Laws of `chain` and `mix`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import advantage, rows

import turnwise as tw

BLOCKS = [
    tw.outcome_return(),
    tw.discounted_return(discount=0.5),
    tw.center_by_group(over="responses"),
    tw.center_by_group(over="responses", same="state_key"),
    tw.subtract_leave_one_out(over="responses", same="turn"),
    tw.scale_by_group_std(over="responses"),
    tw.modulate_by_entropy(),
    tw.add_penalty(weight=0.5),
]
blocks = st.sampled_from(BLOCKS)


@given(table=rows(), a=blocks, b=blocks, c=blocks)
def test_chain_is_associative(table, a, b, c):
    batch, _ = table.built
    flat = tw.chain(a, b, c)(batch)
    np.testing.assert_array_equal(tw.chain(a, tw.chain(b, c))(batch), flat)
    np.testing.assert_array_equal(tw.chain(tw.chain(a, b), c)(batch), flat)


@given(table=rows(), a=blocks, b=blocks)
def test_chain_is_application_in_order(table, a, b):
    batch, _ = table.built
    middle_R, _ = a.update(batch.reward_R, None, batch)
    expected_R, _ = b.update(middle_R, None, batch)
    np.testing.assert_array_equal(tw.chain(a, b)(batch), expected_R)


@given(table=rows(), parts=st.lists(blocks, min_size=1, max_size=4), data=st.data())
def test_mix_is_the_weighted_sum_of_its_parts(table, parts, data):
    weights = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=len(parts), max_size=len(parts)))
    batch, _ = table.built
    expected = sum(
        weight * part.update(batch.reward_R, None, batch)[0] for part, weight in zip(parts, weights, strict=True)
    )
    np.testing.assert_array_equal(tw.mix(*parts, weights=weights)(batch), expected)


@given(table=rows(), a=blocks, b=blocks)
def test_mix_is_linear_in_its_weights(table, a, b):
    batch, _ = table.built
    once, twice = tw.mix(a, b, weights=(1.0, -0.5))(batch), tw.mix(a, b, weights=(2.0, -1.0))(batch)
    np.testing.assert_array_equal(twice, 2 * once)  # doubling changes no digit


@given(table=rows(), a=blocks, b=blocks, head=blocks)
def test_a_chain_goes_into_a_mix_from_the_front(table, a, b, head):
    batch, _ = table.built
    np.testing.assert_array_equal(
        tw.chain(head, tw.mix(a, b))(batch), tw.mix(tw.chain(head, a), tw.chain(head, b))(batch)
    )


@given(table=rows(), a=blocks)
def test_a_chain_or_mix_of_one_is_that_one(table, a):
    batch, _ = table.built
    np.testing.assert_array_equal(tw.chain(a)(batch), advantage(a, batch))
    np.testing.assert_array_equal(tw.mix(a)(batch), advantage(a, batch))
