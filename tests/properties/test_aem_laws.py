"""Laws of AEM's coefficient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import rows

import turnwise as tw

# exp, a mean and a division: a few units in the last place
CLOSE = {"rtol": 1e-12, "atol": 1e-12}

scopes = st.sampled_from(["group", "trajectory", "batch"])
temperatures = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0])
ranges = st.sampled_from([0.0, 0.1, 1.0])


def parts(batch: tw.Batch, scope: str) -> tw.Partition:
    return {
        "group": batch.group_responses,
        "trajectory": batch.trajectories,
        "batch": tw.Labels.single(batch.num_responses),
    }[scope]


@given(table=rows(), scope=scopes, temperature=temperatures, min_range=ranges)
def test_the_mean_coefficient_of_a_scope_is_one(table, scope, temperature, min_range):
    batch, _ = table.built
    alpha_R = tw.entropy_coefficient(batch, temperature=temperature, scope=scope, min_range=min_range)
    np.testing.assert_allclose(parts(batch, scope).mean(alpha_R), 1.0, **CLOSE)


@given(table=rows(), scope=scopes, temperature=temperatures, min_range=ranges)
def test_the_largest_coefficient_is_exp_temperature_times_the_smallest(table, scope, temperature, min_range):
    batch, _ = table.built
    alpha_R = tw.entropy_coefficient(batch, temperature=temperature, scope=scope, min_range=min_range)
    partition = parts(batch, scope)
    spread = partition.max(batch.columns["entropy"]) - partition.min(batch.columns["entropy"])
    expected = np.where((spread < min_range) | (spread == 0), 1.0, np.exp(abs(temperature)))
    np.testing.assert_allclose(partition.max(alpha_R) / partition.min(alpha_R), expected, **CLOSE)


@given(table=rows(), scope=scopes, temperature=st.sampled_from([0.25, 1.0, 3.0]))
def test_a_surer_response_never_counts_less_than_a_more_hesitant_one_in_its_scope(table, scope, temperature):
    batch, _ = table.built
    alpha_R = tw.entropy_coefficient(batch, temperature=temperature, scope=scope)
    partition = parts(batch, scope)
    for part in range(len(partition)):
        inside = np.flatnonzero(partition.ids == part)
        by_entropy = alpha_R[inside][np.argsort(batch.columns["entropy"][inside], kind="stable")]
        assert (np.diff(by_entropy) <= 1e-12).all(), by_entropy


@given(table=rows(), scope=scopes, temperature=temperatures)
def test_sign_and_zeros_of_the_advantage_stay(table, scope, temperature):
    batch, _ = table.built
    modulated_R = tw.aem(tw.grpo(), temperature=temperature, scope=scope)(batch)
    np.testing.assert_array_equal(np.sign(modulated_R), np.sign(tw.grpo()(batch)))


@given(table=rows(), scope=scopes)
def test_nothing_happens_where_the_entropies_hardly_differ(table, scope):
    batch, _ = table.built
    range_ = parts(batch, scope).broadcast(
        parts(batch, scope).max(batch.columns["entropy"]) - parts(batch, scope).min(batch.columns["entropy"])
    )
    alpha_R = tw.entropy_coefficient(batch, scope=scope, min_range=0.1)
    np.testing.assert_array_equal(alpha_R[range_ < 0.1], 1.0)
    assert (parts(batch, scope).broadcast(parts(batch, scope).std(alpha_R, ddof=0))[range_ > 0.1] > 0.0).all()


@given(table=rows(), scope=scopes, temperature=st.sampled_from([0.25, 1.0, 3.0]))
def test_the_reversed_rule_is_a_negative_temperature_of_the_mirrored_entropies(table, scope, temperature):
    mirrored = table.replace(entropy=table.entropy.max() - table.entropy)
    reversed_R = tw.entropy_coefficient(table.built[0], temperature=-temperature, scope=scope, min_range=0.0)
    rule_R = tw.entropy_coefficient(mirrored.built[0], temperature=temperature, scope=scope, min_range=0.0)
    np.testing.assert_allclose(reversed_R, rule_R, **CLOSE)


@given(table=rows(), scope=scopes)
def test_temperature_zero_switches_it_off(table, scope):
    batch, _ = table.built
    np.testing.assert_array_equal(tw.aem(tw.rloo(), temperature=0.0, scope=scope)(batch), tw.rloo()(batch))


@given(table=rows(), unit=st.sampled_from([0.25, 2.0, 8.0]), offset=st.sampled_from([0.0, 1.0]))
def test_units_and_offset_of_entropy_do_not_matter(table, unit, offset):
    moved = table.replace(entropy=table.entropy * unit + offset)
    np.testing.assert_allclose(
        tw.entropy_coefficient(moved.built[0], min_range=0.0),
        tw.entropy_coefficient(table.built[0], min_range=0.0),
        rtol=1e-9,  # the offset costs digits of the smallest entropies, 1e-3 nats
    )


@given(table=rows(), scope=scopes, seed=st.integers(0, 1000))
def test_shuffle_deals_a_groups_own_coefficients_within_the_group(table, scope, seed):
    batch, _ = table.built
    ones = np.ones(batch.num_responses)
    plain_R, _ = tw.modulate_by_entropy(scope=scope).update(ones, None, batch)
    dealt_R, _ = tw.modulate_by_entropy(scope=scope, shuffle=True, seed=seed).update(ones, None, batch)
    again_R, _ = tw.modulate_by_entropy(scope=scope, shuffle=True, seed=seed).update(ones, None, batch)
    np.testing.assert_array_equal(dealt_R, again_R)
    for group in range(batch.num_groups):
        inside = batch.group_responses.ids == group
        np.testing.assert_array_equal(np.sort(dealt_R[inside]), np.sort(plain_R[inside]))


@pytest.mark.parametrize("scope", ["group", "trajectory"])
@given(table=rows())
def test_a_narrower_scope_sees_its_own_entropies_only(scope, table):
    shift = {"group": table.group, "trajectory": table.names()}[scope]
    offset = np.array([sorted(set(shift)).index(part) for part in shift], dtype=np.float64)
    moved = table.replace(entropy=table.entropy + offset)
    alpha_R = tw.entropy_coefficient(table.built[0], scope=scope, min_range=0.0)
    np.testing.assert_allclose(tw.entropy_coefficient(moved.built[0], scope=scope, min_range=0.0), alpha_R, rtol=1e-9)
