"""Tournaments: the best wins, both orders count, byes go where they should, and the cost is linear."""

import ast
import doctest
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.shaping import tournament
from turnwise.credit.shaping.tournament import (
    Arena,
    anchor_only,
    double_elimination,
    round_robin,
    single_elimination,
    swiss,
)

ALL = [single_elimination, double_elimination, round_robin, anchor_only, swiss]
each = pytest.mark.parametrize("rank", ALL, ids=lambda f: f.__name__)


def judged_by(quality, *, bias=0.0) -> Arena:
    """A judge who sees the quality, and adds a bonus for whoever is shown first."""
    return Arena(lambda pairs: [(quality[a] + bias, quality[b]) for a, b in pairs], len(quality))


def true_ranks(quality) -> np.ndarray:
    return np.argsort(np.argsort(-np.asarray(quality))).astype(float)


def test_the_example_of_the_module_runs():
    assert doctest.testmod(tournament).failed == 0


@each
@pytest.mark.parametrize("num", range(1, 10))
def test_an_honest_judge_finds_the_best_and_every_place_is_given(rank, num):
    for seed in range(5):
        quality = np.random.default_rng(seed).permutation(num).astype(float)
        ranks = rank(judged_by(quality))
        assert ranks.shape == (num,)
        assert ranks.dtype == np.float64
        assert ranks[quality.argmax()] == ranks.min()
        if rank is not swiss:  # where equal ones share their mean place
            assert sorted(ranks.tolist()) == list(range(num))
        assert ranks.sum() == pytest.approx(num * (num - 1) / 2)


@pytest.mark.parametrize("quality", list(itertools.permutations([1.0, 2, 3, 4])))
def test_everyone_against_everyone_or_against_the_anchor_gives_the_whole_order(quality):
    np.testing.assert_array_equal(round_robin(judged_by(quality)), true_ranks(quality))
    np.testing.assert_array_equal(anchor_only(judged_by(quality)), true_ranks(quality))


@pytest.mark.parametrize("num", [2, 3, 5, 8, 13, 16])
def test_a_knock_out_puts_the_second_best_second_since_seeds_are_honest(num):
    quality = np.random.default_rng(num).permutation(num).astype(float)
    ranks = single_elimination(judged_by(quality))
    assert ranks[np.argsort(-quality)[1]] == 1
    assert ranks[quality.argmin()] == num - 1


@each
def test_a_liking_for_the_first_shown_has_no_effect(rank):
    quality = [0.1, 0.3, 0.2, 0.5, 0.4]
    np.testing.assert_array_equal(rank(judged_by(quality, bias=7.0)), rank(judged_by(quality)))


def test_a_match_sums_both_orders():
    shown = {(0, 1): (9.0, 2.0), (1, 0): (4.0, 3.0)}
    arena = Arena(lambda pairs: [shown[pair] for pair in pairs], 2)
    assert arena.play([(0, 1)]) == [(9 + 3, 2 + 4)]
    assert arena.play([(1, 0)]) == [(2 + 4, 9 + 3)]
    assert arena.num_judged == 2, "the second time it is known"


def test_a_judge_that_fails_in_one_order_gives_five_and_five_for_that_order():
    arena = Arena(lambda pairs: [None if a == 1 else (8.0, 1.0) for a, b in pairs], 2)
    assert arena.play([(0, 1)]) == [(8 + 5, 1 + 5)]


def test_a_tournament_asks_for_a_round_at_once_and_about_two_matches_a_trajectory():
    calls = []

    def judge(pairs):
        calls.append(len(pairs))
        return [(float(a), float(b)) for a, b in pairs]

    arena = Arena(judge, 16)
    single_elimination(arena)
    assert len(calls) == 5, "seeding and four rounds"
    assert calls[0] == 2 * 15
    assert arena.num_judged <= 2 * 2 * 15
    assert anchor_only(a := judged_by(range(16))).shape == (16,)
    assert a.num_judged == 2 * 15
    round_robin(b := judged_by(range(16)))
    assert b.num_judged == 2 * 16 * 15 / 2


def scores_against(rows) -> np.ndarray:
    return np.array(rows, dtype=float)


def test_byes_go_to_the_top_seeds():
    """Three trajectories: seeds 1, 2, 3 are 1, 0, 2. Seed 1 waits, and meets the winner of 0 and 2 in the final."""
    scores = scores_against([[0, 5, 5], [9, 0, 1], [1, 9, 0]])  # 0 beats 2, 1 beats 0, 2 beats 1
    np.testing.assert_array_equal(single_elimination(scores), [1, 0, 2])
    # the released code closes the gap: 1 and 0 meet first, and 2, the worst seed, waits for 1 and beats it
    np.testing.assert_array_equal(single_elimination(scores, byes="release"), [2, 1, 0])


