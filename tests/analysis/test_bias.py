"""Bias and variance by enumeration, against simulation, an independent formula, and estimators known to be wrong."""

import functools

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.analysis.bias import HISTORY, measure, problems_of, rows, size_of
from turnwise.credit.analysis.decisions import PROBLEMS, STOP, Problem
from turnwise.credit.analysis.groups import enumerate_groups

EXACT = {"rtol": 1e-10, "atol": 1e-12}  # the same sum in another order
SPARSE = PROBLEMS["sparse"]
BANDIT = Problem(
    "bandit", "one turn, three responses", np.array([0.4, -0.9, 0.0]), np.array([[[0.3, -1.0, 2.0]]]), horizon=1
)


def scaled(method: tw.Transform, factor: float) -> tw.Transform:
    return tw.mix(method, weights=[factor])


# -- against simulation ------------------------------------------------------------------------------------------------


def play(problem: Problem, prompt: int, generator: np.random.Generator) -> list:
    """One trajectory, token by token."""
    place, turns = 0, []
    for turn in range(problem.horizon):
        stop, move = problem.token_chances(prompt, place)
        response = STOP if generator.random() < stop else 2 if generator.random() < move else 1
        turns.append(problem.respond(prompt, place, turn, response))
        place = turns[-1].next_place
        if response == STOP:
            break
    return turns


@functools.cache
def played(num: int) -> list[list[list]]:
    """So many trajectories of each prompt, which all methods give their credit."""
    generator = np.random.default_rng(0)
    return [[play(SPARSE, prompt, generator) for _ in range(num)] for prompt in range(SPARSE.num_prompts)]


@pytest.mark.parametrize("method", [tw.grpo(), tw.aem(tw.rloo())], ids=["grpo", "aem(rloo)"])
def test_enumeration_agrees_with_simulation(method):
    """Mean and variance of 4,000 simulated groups of three per prompt lie within five standard errors of the exact."""
    size, num = 3, 4000
    for groups, trajectories in zip(enumerate_groups(SPARSE, size), played(size * num), strict=True):
        turns = [turn for trajectory in trajectories for turn in trajectory]
        batch = tw.Batch(
            tw.Segments.from_lengths([size] * num),
            tw.Segments.from_lengths([len(trajectory) for trajectory in trajectories]),
            [turn.reward for turn in turns],
            {"entropy": [float(np.mean(turn.token_entropy)) for turn in turns]},
        )
        pushed = method(batch)[:, None] * np.array([turn.score for turn in turns])
        simulated = np.add.reduceat(pushed, batch.group_responses.offsets[:-1]) / size
        update = groups.updates(method)
        mean = groups.chance_G @ update
        square = ((update - mean) ** 2).sum(axis=1)
        error = np.sqrt(groups.chance_G @ (update - mean) ** 2 / num)
        assert (np.abs(simulated.mean(axis=0) - mean) <= 5 * error + 1e-12).all()
        distance = ((simulated - mean) ** 2).sum(axis=1)
        variance = groups.chance_G @ square
        spread = np.sqrt(groups.chance_G @ (square - variance) ** 2 / num)
        assert abs(distance.mean() - variance) <= 5 * spread
        assert 5 * spread < 0.2 * variance, "else the test could not fail"


# -- against formulas --------------------------------------------------------------------------------------------------


def bandit() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, rewards and scores of the bandit's responses, from its two logits by hand."""
    stop, move = 1 / (1 + np.exp(-0.4)), 1 / (1 + np.exp(0.0 + 0.9))
    chance = np.array([stop, (1 - stop) * (1 - move), (1 - stop) * move])
    score = np.array([[1 - stop, 0.0], [-stop, -move], [-stop, 1 - move]])
    return chance, np.array([0.3, -1.0, 2.0]), score


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rloo_is_unbiased_with_the_variance_of_a_u_statistic(size):
    """RLOO's estimate is a U-statistic of order two with the kernel h(x, y) = (R_x - R_y) (s_x - s_y) / 2.

    So Var = 4 (K - 2) / (K (K - 1)) Var(E[h | x]) + 2 / (K (K - 1)) Var(h) (Hoeffding 1948).
    """
    chance, reward, score = bandit()
    true = (chance * reward) @ score
    kernel = (reward[:, None] - reward)[..., None] * (score[:, None] - score) / 2
    given = np.einsum("y,xyp->xp", chance, kernel)
    np.testing.assert_allclose(chance @ given, true, **EXACT)
    first = chance @ ((given - true) ** 2).sum(axis=1)
    second = np.einsum("x,y,xyp->", chance, chance, (kernel - true) ** 2)
    variance = 4 * (size - 2) / (size * (size - 1)) * first + 2 / (size * (size - 1)) * second
    m = measure(tw.rloo(), BANDIT, size)
    np.testing.assert_allclose([m.cosine, m.factor], 1.0, **EXACT)
    np.testing.assert_allclose([m.raw_bias, m.error], 0.0, atol=1e-12)
    np.testing.assert_allclose(m.variance, size * variance / (true @ true), **EXACT)
    np.testing.assert_allclose(m.noise_vs_rloo, 1.0, **EXACT)


