"""ADORA, A-GRAE, GRPO-N, D3S, ACE and ProGRPO: their cards' checks, equivalences and edges, by hand."""

import itertools

import numpy as np
import pytest
from tests.methods.batches import RAGGED, applied, group_of, groups_of
from tests.properties.strategies import advantage

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError

# -- ADORA -------------------------------------------------------------------------------------------------------------


def lengths(success, length, truncated=None) -> tw.Batch:
    return group_of(*success, success=success, length=length, truncated=truncated or [0] * len(success))


@pytest.mark.parametrize(
    ("success", "length", "truncated", "factor"),
    [
        ([1, 1, 0, 0], [2, 7, 4, 8], None, 1),  # 7 > 6: the longest correct against the mean of the incorrect
        ([1, 1, 0, 0], [2, 6, 4, 8], None, 0.1),  # 6 = 6 is not longer
        ([1, 1, 0, 0], [2, 6, 4, 8], [0, 0, 0, 1], 1),  # the truncated 8 does not count: 6 > 4
        ([1, 1, 0, 0], [2, 6, 4, 8], [1, 1, 0, 0], 0.1),  # truncated successes do
        ([1, 0.6, 0.5, 0], [2, 7, 4, 8], None, 1),  # correct is above 1/2
    ],
)
def test_adoras_contrast(success, length, truncated, factor):
    batch = lengths(success, length, truncated)
    for convention in ("llm", "vl"):
        np.testing.assert_allclose(tw.adora(convention=convention)(batch), factor * tw.grpo()(batch), rtol=1e-15)
    np.testing.assert_allclose(tw.adora(weight=1.0)(batch), tw.grpo()(batch), rtol=1e-15)


def test_a_modulator_that_does_nothing_declares_the_gradient_of_its_base():
    idle = (tw.adora(tw.rloo(), weight=1.0), tw.ace(tw.rloo(), weight=0.0), tw.progrpo(tw.rloo(), weight=0.0))
    for method in idle:
        assert method.gradient == tw.rloo().gradient
    for method in (tw.adora(tw.rloo()), tw.ace(tw.rloo(), weight=1.0), tw.progrpo(tw.rloo(), weight=1.0)):
        assert method.gradient is not None
        assert method.gradient.kind == "biased"


@pytest.mark.parametrize(
    ("success", "truncated", "llm", "vl"),
    [([0, 0], None, 0.25, 1), ([1, 1], None, 1, 0.25), ([1, 0], [0, 1], 1, 0.25), ([0, 0], [1, 1], 0.25, 1)],
)
def test_adoras_empty_sides(success, truncated, llm, vl):
    batch = lengths(success, [3, 5], truncated)
    for convention, factor in (("llm", llm), ("vl", vl)):
        block = tw.weigh_by_length_contrast(weight=0.25, convention=convention)
        np.testing.assert_array_equal(applied(block, batch, 1, -2), [factor, -2 * factor])


def test_adora_counts_the_tokens_of_whole_trajectories_and_each_group_by_itself():
    # prompt 0: correct 4 and 6 tokens, incorrect 3; prompt 1: correct 6, incorrect 7
    expected = np.where(np.arange(9) < 6, 1, 0.1) * tw.grpo()(RAGGED)
    np.testing.assert_allclose(tw.adora()(RAGGED), expected, rtol=1e-15)


# -- A-GRAE ------------------------------------------------------------------------------------------------------------


