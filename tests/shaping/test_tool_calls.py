"""Tool calls matched with a reference: the card's numbers, brute force, closed forms, edges."""

import doctest
import itertools
import sys

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.shaping import tool_calls
from turnwise.credit.shaping.tool_calls import (
    ToolCall,
    answer_f1,
    match_calls,
    similarity,
    transport_plan,
    turn_rewards,
)


def f(**arguments) -> ToolCall:
    return ToolCall("f", arguments)


def test_the_example_of_the_module_runs():
    assert doctest.testmod(tool_calls).failed == 0


@pytest.mark.parametrize(
    ("predicted", "reference", "expected"),
    [
        (f(a=1, b=2), f(a=1, b=3), 3 / 4),  # the card: J = 1, V = 1
        (f(a=1, b=2), f(a=1, b=2), 1),
        (f(), f(), 1),
        (f(a=1), f(), 1 / 2),  # J = 0
        (f(), f(a=1), 1 / 3),
        (f(a=1, c=2), f(a=1, b=2), (1 + 1 / 3 + 1) / 4),
        (f(a=[1, {"x": 2}]), f(a=[1, {"x": 2}]), 1),
        (f(a=None), f(a=0), 2 / 3),
        (f(b=None), f(a=None), 1 / 3),  # not given is not the same as given as nothing
        (ToolCall("F", {"a": 1}), f(a=1), 1),
        (ToolCall("g", {"a": 1}), f(a=1), 0),
    ],
)
def test_similarity(predicted, reference, expected):
    assert similarity(predicted, reference) == pytest.approx(expected, rel=1e-15)


def make_scores(monkeypatch, scores) -> tuple[list[ToolCall], list[ToolCall]]:
    """Calls that have these similarities."""
    table = {(f"p{i}", f"r{j}"): value for i, row in enumerate(scores) for j, value in enumerate(row)}
    monkeypatch.setattr(tool_calls, "similarity", lambda p, r: table[p.name, r.name])
    return [ToolCall(f"p{i}") for i in range(len(scores))], [ToolCall(f"r{j}") for j in range(len(scores[0]))]


def test_the_greedy_rule_is_no_assignment(monkeypatch):
    predicted, reference = make_scores(monkeypatch, [[0.9, 0.8], [0.8, 0.1]])
    np.testing.assert_array_equal(match_calls(predicted, reference), [0.8, 0.8])
    np.testing.assert_array_equal(match_calls(predicted, reference, rule="greedy"), [0.9, 0.1])


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (4, 2), (4, 4), (5, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_the_assignment_is_the_best_of_all(monkeypatch, shape, seed):
    scores = np.random.default_rng(seed).random(shape).round(1)
    predicted, reference = make_scores(monkeypatch, scores)
    small, large = sorted(shape)
    best = max(
        sum((scores if shape[0] <= shape[1] else scores.T)[k, other] for k, other in enumerate(choice))
        for choice in itertools.permutations(range(large), small)
    )
    assert match_calls(predicted, reference).sum() == pytest.approx(best, rel=1e-12)
    assert match_calls(predicted, reference, rule="greedy").sum() <= best + 1e-12


def test_a_reference_serves_one_call_only():
    twice = [f(a=1), f(a=1)]
    for rule in ("assignment", "greedy"):
        assert sorted(match_calls(twice, [f(a=1)], rule=rule).tolist()) == [0, 1]
        assert sorted(match_calls(twice, [f(a=1)], rule=rule, unmatched=-0.5).tolist()) == [-0.5, 1]
    np.testing.assert_array_equal(match_calls(twice, [f(a=1)], rule="greedy"), [1, 0])  # the earlier call first


def test_a_call_of_another_tool_is_unmatched_even_if_a_reference_is_left():
    for rule in ("assignment", "greedy"):
        np.testing.assert_array_equal(match_calls([ToolCall("g")], [f()], rule=rule, unmatched=-0.5), [-0.5])


def test_without_calls_or_without_references():
    for rule in ("assignment", "greedy", "transport"):
        assert match_calls([], [f()], rule=rule).shape == (0,)
        np.testing.assert_array_equal(match_calls([f(), f()], [], rule=rule), [0, 0])
    np.testing.assert_array_equal(match_calls([f()], [], unmatched=-0.5), [-0.5])
    np.testing.assert_array_equal(match_calls([f()], [], unmatched=-0.5, rule="transport"), [0])


def test_transport_of_two_by_two_in_closed_form():
    # T = [[x, 1/2 - x], [1/2 - x, x]] with (x / (1/2 - x))^2 = exp((S11 + S22 - S12 - S21) / reg)
    scores = np.array([[0.75, 0.5], [0.25, 0.6]])
    x = 0.5 / (1 + np.exp(-(0.75 + 0.6 - 0.5 - 0.25) / 0.2))
    np.testing.assert_allclose(transport_plan(scores, reg=0.1), [[x, 0.5 - x], [0.5 - x, x]], rtol=0, atol=2e-9)


def test_transport_rewards_share_one_over_all_calls(monkeypatch):
    scores = [[0.75, 0.5], [0.25, 0.6]]
    predicted, reference = make_scores(monkeypatch, scores)
    plan = transport_plan(np.array(scores))
    rewards = match_calls(predicted, reference, rule="transport")
    np.testing.assert_allclose(rewards, (plan * scores).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(match_calls(predicted, reference, rule="transport", per_call=True), 2 * rewards)
    assert rewards.sum() <= 1
    smooth = (transport_plan(np.array(scores), reg=0.5) * scores).sum(axis=1)
    of_turns = turn_rewards([[call] for call in predicted], reference, rule="transport", reg=0.5, per_call=True)
    np.testing.assert_allclose(of_turns, 2 * smooth, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (4, 3), (6, 6)])
def test_a_plan_has_uniform_margins_and_approaches_the_assignment(shape):
    scores = np.random.default_rng(1).random(shape)
    for reg in (1.0, 0.1, 0.02):
        plan = transport_plan(scores, reg=reg)
        np.testing.assert_allclose(plan.sum(axis=1), 1 / shape[0], rtol=0, atol=1e-8)
        np.testing.assert_allclose(plan.sum(axis=0), 1 / shape[1], rtol=0, atol=1e-8)
    sharp = transport_plan(np.eye(4)[[2, 0, 3, 1]], reg=0.001)  # exp(1000) would overflow
    np.testing.assert_allclose(sharp, np.eye(4)[[2, 0, 3, 1]] / 4, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("Oslo", "oslo!", 1),
        ("the city of Oslo, Norway", "Oslo", 2 * 1 / (5 + 1)),
        ("Oslo Oslo Oslo", "Oslo", 1),  # sets of words
        ("it's", "it s", 1),
        ("Bergen", "Oslo", 0),
        ("", "Oslo", 0),
        ("", "", 0),
    ],
)
def test_answer_f1(answer, gold, expected):
    assert answer_f1(answer, gold) == pytest.approx(expected, rel=1e-15)


