"""The small problems: probabilities, gradients, exact values, and a meaningful value in every column."""

import dataclasses
import itertools

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.analysis.decisions import MOVE, PROBLEMS, STAY, STOP, Problem
from turnwise.credit.analysis.filling import FILL, fill
from turnwise.credit.analysis.groups import enumerate_groups

each = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
EXACT = {"rtol": 1e-12, "atol": 1e-12}  # the same sum in another order
EVERY = [(problem, trajectory) for problem in PROBLEMS.values() for ts in problem.trajectories for trajectory in ts]


@each
def test_the_probabilities_of_all_trajectories_sum_to_one(problem):
    # without a stop two ways go on: 1 + 2 (1 + 2 (...)) = 2^(horizon + 1) - 1 trajectories
    for trajectories in problem.trajectories:
        assert len(trajectories) == 2 ** (problem.horizon + 1) - 1
        assert {len(t.turns) for t in trajectories} == set(range(1, problem.horizon + 1)), "stopping should vary"
        np.testing.assert_allclose(sum(t.probability for t in trajectories), 1.0, **EXACT)


@each
def test_the_gradient_of_the_objective_equals_finite_differences(problem):
    step = 1e-5
    numeric = [
        (
            dataclasses.replace(problem, theta=problem.theta + step * unit).objective()
            - dataclasses.replace(problem, theta=problem.theta - step * unit).objective()
        )
        / (2 * step)
        for unit in np.eye(len(problem.theta))
    ]
    # central differences: error of order step^2 = 1e-10, times a third derivative of order 1
    np.testing.assert_allclose(problem.gradient, numeric, rtol=0, atol=1e-9)


@each
def test_the_score_is_the_gradient_of_the_log_probability(problem):
    step = 1e-5
    for prompt, place, response in itertools.product(range(2), range(problem.num_places), range(3)):
        numeric = [
            (
                sum(
                    dataclasses.replace(problem, theta=problem.theta + step * unit).token_logprob(
                        prompt, place, response
                    )
                )
                - sum(
                    dataclasses.replace(problem, theta=problem.theta - step * unit).token_logprob(
                        prompt, place, response
                    )
                )
            )
            / (2 * step)
            for unit in np.eye(len(problem.theta))
        ]
        np.testing.assert_allclose(problem.respond(prompt, place, 0, response).score, numeric, rtol=0, atol=1e-9)


def conditional_mean(problem: Problem, value) -> dict[tuple[int, int, int], float]:
    """Mean of `value(trajectory, turn)` over all trajectories that pass a state, by (prompt, turn, place)."""
    total, chance = {}, {}
    for trajectories in problem.trajectories:
        for trajectory in trajectories:
            for turn in trajectory.turns:
                state = (trajectory.prompt, turn.turn, turn.place)
                total[state] = total.get(state, 0.0) + trajectory.probability * value(trajectory, turn)
                chance[state] = chance.get(state, 0.0) + trajectory.probability
    return {state: total[state] / chance[state] for state in total}


@each
def test_the_state_value_is_the_mean_reward_to_go_of_the_trajectories_that_pass(problem):
    mean = conditional_mean(problem, lambda trajectory, turn: sum(t.reward for t in trajectory.turns[turn.turn :]))
    for state, value in mean.items():
        np.testing.assert_allclose(problem.state_value[state], value, **EXACT)


@each
def test_the_success_chance_is_the_share_of_successes_among_the_trajectories_that_pass(problem):
    mean = conditional_mean(problem, lambda trajectory, turn: trajectory.success)
    for state, value in mean.items():
        np.testing.assert_allclose(problem.success_chance[state], value, **EXACT)


