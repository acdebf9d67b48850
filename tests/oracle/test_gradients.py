"""The declared effect of every method on the expected gradient, checked exactly."""

import pytest
from tests.catalogue import ALL
from tests.oracle.declarations import check_declaration, measured

import turnwise as tw

pytestmark = pytest.mark.usefixtures("array_types_unchecked")


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_declared_gradient_is_the_measured_one(name):
    check_declaration(ALL[name].gradient, measured(ALL[name]))


@pytest.mark.parametrize(
    ("method", "bound"),
    [
        # who still lives at turn t depends on the actions (verl #7244)
        (tw.chain(tw.discounted_return(), tw.center_by_group(over="responses", same="turn")), 0.97),
        # the classic: a group mean over turn rows
        (tw.chain(tw.outcome_return(), tw.center_by_group(over="responses")), 0.999),
        # leaving oneself out does not help where one's other turns stay in
        (tw.chain(tw.outcome_return(), tw.subtract_leave_one_out(over="responses")), 0.999),
    ],
    ids=["a baseline a turn", "a mean over responses", "leave one response out"],
)
def test_naive_baselines_are_measured_as_biased(method, bound):
    assert min(m.cosine for m in measured(method)) < bound


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
        check_declaration(lie, measured(method))
