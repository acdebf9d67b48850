"""The declared effect of every method on the expected gradient, checked exactly: all groups of two and three."""

import numpy as np
import pytest
from tests.catalogue import ALL
from tests.oracle.enumerable import CORRIDORS, NUM_PARAMETERS, Corridor, check_declaration, measure, probability

import turnwise as tw


@pytest.mark.parametrize("name", CORRIDORS)
def test_the_probabilities_of_all_trajectories_sum_to_one(name):
    for trajectories in CORRIDORS[name].prompts:
        assert len(trajectories) == 15
        assert {len(trajectory) for trajectory in trajectories} == {1, 2, 3}, "stopping should vary"
        np.testing.assert_allclose(sum(map(probability, trajectories)), 1.0, rtol=1e-14)


@pytest.mark.parametrize("name", CORRIDORS)
def test_the_gradient_of_the_value_equals_finite_differences(name):
    corridor, step = CORRIDORS[name], 1e-5
    numeric = [
        (
            Corridor(corridor.theta + step * unit, corridor.reward).value()
            - Corridor(corridor.theta - step * unit, corridor.reward).value()
        )
        / (2 * step)
        for unit in np.eye(NUM_PARAMETERS)
    ]
    # central differences: error of order step^2 = 1e-10, times a third derivative of order 1
    np.testing.assert_allclose(corridor.gradient(), numeric, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_declared_gradient_is_the_measured_one(name):
    method = ALL[name]
    measured = measure(method)
    print(f"\n{name}: declared {method.gradient}", *measured, sep="\n  ")  # shown by `pytest -rP`
    check_declaration(method.gradient, measured)


def test_naive_baselines_are_measured_as_biased():
    """A per-turn baseline is off, because who still lives at turn t depends on the actions (verl #7244)."""
    per_turn = tw.chain(tw.discounted_return(), tw.center_by_group(over="responses", same="turn"))
    assert min(m.cosine for m in measure(per_turn)) < 0.98
    over_rows = tw.chain(tw.outcome_return(), tw.center_by_group(over="responses"))
    assert min(m.cosine for m in measure(over_rows)) < 0.999  # the classic: a group mean over turn rows


UNBIASED, BIASED = tw.Gradient("unbiased"), tw.Gradient("biased", reason="it is said")
SCALED = tw.Gradient("scaled", factor=lambda size: (size - 1) / size, formula="(K - 1) / K")


@pytest.mark.parametrize(
    ("method", "lie", "complaint"),
    [
        (tw.grpo(), UNBIASED, "not parallel"),
        (tw.grpo(), SCALED, "not parallel"),
        (tw.rloo(), BIASED, "is parallel"),
        (tw.rloo(), SCALED, "expected x"),
        (tw.dr_grpo(), UNBIASED, "expected x"),
        (tw.dr_grpo(), BIASED, "is parallel"),
        (tw.gigpo(), UNBIASED, "not parallel"),
        (tw.rloo(), None, "declares"),
        (tw.grpo(), tw.Gradient("biased"), "say why"),
        (tw.dr_grpo(), tw.Gradient("scaled", formula="?"), "factor"),
    ],
)
def test_a_false_declaration_is_caught(method, lie, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_declaration(lie, measure(method))


def test_lone_trajectories_teach_nothing_and_keep_unbiased_only_where_they_keep_their_return():
    for corridor in CORRIDORS.values():
        np.testing.assert_array_equal(corridor.expected_update(tw.rloo(), 1), 0.0)
        np.testing.assert_allclose(
            corridor.expected_update(tw.rloo(convention="verl"), 1), corridor.gradient(), rtol=0, atol=1e-12
        )