def test_a_turn_gets_the_mean_of_its_calls_and_the_answer_its_f1():
    reference = [f(a=1), ToolCall("g", {"x": 1, "y": 2}), ToolCall("h")]
    calls = [[f(a=1), ToolCall("other")], [], [ToolCall("g", {"x": 1, "y": 3})], [ToolCall("h")]]
    np.testing.assert_array_equal(turn_rewards(calls, reference), [0.5, 0, 0.75, 1])
    np.testing.assert_array_equal(turn_rewards(calls, reference, unmatched=-0.5), [0.25, 0, 0.75, 1])
    answered = turn_rewards(calls, reference, answer="yes", gold="yes no")
    np.testing.assert_allclose(answered, [0.5, 0, 0.75, 2 / 3], rtol=1e-15)


def test_calls_are_matched_over_the_whole_trajectory():
    np.testing.assert_array_equal(turn_rewards([[f(a=1)], [f(a=1)]], [f(a=1)], rule="greedy"), [1, 0])


def test_a_turn_that_answers_leaves_the_references_to_the_others():
    calls = [[f(a=2)], [f(a=1)]]
    np.testing.assert_allclose(turn_rewards(calls, [f(a=1)], answer="x", gold="x"), [2 / 3, 1], rtol=1e-15)


def test_from_calls_to_advantages():
    reference = [f(a=1), f(a=2)]
    trajectories = [[[f(a=1)], [f(a=2)]], [[f(a=1)], [f(a=3)]], [[f(a=3)]]]
    rewards = [turn_rewards(calls, reference) for calls in trajectories]
    batch = tw.Batch.from_trajectories([[[{"reward": 0.0, "step_reward": r} for r in turns] for turns in rewards]])
    credit = tw.matchtir()(batch)
    assert credit[0] > credit[2] > credit[4], "the more calls are right, the better"
    assert credit[1] > 0 > credit[3], "the second call was right in the first trajectory"


def test_errors_are_one_line(monkeypatch):
    with pytest.raises(ConfigError, match=r"rule='hungarian' is not one of"):
        match_calls([f()], [f()], rule="hungarian")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="Did you mean 'greedy'"):
        match_calls([f()], [f()], rule="gredy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"an answer needs gold="):
        turn_rewards([[]], [f()], answer="Oslo")
    with pytest.raises(ConfigError, match="reg=0 must be positive"):
        transport_plan(np.ones((1, 1)), reg=0)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ConfigError, match=r"needs scipy; pip install 'turnwise-rl\[shaping\]'"):
        match_calls([f()], [f()])
    np.testing.assert_array_equal(match_calls([f()], [f()], rule="greedy"), [1])