def test_reinforce_has_the_variance_of_one_term():
    """Independent terms: K Var(g) = Var(R s), whatever K."""
    chance, reward, score = bandit()
    true = (chance * reward) @ score
    variance = chance @ ((reward[:, None] * score - true) ** 2).sum(axis=1) / (true @ true)
    for size in (1, 2, 4):
        np.testing.assert_allclose(measure(tw.reinforce(), BANDIT, size).variance, variance, **EXACT)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
def test_scaling_costs_nothing_but_raw_bias(problem):
    plain, tripled = measure(tw.grpo(), problem, 2), measure(scaled(tw.grpo(), 3.0), problem, 2)
    np.testing.assert_allclose(tripled.cosine, plain.cosine, **EXACT)
    np.testing.assert_allclose(tripled.bias, plain.bias, rtol=1e-6, atol=1e-7)  # a square root near 0
    np.testing.assert_allclose(tripled.noise_vs_rloo, plain.noise_vs_rloo, **EXACT)
    np.testing.assert_allclose(tripled.variance, 9 * plain.variance, **EXACT)
    np.testing.assert_allclose(measure(scaled(tw.rloo(), 3.0), problem, 2).raw_bias, 2.0, **EXACT)


def test_bias_is_what_the_best_learning_rate_leaves():
    problem, size = PROBLEMS["dense-2"], 2
    m = measure(tw.aem(), problem, size)
    update = np.mean([g.chance_G @ g.updates(tw.aem()) for g in enumerate_groups(problem, size)], axis=0)
    left = [np.linalg.norm(c * update - problem.gradient) for c in np.linspace(0, 10, 100_001)]
    np.testing.assert_allclose(m.bias, min(left) / np.linalg.norm(problem.gradient), rtol=1e-6)
    assert m.bias > 0.3
    raw = np.linalg.norm(update - problem.gradient) / np.linalg.norm(problem.gradient)
    np.testing.assert_allclose(m.raw_bias, raw, **EXACT)


def test_a_method_that_goes_nowhere_or_backwards():
    nothing = measure(scaled(tw.rloo(), 0.0), SPARSE, 2)
    assert (nothing.cosine, nothing.bias, nothing.noise) == (0.0, 1.0, float("inf"))
    back = measure(scaled(tw.rloo(), -1.0), SPARSE, 2)
    np.testing.assert_allclose([back.cosine, back.raw_bias], [-1.0, 2.0], **EXACT)
    assert (back.bias, back.noise) == (1.0, float("inf"))


def test_the_variance_is_that_within_a_prompt():
    """That prompts have different gradients is no noise of a method."""
    problem = PROBLEMS["uneven"]
    means, traces = [], []
    for groups in enumerate_groups(problem, 2):
        update = groups.updates(tw.rloo())
        means.append(groups.chance_G @ update)
        traces.append(groups.chance_G @ (update**2).sum(axis=1) - means[-1] @ means[-1])
    assert np.linalg.norm(means[0] - means[1]) > 0.5 * np.linalg.norm(problem.gradient), "the prompts do differ"
    expected = 2 * np.mean(traces) / (problem.gradient @ problem.gradient)
    np.testing.assert_allclose(measure(tw.rloo(), problem, 2).variance, expected, **EXACT)


def test_lone_trajectories_teach_nothing_unless_they_keep_their_return():
    for problem in PROBLEMS.values():
        assert measure(tw.rloo(), problem, 1).factor == 0.0
        np.testing.assert_allclose(measure(tw.rloo(convention="verl"), problem, 1).factor, 1.0, **EXACT)