@pytest.mark.parametrize("num", [2, 4, 8])
def test_without_byes_the_release_plays_the_same_bracket(num):
    scores = np.random.default_rng(num).random((num, num))
    np.testing.assert_array_equal(single_elimination(scores), single_elimination(scores, byes="release"))


def test_the_bracket_of_eight_is_the_standard_one():
    met = []

    def judge(pairs):
        met.append({frozenset(pair) for pair in pairs})
        return [(-float(a), -float(b)) for a, b in pairs]  # 0 is the best, so seeds are 0, 1, ..., 7

    single_elimination(Arena(judge, 8))
    first_round = met[1] | {frozenset((0, 7))}  # which was the anchor's match, so it is known already
    assert first_round == {frozenset(pair) for pair in [(0, 7), (3, 4), (1, 6), (2, 5)]}
    assert met[2] == {frozenset((1, 2))}


def test_losers_of_a_round_rank_by_their_mean_score():
    # anchor 0: seeds by score 3, 2, 1, 0. Semifinals 3-0 and 2-1. 0 has (5 + 5 + 5) / 3 and 5, 1 has 6 and 1
    scores = np.zeros((4, 4))
    scores[0, 1:], scores[1:, 0] = 5, [6, 7, 8]
    scores[1, 2], scores[2, 1], scores[2, 3], scores[3, 2] = 1, 9, 1, 9
    np.testing.assert_array_equal(single_elimination(scores), [2, 3, 1, 0])
    scores[1, 2] = 8.5  # now 1 has (6 + 8.5) / 2
    np.testing.assert_array_equal(single_elimination(scores), [3, 2, 1, 0])


def test_another_anchor_seeds_otherwise():
    arena = judged_by([1.0, 2.0, 3.0])
    anchor_only(arena, anchor=2)
    assert arena.num_judged == 4
    assert arena.play([(0, 2), (1, 2)]) == [(2, 6), (4, 6)]
    assert arena.num_judged == 4, "these were its matches"


def test_another_anchor_makes_another_bracket():
    scores = scores_against([[0, 0, 9, 1], [6, 0, 8, 1], [5, 5, 0, 5], [4, 2, 7, 0]])
    # anchor 0: seeds 1, 2, 3, 0. 1 beats 0 and 3 beats 2; of the losers 2 has (5 + 5) / 2, 0 has (10 / 3 + 0) / 2
    np.testing.assert_array_equal(single_elimination(scores), [3, 1, 2, 0])
    # anchor 2: seeds 0, 1, 3, 2. 0 beats 2 and 3 beats 1; of the losers 2 has (5 + 5) / 2, 1 has (8 + 1) / 2
    np.testing.assert_array_equal(single_elimination(scores, anchor=2), [1, 3, 2, 0])


def test_the_anchor_scores_the_mean_of_its_matches():
    scores = scores_against([[0, 9, 1], [5, 0, 0], [6, 0, 0]])
    np.testing.assert_array_equal(anchor_only(scores), [1, 1, 0])  # (9 + 1) / 2 ties with 5
    scores[0, 1] = 12
    np.testing.assert_array_equal(anchor_only(scores), [0, 2, 1])


def test_equal_ones_share_the_best_place_or_the_mean_place():
    level = np.ones((4, 4))
    np.testing.assert_array_equal(round_robin(level), 0)
    np.testing.assert_array_equal(anchor_only(level), 0)
    np.testing.assert_array_equal(swiss(level), 1.5)
    draw = scores_against([[0, 2, 9], [2, 0, 9], [1, 1, 0]])
    np.testing.assert_array_equal(round_robin(draw), [0, 0, 2])
    batch = tw.Batch(tw.Segments([0, 4]), tw.Segments(range(5)), [0.0] * 4, {"rank": round_robin(level)})
    np.testing.assert_array_equal(tw.arena_rl()(batch), 0)


class Watched(Arena):
    """Counts defeats."""

    def __init__(self, scores: np.ndarray):
        super().__init__(lambda pairs: [(scores[a, b] / 2, scores[b, a] / 2) for a, b in pairs], len(scores))
        self.defeats = [0] * len(scores)

    def play(self, pairs):
        played = super().play(pairs)
        for (a, b), (of_a, of_b) in zip(pairs, played, strict=True):
            self.defeats[b if of_a >= of_b else a] += 1
        return played


