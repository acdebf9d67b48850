"""IGPO, InfoPO, MatchTIR, unlikeliness and ArenaRL: their cards' checks, equivalences, conventions."""

import itertools
from typing import get_args

import numpy as np
import pytest
from tests.methods.shaped import each_response, group_of, of_trajectory, on, ragged, random_batch, tokens

import turnwise as tw
from turnwise.credit.transforms.shaping import Convention

# -- IGPO --------------------------------------------------------------------------------------------------------------

IGPO_CARD = tw.Batch(
    tw.Segments([0, 2]),
    tw.Segments([0, 3, 6]),
    [0, 0, 1, 0, 0, 0],
    {"gold_logprob": [-1.0, -0.8, -0.7, -1.0, -1.0, -1.1]},  # gains 0.2, 0.1 and 0, -0.1
)


def test_igpo_card():
    np.testing.assert_allclose(
        tw.igpo()(IGPO_CARD), [2.7888, 1.4472, 1, -2.7888, -2.3416, -1], rtol=0, atol=5e-5
    )  # four digits are given, minus what eps takes


def test_a_gain_is_the_next_turns_gold_minus_ones_own_and_the_last_turn_has_the_outcome():
    np.testing.assert_allclose(tw.reward_gold_gain()(IGPO_CARD), [0.2, 0.1, 1, 0, -0.1, 0], rtol=0, atol=1e-15)
    early = tw.Batch(IGPO_CARD.groups, IGPO_CARD.trajectories, [1, 0, 0.5, 0, 0, 0], IGPO_CARD.columns)
    assert tw.reward_gold_gain()(early)[2] == 1.5, "the outcome is the whole return, wherever it was paid"


def test_a_gain_in_probability():
    batch = ragged(gold_logprob=np.log([0.5, 0.25, 0.75, 0.1, 0.3, 0.2]))
    np.testing.assert_allclose(
        tw.reward_gold_gain(difference="probability")(batch), [1, 0.5, 0.5, 0.2, -0.1, 1.5], rtol=1e-14
    )


def test_igpo_with_zero_gains_is_the_standardised_outcome_alone():
    batch = random_batch(1, gold_logprob=lambda g, b: np.full(b.num_responses, -1.5))
    outcome = tw.grpo(convention="torchtitan")(batch)  # population deviation, eps 1e-6
    np.testing.assert_allclose(tw.igpo()(batch), outcome, rtol=1e-12, atol=1e-15)


def test_igpo_of_one_turn_has_one_pool_and_is_grpo_with_the_population_deviation():
    batch = group_of(3, 1, 0, 0, gold_logprob=[-1.0, -2.0, -3.0, -1.0])
    expected = tw.grpo(convention="torchtitan")(batch)
    for normalise in ("separate", "joint"):
        np.testing.assert_allclose(tw.igpo(normalise=normalise)(batch), expected, rtol=1e-14)


def test_separate_and_joint_differ_where_there_are_two_pools():
    assert np.abs(tw.igpo()(IGPO_CARD) - tw.igpo(normalise="joint")(IGPO_CARD)).max() > 0.5


def test_a_gain_of_exactly_zero_is_a_turn_except_in_the_release():
    # gains 0.2, 0.1, 0, -0.1: mean 0.05; without the zero 0.2, 0.1, -0.1: mean 1/15
    kept, dropped = (
        on(tw.standardize_turn_rewards(convention=c), [0.2, 0.1, 1, 0, -0.1, 0], IGPO_CARD)
        for c in ("paper", "release")
    )
    np.testing.assert_allclose(kept[3], -0.05 / (np.sqrt(0.0125) + 1e-6), rtol=1e-13)
    assert dropped[3] == 0.0
    variance = (0.04 + 0.01 + 0.01) / 3 - (0.2 / 3) ** 2
    np.testing.assert_allclose(dropped[0], (0.2 - 0.2 / 3) / (np.sqrt(variance + 1e-8) + 1e-6), rtol=1e-12)
    np.testing.assert_allclose(dropped[[2, 5]], [1, -1], rtol=1e-5)  # outcomes of 0 do count


