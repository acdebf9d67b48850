"""What TIGPO remembers of a task, by hand, over two steps."""

import json

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import ConfigError


def step(states, won, *, task="t", rewards=None):
    """One group: the states of each trajectory, and whether it succeeds."""
    rewards = rewards or [[0.0] * (len(own) - 1) + [float(good)] for own, good in zip(states, won, strict=True)]
    return tw.Batch.from_trajectories([[
        [{"reward": r, "state_text": s, "success": float(good), "task": task} for r, s in zip(paid, own, strict=True)]
        for paid, own, good in zip(rewards, states, won, strict=True)
    ]])  # fmt: skip


def test_edges_of_an_earlier_step_lead_to_success():
    nearness = tw.reward_remembered_nearness(omega=0.5)
    _, state = nearness.update(np.zeros(3), {}, step([["A", "B", "C"]], [True]))
    later = step([["A", "B"], ["A", "D"]], [False, False])
    known, after = nearness.update(np.zeros(4), json.loads(json.dumps(state)), later)
    # B is 2 away from success by the first step's edges; where failures end is 3 + 1 away, and so is D
    np.testing.assert_array_equal(known, [0.25, 0.0625, 0.0625, 0.0625])
    alone, _ = nearness.update(np.zeros(4), {}, later)
    np.testing.assert_array_equal(alone, np.zeros(4))
    other, _ = nearness.update(np.zeros(4), state, step([["A", "B"], ["A", "D"]], [False, False], task="u"))
    np.testing.assert_array_equal(other, np.zeros(4))
    assert ["A", "D"] in after["t"]
    assert len(after["t"]) == 4, "A to B is one edge"


def test_an_empty_text_is_a_state_and_no_success():
    nearness = tw.reward_remembered_nearness(omega=0.5)
    lost, _ = nearness.update(np.zeros(3), {}, step([["A", "", "C"]], [False]))
    np.testing.assert_array_equal(lost, np.zeros(3))
    shown, hidden = (step([["A", "B"], ["A", text, "D"]], [True, False]) for text in ("x", ""))
    for found in zip(*(nearness.update(np.zeros(5), {}, batch)[0] for batch in (shown, hidden)), strict=True):
        assert found[0] == found[1]


def test_outcomes_are_compared_with_the_tasks_last_visit():
    """The card: all fail, then all succeed: nothing alone, and above the mean together."""
    earlier = tw.standardize_with_earlier(eps=0.0)
    lost, state = earlier.update(np.zeros(4), {}, step([["A"]] * 4, [False] * 4))
    won, state = earlier.update(np.ones(4), json.loads(json.dumps(state)), step([["A"]] * 4, [True] * 4))
    np.testing.assert_array_equal(lost, np.zeros(4))
    np.testing.assert_allclose(won, 0.5 / np.std([0] * 4 + [1] * 4, ddof=1))
    again, _ = earlier.update(np.ones(4), state, step([["A"]] * 4, [True] * 4))
    np.testing.assert_array_equal(again, np.zeros(4), err_msg="only the last visit counts")


def test_nearness_is_a_factor():
    with pytest.raises(ConfigError, match=r"omega=0\.0 must be above 0 and at most 1"):
        tw.tigpo(omega=0.0)
