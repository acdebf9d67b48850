"""AdvEvo-MARL: one baseline per role, by hand and exactly."""

import itertools

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import ConfigError


def attacked(num_turns: int = 1) -> tw.Batch:
    """Two matches of an attacker and two defenders, whose turns share one return."""
    paid, who = [1, 0.2, 0.2, 0, 1, 0.4], ["attacker", "defender", "defender"] * 2
    agents = zip(paid, who, strict=True)
    turns = [[{"reward": r / num_turns, "player": name, "length": 1}] * num_turns for r, name in agents]
    return tw.Batch.from_trajectories([turns])


def test_advevo_with_one_role_is_dr_grpo_and_with_two_compares_within_each():
    batch = attacked(2)
    alone = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, {"player": ["x"] * batch.num_responses})
    method = tw.advevo(scope="group", whiten=False)
    np.testing.assert_allclose(method(alone), tw.dr_grpo()(alone), atol=1e-15)
    np.testing.assert_allclose(method(batch), np.repeat([0.5, -0.25, -0.25, -0.5, 0.55, -0.05], 2), atol=1e-15)


def test_advevo_does_not_pay_a_role_for_its_easier_task():
    """A failed attack on a good defence: every agent did what its role mostly does, and gets nothing."""
    batch = tw.Batch.from_trajectories(
        [[[{"reward": r, "player": who}] for r, who in zip([0, 1, 1] * 2, "add" * 2, strict=True)]]
    )
    np.testing.assert_array_equal(tw.advevo(scope="group", whiten=False)(batch), np.zeros(6))
    assert (np.sign(tw.grpo()(batch)) == [-1, 1, 1] * 2).all()


def test_advevo_whitens_each_role_by_itself():
    credit = tw.advevo(scope="group", whiten=True)(attacked())
    for role in ([0, 3], [1, 2, 4, 5]):
        assert credit[role].mean() == pytest.approx(0, abs=1e-12)
        assert credit[role].std(ddof=1) == pytest.approx(1, abs=1e-4)


def test_advevo_of_team_mates_that_share_a_return_counts_matches():
    """Exactly: a mate's return is in the mean, so that with M matches the factor is (M - 1) / M, not (2M - 1) / 2M.

    An agent says yes with probability p, as does its mate, and both get 1 if both do.
    """
    p, matches, method = 0.3, 2, tw.advevo(scope="group", whiten=False)
    expected = 0.0
    for said in itertools.product((0, 1), repeat=2 * matches):
        paid = np.repeat([float(a and b) for a, b in zip(said[::2], said[1::2], strict=True)], 2)
        batch = tw.Batch.from_trajectories([[[{"reward": r, "player": "d"}] for r in paid]])
        score = (np.array(said) - p) / (p * (1 - p))  # of each agent's log-probability in p
        chance = np.prod(np.where(said, p, 1 - p))
        expected += chance * (method(batch) * score).sum() / matches
    assert expected == pytest.approx((matches - 1) / matches * 2 * p)


def test_advevo_what_the_paper_does_not_tell_has_no_default():
    for options in ({}, {"scope": "group"}, {"whiten": False}):
        with pytest.raises(ConfigError, match="advevo"):
            tw.advevo(**options)