def test_a_discount_reaches_the_sum():
    z = on(tw.standardize_turn_rewards(), tw.reward_gold_gain()(IGPO_CARD), IGPO_CARD)
    credit = tw.igpo(discount=0.5)(IGPO_CARD)
    np.testing.assert_allclose(credit[:3], [z[0] + z[1] / 2 + z[2] / 4, z[1] + z[2] / 2, z[2]], rtol=1e-14)


# -- InfoPO ------------------------------------------------------------------------------------------------------------


def test_infopo_without_information_is_grpo():
    batch = random_batch(2, info_gain=lambda g, b: np.zeros(b.num_responses), length=tokens)
    np.testing.assert_array_equal(tw.infopo()(batch), tw.grpo()(batch))
    np.testing.assert_array_equal(tw.infopo(convention="release")(batch), tw.grpo(convention="verl")(batch))
    informed = random_batch(2, info_gain=each_response(-0.5, 1), length=tokens)
    np.testing.assert_array_equal(tw.infopo(beta=0.0)(informed), tw.grpo()(informed))


def information(std: float, **options) -> float:
    """The share of information that the gate lets through when two returns have this standard deviation."""
    batch = tw.Batch(
        tw.Segments([0, 2]),
        tw.Segments([0, 2, 4]),
        [0, 0, 0, std * np.sqrt(2)],
        {"info_gain": [1.0, 0.0, 3.0, 0.0], "length": [1, 1, 1, 1]},
    )
    added = tw.infopo(beta=1.0, **options)(batch) - tw.grpo()(batch)
    np.testing.assert_allclose(added[[1, 3]], 0.0, atol=1e-15)
    z = 1 / (np.sqrt(2) + 1e-6)  # gains 1 and 3: mean 2, standard deviation of the sample sqrt(2)
    np.testing.assert_allclose(added[0], -added[2], rtol=1e-6, atol=1e-12)
    return float(added[2] / z)


def test_the_gate_is_a_half_where_outcomes_agree_and_closes_as_on_the_card():
    np.testing.assert_allclose(information(0.0), 0.5, rtol=1e-12)
    for std, shown in [(0.05, 0.269), (0.1, 0.119), (0.25, 0.0067)]:
        np.testing.assert_allclose(information(std), shown, rtol=0, atol=5e-4)
    np.testing.assert_allclose(information(0.5), 4.54e-5, rtol=1e-2)  # exp(-10)
    assert information(100.0) == 0.0, "no overflow"


def test_the_gate_of_cope_is_another_function():
    np.testing.assert_allclose(information(0.0, gate="cope"), 1.0, rtol=1e-12)
    np.testing.assert_allclose(information(0.1, gate="cope"), np.exp(-2), rtol=1e-6)


def test_zero_gains_neither_count_nor_get_anything():
    gains = [0.0, 1.0, 0.0, 3.0, 0.0, 0.0]
    batch = ragged([1, 0, 1, 0, 0, 1], info_gain=gains, length=[1, 1, 5, 3, 7, 9])
    z = tw.infopo(beta=2.0)(batch)  # outcomes agree: 2 * 1/2 * z
    # over tokens 1, 3, 3, 3: mean 5/2, variance (9/4 + 3/4) / 3 = 1
    np.testing.assert_allclose(z, [0, -1.5 / (1 + 1e-6), 0, 0.5 / (1 + 1e-6), 0, 0], rtol=1e-14)