def test_each_problem_is_what_it_is_there_for():
    success = {name: problem.expectation(lambda t: t.success) for name, problem in PROBLEMS.items()}
    assert success["failures"] < 0.1
    assert success["successes"] > 0.8
    hard, easy = (
        sum(t.probability * t.success for t in trajectories) for trajectories in PROBLEMS["uneven"].trajectories
    )
    assert hard < 0.1
    assert easy > 0.8
    repeats = PROBLEMS["recurring"].expectation(lambda t: float(len({turn.place for turn in t.turns}) < len(t.turns)))
    assert repeats > 0.6, "most trajectories should come back to a place"
    lengths = PROBLEMS["lengths"]
    turns, total = lengths.expectation(lambda t: len(t.turns)), lengths.objective()
    covariance = lengths.expectation(lambda t: (len(t.turns) - turns) * (t.total - total))
    spread = np.sqrt(
        lengths.expectation(lambda t: (len(t.turns) - turns) ** 2)
        * lengths.expectation(lambda t: (t.total - total) ** 2)
    )
    assert covariance / spread > 0.8
    assert [name for name, problem in PROBLEMS.items() if not problem.outcome_only] == ["dense", "dense-2", "lengths"]


# -- columns -----------------------------------------------------------------------------------------------------------


@each
def test_every_known_column_is_there_with_one_value_a_response(problem):
    for prompt, groups in enumerate(enumerate_groups(problem, 2)):
        assert set(groups.batch.columns) == set(tw.COLUMNS)
        num_turns = sum(len(t.turns) for t in problem.trajectories[prompt])
        assert all(len(column) == num_turns for column in fill(problem, problem.trajectories[prompt]).values())


def test_there_are_no_rules_for_columns_that_do_not_exist():
    assert set(FILL) <= set(tw.COLUMNS)


@pytest.mark.parametrize("kind", ["value", "label", "text"])
def test_a_column_that_nobody_has_heard_of_gets_fixed_values(kind, monkeypatch):
    monkeypatch.setitem(tw.COLUMNS, "brand_new", dataclasses.replace(tw.COLUMNS["entropy"], kind=kind))
    problem = PROBLEMS["recurring"]
    filled = fill(problem, problem.trajectories[0])["brand_new"]
    turns = [(turn.place, turn.turn, turn.response) for t in problem.trajectories[0] for turn in t.turns]
    of_state = dict(zip(turns, filled, strict=True))
    assert [of_state[turn] for turn in turns] == list(filled), "the same place, turn and response, the same value"
    assert len(set(of_state.values())) > 2, "not one value for all"
    np.testing.assert_array_equal(filled, fill(problem, problem.trajectories[0])["brand_new"])


def column(name: str, problem: Problem, prompt: int, responses: tuple[int, ...]) -> list:
    """Values of a column along the trajectory that gives these responses."""
    trajectories = problem.trajectories[prompt]
    filled = iter(fill(problem, trajectories)[name])
    for trajectory in trajectories:
        values = [next(filled) for _ in trajectory.turns]
        if tuple(turn.response for turn in trajectory.turns) == responses:
            return values
    raise AssertionError(f"no trajectory {responses}")