def test_a_graes_card():
    # p = 1/4; a second prompt that succeeds 3 times of 4 makes w = 1/2
    success = [1, 0, 0, 0, 1, 1, 1, 0]
    batch = groups_of(4, 4, reward=success, success=success)
    np.testing.assert_allclose(tw.grpo()(batch)[:4], [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    paper, release = tw.a_grae()(batch), tw.a_grae(convention="release")(batch)
    np.testing.assert_allclose(paper[:4], [0.5915] + [-0.394] * 3, atol=5e-4)
    np.testing.assert_allclose(release[:4], [0.75] + [-0.5] * 3, rtol=1e-5)
    unattenuated = tw.a_grae(full_at=0.5)(batch)
    np.testing.assert_allclose(unattenuated[:4], [1.183] + [-0.394] * 3, atol=5e-4)
    np.testing.assert_array_equal(tw.a_grae(full_at=0.25)(batch), unattenuated)  # never above 1


def test_a_grae_favours_easy_prompts_while_the_batch_fails_and_hard_ones_later():
    def factors(*others):
        success = [1, 0, 0, 0, 1, 1, 1, 0, *others]
        batch = groups_of(4, 4, len(others), reward=success, success=success)
        ones = np.where(np.arange(len(success)) < 8, -1.0, 0.0)
        held_R = -applied(tw.weigh_by_progress(), batch, *ones)
        return held_R[0], held_R[4]

    hard, easy = factors(0, 0)  # w = 1/3
    assert easy > hard
    hard, easy = factors(1, 1)  # w = 2/3
    assert hard > easy


def test_a_grae_leaves_groups_without_contrast_alone():
    batch = groups_of(2, 2, 2, reward=[0, 0, 1, 1, 1, 0], success=[0, 0, 1, 1, 1, 0])
    credit_R = applied(tw.weigh_by_progress(), batch, 2, -3, 4, -5, 1, -1)
    np.testing.assert_array_equal(credit_R[:4], [2, -3, 4, -5])
    np.testing.assert_allclose(credit_R[4:], [0.5 * np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-15)  # p = w = 1/2
    fails = groups_of(2, reward=[0, 0], success=[0, 0])
    np.testing.assert_array_equal(applied(tw.weigh_by_progress(), fails, 2, -3), [2, -3])
    with pytest.raises(ConfigError, match=r"full_at=0.0 must be above 0"):
        tw.a_grae(full_at=0.0)(batch)


# -- GRPO-N ------------------------------------------------------------------------------------------------------------


def test_grpo_n_and_its_dual_add_up_to_the_base():
    for base in (tw.grpo(), tw.rloo()):
        negative, positive = (tw.grpo_n(base, sign=sign)(RAGGED) for sign in ("negative", "positive"))
        assert negative.max() == 0 > negative.min()
        assert positive.min() == 0 < positive.max()
        np.testing.assert_array_equal(negative + positive, base(RAGGED))
    np.testing.assert_array_equal(tw.grpo_n()(RAGGED), tw.grpo_n(tw.grpo(), sign="negative")(RAGGED))


# -- D3S ---------------------------------------------------------------------------------------------------------------


def test_d3s_card():
    batch = groups_of(2, 2, reward=[0] * 4)
    np.testing.assert_array_equal(applied(tw.keep_extremes(kept_frac=0.5), batch, 3, 0, 0, -3), [3, 0, 0, -3])
    np.testing.assert_array_equal(applied(tw.keep_extremes(kept_frac=0.5), batch, 0, 3, -3, 0), [0, 3, -3, 0])
    np.testing.assert_array_equal(applied(tw.keep_extremes(kept_frac=1.0), batch, 3, 1, 0, -3), [3, 1, 0, -3])


def test_d3s_passes_its_options_on():
    batch = group_of(*[0, 1] * 6)
    for options in ({"seed": 0}, {"seed": 1}, {"seed": 2}, {"over": "responses"}):
        whole = tw.chain(tw.grpo(), tw.keep_extremes(kept_frac=0.5, **options))
        np.testing.assert_array_equal(tw.d3s(kept_frac=0.5, **options)(batch), whole(batch))
    batch = tw.Batch(tw.Segments([0, 3]), tw.Segments([0, 4, 5, 6]), [0, 0, 0, 1, -3, 4])
    for over, num_kept in (("trajectories", 2), ("responses", 4)):  # the trajectory of four responses is in the middle
        kept_R = tw.d3s(tw.reinforce(), kept_frac=2 / 3, over=over)(batch)
        assert np.count_nonzero(kept_R) == num_kept


def test_d3s_keeping_all_is_the_base():
    for base in (tw.grpo(), tw.rloo()):
        method = tw.d3s(base, kept_frac=1.0)
        np.testing.assert_array_equal(method(RAGGED), base(RAGGED))
        assert method.gradient == base.gradient
        assert not method.across_groups


@pytest.mark.parametrize("num_kept", range(1, 9))
def test_d3s_finds_the_subset_of_largest_variance(num_kept):
    values = np.random.default_rng(num_kept).normal(size=8) + 5  # an offset, as one-sided credit has
    batch = groups_of(3, 5, reward=[0] * 8)
    kept = applied(tw.keep_extremes(kept_frac=num_kept / 8), batch, *values)
    assert (kept != 0).sum() == num_kept
    np.testing.assert_array_equal(kept[kept != 0], values[kept != 0])
    best = max(np.var(values[list(subset)]) for subset in itertools.combinations(range(8), num_kept))
    np.testing.assert_allclose(np.var(values[kept != 0]), best, rtol=1e-12, atol=1e-15)


def test_d3s_may_take_more_of_one_side():
    batch = group_of(*[0] * 5)
    np.testing.assert_array_equal(
        applied(tw.keep_extremes(kept_frac=0.6), batch, -3, -2.9, 0.5, 0.6, 1), [-3, -2.9, 0, 0, 1]
    )


def test_d3s_draws_equal_advantages_by_lot_and_never_by_place():
    num = 40
    batch = group_of(*[0] * num)
    values = np.where(np.arange(num) % 2 == 0, 1.0, -1.0)  # half of each; 10 of each are kept
    kept = np.array([applied(tw.keep_extremes(kept_frac=0.5, seed=seed), batch, *values) != 0 for seed in range(400)])
    assert (kept.sum(axis=1) == 20).all()
    assert (kept[:, ::2].sum(axis=1) == 10).all()
    # each is kept with probability 1/2; five standard errors of a mean of 400
    np.testing.assert_allclose(kept.mean(axis=0), 0.5, rtol=0, atol=5 * 0.5 / np.sqrt(400))
    again = tw.keep_extremes(kept_frac=0.5, seed=7)
    np.testing.assert_array_equal(applied(again, batch, *values), applied(again, batch, *values))
    other = groups_of(2, num, reward=[0] * (num + 2))
    assert (applied(again, other, 0, 0, *values)[2:] != applied(again, batch, *values)).any(), (
        "another batch, another lot"
    )


def test_d3s_draws_equally_good_splits_by_lot():
    # three of 2, 1, -1, -2: with 1 or with -1 it is the same variance
    batch = group_of(*[0] * 4)
    chosen = [tuple(applied(tw.keep_extremes(kept_frac=0.75, seed=s), batch, 2, 1, -1, -2)) for s in range(40)]
    assert set(chosen) == {(2, 1, 0, -2), (2, 0, -1, -2)}
    assert 8 < chosen.count((2, 1, 0, -2)) < 32


def test_d3s_counts_trajectories_or_responses():
    batch = tw.Batch(tw.Segments([0, 3]), tw.Segments([0, 4, 5, 6]), [0] * 6)
    credit = [1, 1, 1, 1, -3, 4]
    np.testing.assert_array_equal(applied(tw.keep_extremes(kept_frac=2 / 3), batch, *credit), [0, 0, 0, 0, -3, 4])
    over_responses = applied(tw.keep_extremes(kept_frac=4 / 6, over="responses"), batch, *credit)
    assert sorted(over_responses.tolist()) == [-3, 0, 0, 1, 1, 4]
    with pytest.raises(BatchError, match="keep_extremes counts one value per trajectory, but the credit varies"):
        applied(tw.keep_extremes(kept_frac=0.5), batch, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("kept_frac", [0.0, -0.5, 1.5])
def test_d3s_refuses_a_share_that_is_none(kept_frac):
    with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
        tw.d3s(kept_frac=kept_frac)(RAGGED)


def test_d3s_sees_small_differences_of_large_advantages():
    values = 1e9 + np.array([3.0, 1.0, 0.0, -2.0])
    kept = applied(tw.keep_extremes(kept_frac=0.5), group_of(*[0] * 4), *values)
    np.testing.assert_array_equal(kept, [values[0], 0, 0, values[3]])


@pytest.mark.parametrize(("kept_frac", "num_kept"), [(0.01, 1), (0.2, 1), (0.35, 2), (0.4, 2), (0.9, 4), (0.99, 5)])
def test_d3s_rounds_and_keeps_at_least_one(kept_frac, num_kept):
    kept = applied(tw.keep_extremes(kept_frac=kept_frac), group_of(*[0] * 5), 3, 1, -3, -1, 2)
    assert (kept != 0).sum() == num_kept


# -- ACE ---------------------------------------------------------------------------------------------------------------


def test_aces_card():
    batch = group_of(0, 0, 0, 0, logprob=[-1, -3, -1, -1], ref_logprob=[-1, -1, -2, -1])
    credit_R = applied(tw.amplify_sure_errors(weight=1.0), batch, -1, -1, -1, 2)
    np.testing.assert_allclose(credit_R, [-1.693147, -1.126928, -2.313262, 2], rtol=1e-6)  # c = 0, -2, 1
    credit_R = applied(tw.amplify_sure_errors(weight=0.5), batch, -1, -1, -1, 2)
    np.testing.assert_allclose(credit_R, [-1.346574, -1.063464, -1.656631, 2], rtol=1e-6)


def test_ace_without_weight_is_its_base():
    batch = group_of(1, 0, 0, logprob=[-1, -3, -1], ref_logprob=[-1, -1, -2])
    np.testing.assert_array_equal(tw.ace(tw.rloo(), weight=0.0)(batch), tw.rloo()(batch))
    assert tw.ace(tw.rloo(), weight=0.0).gradient == tw.rloo().gradient
    extreme = group_of(1, 0, logprob=[0, 0], ref_logprob=[0, -2000])
    assert tw.ace(tw.dr_grpo(), weight=1.0)(extreme)[1] == -0.5 * 2001


# -- ProGRPO -----------------------------------------------------------------------------------------------------------

PROBABILITIES = {
    "prompt_logprob": np.log([0.5, 0.5, 0.5, 0.5, 0.4, 0.4]),
    "rare_logprob": np.log([0.1, 0.7, 0.5, 0.2, 0.1, 0.3]),
}


def test_progrpo_moves_mixed_groups_only():
    batch = groups_of(2, 2, 2, reward=[1, 0, 0, 0, 1, 1], success=[1, 0, 0, 0, 1, 1], **PROBABILITIES)
    moved = tw.progrpo(weight=0.5)(batch) - tw.grpo()(batch)
    np.testing.assert_allclose(moved, [0.2, -0.1, 0, 0, 0, 0], atol=1e-15)
    correct = tw.progrpo(weight=0.5, only_correct=True)(batch) - tw.grpo()(batch)
    np.testing.assert_allclose(correct, [0.2, 0, 0, 0, 0, 0], atol=1e-15)
    np.testing.assert_array_equal(tw.progrpo(weight=0.0)(batch), tw.grpo()(batch))


# -- all ---------------------------------------------------------------------------------------------------------------

MODULATORS = {
    "adora": tw.adora,
    "a_grae": tw.a_grae,
    "grpo_n": tw.grpo_n,
    "d3s": lambda base: tw.d3s(base, kept_frac=0.5),
    "ace": lambda base: tw.ace(base, weight=1.0),
    "progrpo": lambda base: tw.progrpo(base, weight=0.3),
    "verl_er": tw.verl_er,
}


@pytest.mark.parametrize("name", MODULATORS)
def test_a_modulator_takes_any_base_with_or_without_state(name):
    num = 6
    generator = np.random.default_rng(0)
    names = [name for name, column in tw.COLUMNS.items() if column.kind == "value" and not name.endswith("_T")]
    batch = groups_of(
        3,
        3,
        reward=[1, 0, 0, 1, 1, 0],
        **{name: generator.uniform(0.1, 1, num) for name in names}
        | {"success": [1, 0, 0, 1, 1, 0], "length": [3, 2, 4, 6, 5, 3], "task": [*"qqqrrr"], "truncated": [0] * num},
    )
    make = MODULATORS[name]
    assert make(tw.rloo()).name.startswith(f"{name}(rloo(")
    assert (advantage(make(tw.rloo()), batch) != advantage(make(tw.v05(unseen=0.5)), batch)).any()
    assert advantage(tw.aem(make(tw.mix(tw.grpo(), tw.v05()))), batch).shape == (num,)


@pytest.mark.parametrize("options", [{"std_weight": 0.0, "eps": 1e-6}, {"std_weight": 1.0, "eps": 0.0}])
def test_r3_divides_by_something(options):
    with pytest.raises(tw.ConfigError, match="must be positive"):
        tw.r3(max_reward=0.5, **options)