def test_the_release_divides_gains_by_length_once_more():
    batch = ragged([1, 0, 1, 0, 0, 1], info_gain=[0, 4.0, 0, 3.0, -2.0, 0], length=[1, 2, 5, 3, 1, 9])
    z = tw.infopo(beta=2.0, convention="release")(batch)
    # tokens of 2, 2, 1, 1, 1 and -2: mean 5/6, squares 15 - 25/6 = 65/6
    std = np.sqrt(65 / 6 / 5) + 1e-6
    np.testing.assert_allclose(z, np.array([0, 7 / 6, 0, 1 / 6, -17 / 6, 0]) / std, rtol=1e-14)


def test_a_lone_trajectory_in_the_release_keeps_its_return_and_hears_no_information():
    lone = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0, 3], {"info_gain": [1.0, 2.0], "length": [1, 1]})
    np.testing.assert_allclose(tw.infopo(convention="release")(lone), 3.0, rtol=1e-8)
    np.testing.assert_allclose(tw.infopo()(lone), np.array([-1, 1]) * 0.25 * 0.5 / (np.sqrt(0.5) + 1e-6), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_cap_of_the_released_code_never_binds(seed):
    """Its factor is min(1, max(std(A), 1) / std(z)) over the batch's tokens, each std + 1e-6; so it is left out."""
    batch = random_batch(seed, info_gain=each_response(-1, 9), length=tokens)
    flat = tw.Batch(batch.groups, batch.trajectories, np.zeros(batch.num_responses), batch.columns)
    z = on(tw.add_information(beta=2.0), np.zeros(batch.num_responses), flat)
    by_token = np.repeat(z, batch.columns["length"].astype(int))
    assert by_token.std(ddof=1) <= 1.0


# -- MatchTIR ----------------------------------------------------------------------------------------------------------


def test_matchtir_of_one_turn_is_grpo():
    batch = group_of(0.75, 0, 0.5, 1)
    np.testing.assert_allclose(tw.matchtir(column=None)(batch), tw.grpo()(batch), rtol=1e-15)


def test_matchtir_is_the_mean_of_both_levels():
    both = tw.matchtir(discount=0.5, column=None)(ragged())
    turn = tw.chain(
        tw.discounted_return(discount=0.5),
        tw.center_by_group(over="responses", same="turn"),
        tw.scale_by_group_std(over="responses", same="turn"),
    )
    np.testing.assert_array_equal(both, (tw.grpo()(ragged()) + turn(ragged())) / 2)
    # turn 1: to go 0 and 1/2 + 1/2 = 1, so -+ 1/2 over sqrt(1/2); returns 1, 1/2, 3/2 have a deviation of 1/2
    expected = (-0.5 / (0.5 + 1e-6) - 0.5 / (np.sqrt(0.5) + 1e-6)) / 2
    np.testing.assert_allclose(both[2], expected, rtol=1e-14)


def test_a_lone_turn_gets_nothing_for_its_turn_and_leaks_in_the_release():
    ours, release = tw.matchtir(column=None)(ragged()), tw.matchtir(column=None, convention="release")(ragged())
    whole = tw.grpo()(ragged())[5]
    np.testing.assert_array_equal(ours[5], whole / 2)
    np.testing.assert_allclose(release[5], (whole + 1.0) / 2, rtol=1e-15)  # the raw reward of turn 2
    np.testing.assert_array_equal(release[:5], ours[:5])


def test_matchtir_reads_the_rewards_of_tool_calls_where_they_are_told():
    scored = tw.Batch(
        ragged().groups, ragged().trajectories, np.full(ragged().num_responses, 9.0), {"step_reward": ragged().reward_R}
    )
    for convention in get_args(Convention):
        expected = tw.matchtir(column=None, convention=convention)(ragged())
        np.testing.assert_array_equal(tw.matchtir(convention=convention)(scored), expected)
        assert tw.matchtir(convention=convention).needs == ("step_reward",)
    assert tw.matchtir(column="calls").needs == ("calls",)
    assert tw.matchtir(column=None).needs == ()
    with pytest.raises(tw.BatchError, match="needs column 'step_reward'"):
        tw.matchtir()(ragged())


# -- unlikeliness ------------------------------------------------------------------------------------------------------

LIKELY = {"logprob": [-0.2, -1, -0.5, -0.8], "length": [3, 3, 3, 3], "success": [1, 1, 0, 0]}


def test_unlikeliness_card():
    shaped = on(tw.favor_unlikely(convention="release"), [1, 1, 0, 0], group_of(0, 0, 0, 0, **LIKELY))
    np.testing.assert_array_equal(shaped, [0.8125, 1, 0, 0])
    text = on(tw.favor_unlikely(), [1, 1, 0, 0], group_of(0, 0, 0, 0, **LIKELY))
    np.testing.assert_allclose(shaped - text, np.array([0.25, 0.25, 0, 0]) / 4, rtol=1e-14)  # a constant beta / n


def test_unlikeliness_without_beta_is_grpo_on_success():
    batch = random_batch(3, success=of_trajectory(0, 1), logprob=each_response(-2, 0), length=tokens)
    paid_at_the_end = np.zeros(batch.num_responses)
    paid_at_the_end[batch.trajectories.offsets[1:] - 1] = batch.trajectories.last(batch.columns["success"])
    on_success = tw.Batch(batch.groups, batch.trajectories, paid_at_the_end)
    for method in (
        tw.unlikeliness(beta=0.0),
        tw.unlikeliness(beta=0.0, convention="release"),
        tw.unlikeliness(beta=0.0, skip_uniform=False),
    ):
        np.testing.assert_array_equal(method(batch), tw.grpo()(on_success))


def test_uniform_groups_are_skipped_by_their_success_not_by_what_the_ranks_made_of_it():
    solved = group_of(10, 10, 10, logprob=[-3, -1, -2], length=[1, 1, 1], success=[1, 1, 1])
    np.testing.assert_array_equal(tw.unlikeliness()(solved), 0)
    assert (np.argsort(-tw.unlikeliness(skip_uniform=False)(solved)) == [0, 2, 1]).all()


def test_likelihood_is_a_mean_over_tokens_not_over_turns():
    # (-4 + 3 * 0) / 4 = -1 against -1.5: over turns it would be -2 against -1.5
    batch = tw.Batch(
        tw.Segments([0, 2]),
        tw.Segments([0, 2, 3]),
        [0, 0, 0],
        {"success": [1, 1, 1], "logprob": [-4.0, 0.0, -1.5], "length": [1, 3, 2]},
    )
    np.testing.assert_array_equal(on(tw.favor_unlikely(beta=0.5), [1, 1, 1], batch), [0.5, 0.5, 0.75])


def test_equally_likely_trajectories_share_their_place_whatever_their_order():
    batch = group_of(0, 0, 0, logprob=[-1, -2, -1], length=[1, 1, 1], success=[1, 1, 1])
    np.testing.assert_allclose(on(tw.favor_unlikely(beta=0.6), [1, 1, 1], batch), [0.5, 0.8, 0.5], rtol=1e-15)


# -- ArenaRL -----------------------------------------------------------------------------------------------------------


def test_every_strict_ranking_of_a_size_gives_the_same_advantages():
    for size in (2, 3, 5):
        by_rank = {
            tuple(tw.arena_rl()(group_of(*[0] * size, rank=ranks))[np.argsort(ranks)].round(12).tolist())
            for ranks in itertools.permutations(range(size))
        }
        assert len(by_rank) == 1
        only = next(iter(by_rank))
        assert list(only) == sorted(only, reverse=True), "rank 0 is the best"


def test_a_rank_is_paid_once_and_reaches_every_turn():
    batch = ragged(rank=[1, 0, 0, 2, 2, 2])
    np.testing.assert_array_equal(tw.reward_rank()(batch), [0.5, 0, 1, 0, 0, 0])
    np.testing.assert_allclose(tw.arena_rl()(batch), np.array([0, 0.5, 0.5, -0.5, -0.5, -0.5]) / (0.5 + 1e-6))