def test_columns_by_hand():
    """Prompt 0 of `sparse` pays for stopping at place 1; its logits there: stop 0.3, move 1.1."""
    problem, path = PROBLEMS["sparse"], (MOVE, STAY, STOP)
    stop, move = 1 / (1 + np.exp(-0.3)), 1 / (1 + np.exp(-1.1))
    stay = np.log([1 - stop, 1 - move])
    np.testing.assert_allclose(column("logprob", problem, 0, path)[1], stay.mean(), **EXACT)
    np.testing.assert_allclose(column("rare_logprob", problem, 0, path)[1], stay.min(), **EXACT)
    np.testing.assert_allclose(column("logprob", problem, 0, path)[2], np.log(stop), **EXACT)
    half = np.log([1 - 1 / (1 + np.exp(-0.15)), 1 - 1 / (1 + np.exp(-0.55))])
    np.testing.assert_allclose(column("ref_logprob", problem, 0, path)[1], half.mean(), **EXACT)
    entropies = [-p * np.log(p) - (1 - p) * np.log(1 - p) for p in (stop, move)]
    np.testing.assert_allclose(column("entropy", problem, 0, path)[1:], [np.mean(entropies), entropies[0]], **EXACT)
    np.testing.assert_allclose(column("value", problem, 0, path)[2], stop, **EXACT)  # last turn: only stopping pays
    value = stop + (1 - stop) * (1 - move) * stop  # or stay, and stop next time
    np.testing.assert_allclose(column("value", problem, 0, path)[1], value, **EXACT)
    np.testing.assert_allclose(column("value_next", problem, 0, path), [value, stop, 0.0], **EXACT)
    np.testing.assert_allclose(column("accuracy", problem, 0, path), [value, stop, 0.99], **EXACT)
    np.testing.assert_allclose(column("gold_logprob", problem, 0, path)[1], np.log(value), **EXACT)
    assert column("success", problem, 0, path) == [1, 1, 1]
    assert column("success", problem, 0, (MOVE, STAY, STAY)) == [0, 0, 0]
    assert column("finished", problem, 0, path) == [1, 1, 1]
    assert column("finished", problem, 0, (MOVE, STAY, STAY)) == [0, 0, 0]
    assert column("length", problem, 0, path) == [2, 2, 1]
    assert column("state_text", problem, 0, path) == ["place 0", "place 1", "place 1"]
    assert column("switch", problem, 0, path) == [1, 1, 0]
    assert column("step_reward", problem, 0, path) == [1, 0, 1]  # moving is good, staying is not, stopping is
    assert set(column("task", problem, 1, path)) == {"prompt 1"}
    next_there = np.mean(stay)
    next_here = np.mean(np.log([1 - 1 / (1 + np.exp(0.8)), 1 - 1 / (1 + np.exp(-0.4))]))  # had it stayed at place 0
    np.testing.assert_allclose(column("info_gain", problem, 0, path), [next_there - next_here, 0.0, 0.0], **EXACT)


@each
def test_the_value_after_a_response_makes_its_exact_advantage_average_to_zero(problem):
    """Sum over responses of pi(a|s) (r + V(after) - V(s)) = 0 in every state."""
    for prompt, trajectories in enumerate(problem.trajectories):
        filled = fill(problem, trajectories)
        turns = [turn for t in trajectories for turn in t.turns]
        total: dict[tuple[int, int], dict[int, float]] = {}
        for turn, here, after in zip(turns, filled["value"], filled["value_next"], strict=True):
            chance = problem.response_chances(prompt, turn.place)[turn.response]
            total.setdefault((turn.turn, turn.place), {})[turn.response] = chance * (turn.reward + after - here)
        for parts in total.values():
            assert len(parts) == 3
            np.testing.assert_allclose(sum(parts.values()), 0.0, atol=1e-12)


@each
def test_hindsight_is_a_distribution_over_the_responses_of_a_state(problem):
    """Given state and end, the probabilities of the responses that can lead there sum to 1, and each is at least its
    share of the prior."""
    for trajectories in problem.trajectories:
        filled = fill(problem, trajectories)["hindsight_logprob"]
        rows = [(t, turn) for t in trajectories for turn in t.turns]
        given: dict[tuple, dict[int, float]] = {}
        for (t, turn), logprob in zip(rows, filled, strict=True):
            end = (t.turns[-1].next_place, t.turns[-1].response == STOP)
            chance = np.exp(logprob * len(turn.token_logprob))
            known = given.setdefault((turn.turn, turn.place, end), {})
            np.testing.assert_allclose(known.setdefault(turn.response, chance), chance, **EXACT)
        for known in given.values():
            np.testing.assert_allclose(sum(known.values()), 1.0, **EXACT)


def test_prefixes_are_shared_by_trajectories_that_begin_alike():
    problem = PROBLEMS["sparse"]
    first, second = column("prefix", problem, 0, (MOVE, STAY, STOP)), column("prefix", problem, 0, (MOVE, STAY, MOVE))
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert len(set(first)) == 3


@pytest.mark.parametrize(("problem", "trajectory"), EVERY[::7], ids=lambda x: getattr(x, "name", ""))
def test_a_trajectory_adds_up(problem, trajectory):
    np.testing.assert_allclose(np.log(trajectory.probability), sum(t.logprob for t in trajectory.turns), **EXACT)
    np.testing.assert_allclose(trajectory.score, np.sum([t.score for t in trajectory.turns], axis=0), **EXACT)
    assert [t.turn for t in trajectory.turns] == list(range(len(trajectory.turns)))