@pytest.mark.parametrize("num", [2, 3, 5, 8])
def test_double_elimination_forgives_one_defeat_and_no_other(num):
    for seed in range(20):
        arena = Watched(np.random.default_rng(seed).random((num, num)))
        best_first = np.argsort(double_elimination(arena, seed=seed))
        champion, second, *others = (arena.defeats[n] for n in best_first)
        assert (champion, second) in ((0, 2), (1, 1)), "the final is one match"
        assert all(defeats == 2 for defeats in others)


def test_swiss_ranks_by_points_then_by_the_points_of_ones_opponents():
    quality = [4.0, 3.0, 2.0, 1.0]
    for seed in range(10):
        ranks = swiss(judged_by(quality), seed=seed)
        assert ranks[0] == 0
        assert ranks[3] == 3
    arena = judged_by(range(8))
    swiss(arena)
    assert arena.num_judged == 2 * 3 * 4, "three rounds of four matches, nobody meets twice"
    swiss(one := judged_by(range(8)), num_rounds=1)
    assert one.num_judged == 2 * 4


def test_swiss_opponents_decide_between_equal_points():
    """Second and third win one of two. Where they met, the opponents of one are stronger: 3 points, not 1."""
    seen = {tuple(swiss(judged_by([4.0, 3, 2, 1]), seed=seed).tolist()) for seed in range(20)}
    assert seen == {(0, 1, 2, 3), (0, 1.5, 1.5, 3)}


def test_swiss_pairs_nobody_twice():
    for seed in range(10):
        arena = judged_by([4.0, 3, 2, 1])
        swiss(arena, num_rounds=3, seed=seed)
        assert arena.num_judged == 2 * 6, "three rounds of four: everyone met everyone"


def test_seeds_draw_pairings_and_the_same_seed_the_same():
    scores = np.random.default_rng(0).random((9, 9))
    for rank in (swiss, double_elimination):
        np.testing.assert_array_equal(rank(scores, seed=3), rank(scores, seed=3))
        assert len({tuple(rank(scores, seed=seed).tolist()) for seed in range(10)}) > 1


@each
def test_a_matrix_of_scores_is_the_judge_who_gave_it(rank):
    shown = np.random.default_rng(5).random((6, 6, 2))
    arena = Arena(lambda pairs: [tuple(shown[a, b]) for a, b in pairs], 6)
    summed = shown[:, :, 0] + shown[:, :, 1].T  # of a against b: shown first, and shown second
    np.testing.assert_array_equal(rank(arena), rank(summed))


def test_from_judgements_to_advantages():
    ranks = [single_elimination(judged_by(quality)) for quality in ([3.0, 1.0, 2.0], [1.0, 5.0])]
    batch, order = tw.Batch.from_arrays(
        group=["a"] * 3 + ["b"] * 2, trajectory=range(5), reward=[0.0] * 5, columns={"rank": np.concatenate(ranks)}
    )
    credit = np.empty(5)
    credit[order] = tw.arena_rl()(batch)
    np.testing.assert_allclose(credit, [1, -1, 0, -np.sqrt(0.5), np.sqrt(0.5)], rtol=0, atol=1e-5)


def test_errors_are_one_line():
    with pytest.raises(ConfigError, match="an arena needs at least one trajectory, got 0"):
        Arena(lambda pairs: [], 0)
    with pytest.raises(ConfigError, match=r"scores must be square.* got shape \(2, 3\)"):
        round_robin(np.ones((2, 3)))
    with pytest.raises(ConfigError, match="anchor=3 must be from 0 to 2"):
        anchor_only(np.ones((3, 3)), anchor=3)
    with pytest.raises(ConfigError, match="the judge got 2 pairs and returned 1 results"):
        Arena(lambda pairs: [(1.0, 2.0)], 2).play([(0, 1)])
    with pytest.raises(ConfigError, match="Did you mean 'release'"):
        single_elimination(np.ones((2, 2)), byes="releas")  # pyright: ignore[reportArgumentType]


def test_the_helpers_import_numpy_only_and_scipy_on_demand():
    for file in Path(tournament.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        modules = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.iter_child_nodes(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        outside = {m for m in modules if m and m.split(".")[0] not in sys.stdlib_module_names}
        assert outside <= {"numpy", "turnwise.base.errors"}, file.name