# -- which problems, which K -------------------------------------------------------------------------------------------


def test_what_reads_success_is_measured_where_success_is_the_return():
    reads = tw.Transform("reads", lambda credit_R, state, batch: (credit_R, state), needs=("success",))
    assert {problem.name for problem in problems_of(reads)} == set(PROBLEMS) - {"dense", "dense-2", "lengths"}
    assert len(problems_of(tw.grpo())) == len(PROBLEMS)


def test_what_must_see_groups_or_orders_apart_gets_groups_of_two():
    ranked = tw.Transform("ranked", lambda credit_R, state, batch: (credit_R, state), needs=("rank",))
    kept = tw.Transform("kept", lambda credit_R, state, batch: (credit_R, state), init=lambda: 0)
    for method in (tw.aem(scope="batch"), kept, ranked):
        assert {size_of(method, problem) for problem in PROBLEMS.values()} == {2}
    assert size_of(tw.aem(), PROBLEMS["uneven"]) == 8


def test_equal_returns_are_ranked_as_drawn_and_so_without_favour():
    """Credit by rank: in a problem of wins and losses, ties average out, and the expected update is parallel."""

    def update(credit_R, state, batch):
        return -batch.columns["rank"], state

    m = measure(tw.chain(tw.Transform("by_rank", update, needs=("rank",)), tw.center_by_group()), SPARSE, 2)
    np.testing.assert_allclose(m.cosine, 1.0, **EXACT)


def test_a_method_with_state_is_measured_after_some_history():
    def update(credit_R, state, batch):
        return np.full_like(credit_R, float(state)), state + 1

    (row,) = rows({"count": tw.Transform("count", update, init=lambda: 0)}, only="uneven")
    assert HISTORY == 16
    # credit 16 everywhere: E = 16 * E[score] = 0, with 16^2 times the variance of the score
    scores = [np.array([(t.score, t.probability) for t in ts], dtype=object) for ts in PROBLEMS["uneven"].trajectories]
    variance = 16**2 * np.mean([sum(p * (s @ s) for s, p in prompt) for prompt in scores])
    true = PROBLEMS["uneven"].gradient
    np.testing.assert_allclose(row.measured[0].variance, variance / (true @ true), **EXACT)
    np.testing.assert_allclose(row.measured[0].factor, 0.0, atol=1e-10)


# -- known wrong -------------------------------------------------------------------------------------------------------


def test_forgetting_the_probabilities_is_no_expectation():
    """All groups alike: the mean over the list of groups, not over the policy."""
    for problem in PROBLEMS.values():
        forgetful = np.mean([g.updates(tw.rloo()).mean(axis=0) for g in enumerate_groups(problem, 2, True)], axis=0)
        right = np.mean([g.chance_G @ g.updates(tw.rloo()) for g in enumerate_groups(problem, 2, True)], axis=0)
        scale = np.linalg.norm(problem.gradient)
        assert np.linalg.norm(right - problem.gradient) < 1e-12
        assert np.linalg.norm(forgetful - problem.gradient) > 0.1 * scale


def test_forgetting_the_orders_of_a_multiset_is_no_expectation():
    (groups, _) = enumerate_groups(SPARSE, 4)
    members = np.exp(groups.batch.group_responses.sum(groups.batch.columns["logprob"] * groups.batch.columns["length"]))
    assert members.sum() < 0.5, "the probabilities of the multisets without their orders"
    np.testing.assert_allclose(groups.chance_G.sum(), 1.0, **EXACT)


def test_a_baseline_over_turn_rows_is_biased_and_worst_where_length_pays():
    per_turn = tw.chain(tw.discounted_return(), tw.center_by_group(over="responses", same="turn"))
    (row,) = rows({"a baseline a turn": per_turn})
    assert row.worst.problem == "lengths"
    assert row.worst.cosine < 0.97
    (plain,) = rows({"rloo": tw.rloo()})
    assert all(m.bias < 1e-6 for m in plain.measured)


def test_grpos_bias_shows_only_where_groups_are_large_enough():
    """With wins and losses alone and K = 2 or 3, every mixed group has the same standard deviation: merely scaled."""
    for size, bound in ((2, 1e-6), (3, 1e-6)):
        assert measure(tw.grpo(), PROBLEMS["uneven"], size).bias < bound
    assert measure(tw.grpo(), PROBLEMS["uneven"], 8).bias > 0.03
