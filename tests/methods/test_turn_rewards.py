"""Methods with rewards per turn or step, and REINFORCE++: cards, limits, and what they compare."""

import math

import numpy as np
import pytest
from tests.methods.batches import batch_of, groups_of
from tests.methods.drawn import drawn, step_term

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.methods.build import build_method


def test_mica_card():
    batch = batch_of([[2, 2]], [1, 0, 0, 1])
    np.testing.assert_allclose(tw.mica(discount=1.0)(batch), [0.5, -1, -0.5, 1], atol=1e-7)
    turn_only = tw.mica(discount=1.0, turn_weight=1.0, group_weight=0.0)(batch)
    np.testing.assert_allclose(turn_only, [0, -1, 0, 1], atol=1e-7)


def test_mica_compares_a_turn_that_nobody_else_reached_in_the_second_part_only():
    batch = batch_of([[1, 2]], [0, 0, 3])  # rewards 0, 0, 3: mean 1, deviation sqrt(2)
    np.testing.assert_allclose(tw.mica(discount=1.0)(batch)[2], 0.5 * 2 / math.sqrt(2), rtol=1e-7)


def test_mica_asks_for_its_discount():
    with pytest.raises(ConfigError, match=r"^method 'mica' needs the option 'discount'; no value is published"):
        build_method("mica", {})


def test_srgpo_adds_the_step_reward_among_steps_of_all_tasks():
    batch = batch_of([[1, 1], [2]], [0, 0, 0, 0], step_reward=[1, 0, 0, 1])
    z = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(tw.srgpo()(batch), 0.5 * z * np.array([1, -1, -1, 1]), rtol=1e-13)


def test_a_response_alone_in_its_random_group_keeps_its_value_in_the_release():
    one = groups_of(1, reward=[0.0], step_reward=[1.0])
    assert tw.srgpo(weight=0.5)(one).tolist() == [0.0]
    assert tw.srgpo(weight=0.5, convention="release")(one).tolist() == [0.5]


def test_srgpo_is_grpo_where_all_steps_are_equal():
    batch = drawn()
    same = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, {"step_reward": np.ones(batch.num_responses)})
    np.testing.assert_array_equal(tw.srgpo()(same), tw.grpo()(same))
    released = tw.srgpo(convention="release")(same)
    np.testing.assert_array_equal(released, tw.grpo(convention="verl-agent")(same))


def many(scale: float = 1.0) -> tw.Batch:
    """Twenty trajectories of three steps of different reward."""
    return batch_of([[3] * 10] * 2, np.zeros(60), step_reward=scale * np.arange(60.0) ** 2)


def random_groups(batch: tw.Batch, **options) -> np.ndarray:
    deal = tw.standardize_in_random_groups(**options)
    return deal.update(batch.columns["step_reward"], None, batch)[0]


def test_random_groups_hold_as_many_as_asked_and_are_standardised_each():
    # two members get +-1/sqrt(2), whatever they are; of 61, one is left over
    batch = batch_of([[61]], np.zeros(61), step_reward=np.arange(61.0))
    credit_R = random_groups(batch, size=2)
    np.testing.assert_allclose(np.sort(np.abs(credit_R))[1:], 1 / np.sqrt(2), rtol=1e-5)
    assert (credit_R == 0).sum() == 1
    assert (credit_R > 0).sum() == 30
    # of three in a row of whole numbers, the members' deviations sum to zero: so do all
    np.testing.assert_allclose(random_groups(batch, size=3).sum(), 0.0, atol=1e-9)
    everyone = np.arange(61.0) - 30
    np.testing.assert_allclose(
        random_groups(batch, size=1000), everyone / (np.std(everyone, ddof=1) + 1e-6), rtol=1e-13
    )


def test_random_groups_depend_on_the_seed_and_the_batch_alone():
    first = random_groups(many(), size=4)
    np.random.seed(1)  # noqa: NPY002, the old global state must not matter
    np.testing.assert_array_equal(random_groups(many(), size=4), first)
    assert (random_groups(many(), size=4, seed=1) != first).any()
    assert (tw.srgpo(group_size=4, seed=1)(many()) != tw.srgpo(group_size=4)(many())).any()
    # another batch is dealt otherwise: twice the rewards in the same groups would give the same up to eps
    assert np.abs(random_groups(many(scale=2.0), size=4) - first).max() > 0.1


def test_random_groups_look_across_prompts():
    prompt_R = many().group_responses.ids
    credit_R = random_groups(many(), size=4)
    assert abs(credit_R[prompt_R == 0].sum()) > 1.0, "groups within a prompt would sum to zero in it"


def test_take_column_gives_a_column_of_its_own():
    batch = drawn()
    values_R = tw.take_column(column="step_reward")(batch)
    np.testing.assert_array_equal(values_R, batch.columns["step_reward"])
    values_R[:] = -1.0  # the batch is not to change
    assert batch.columns["step_reward"].min() == 0.0


def test_proxmo_when_cold_and_unweighted_is_grpo_with_gigpos_step_term():
    batch = drawn()
    keyed = tw.Batch(
        batch.groups,
        batch.trajectories,
        batch.reward_R,
        {
            "success": batch.columns["success"],
            "state_text": batch.columns["state_text"],
            "state_key": batch.columns["state_text"].tolist(),
        },
    )
    cold = tw.proxmo(beta=0.0, tau=1e-3, discount=0.5)(keyed)
    np.testing.assert_allclose(cold, tw.grpo()(keyed) + step_term(scale=False, discount=0.5)(keyed), atol=1e-12)


def test_reinforce_pp_baseline_of_one_prompt_with_one_token_each_is_grpo():
    batch = batch_of([[1] * 4], [1, 0, 0, 0.25], length=[1] * 4)
    np.testing.assert_allclose(tw.reinforce_pp_baseline()(batch), tw.grpo()(batch), rtol=1e-13)


def test_reinforce_pp_baseline_is_standard_over_tokens():
    batch = drawn()
    credit_R, tokens_R = tw.reinforce_pp_baseline()(batch), batch.columns["length"].astype(int)
    over_tokens = np.repeat(credit_R, tokens_R)
    np.testing.assert_allclose(over_tokens.mean(), 0.0, atol=1e-13)
    np.testing.assert_allclose(over_tokens.std(ddof=1), 1.0, rtol=1e-5)


def test_reinforce_pp_baseline_reads_lengths_from_tokens_too():
    reward, lengths = [1.0, 0.0, 0.5], [2, 1, 4]
    groups, turns = tw.Segments([0, 3]), tw.Segments(range(4))
    by_tokens = tw.Batch(groups, turns, reward, tokens=tw.Segments.from_lengths(lengths))
    by_column = tw.Batch(groups, turns, reward, {"length": lengths})
    method = tw.reinforce_pp_baseline()
    np.testing.assert_array_equal(method(by_tokens), method(by_column))


def test_reinforce_pp_is_its_baseline_variant_where_groups_have_the_same_mean():
    batch = batch_of([[1] * 4, [1] * 2], [1, 0, 0, 1, 1, 0], length=[3, 1, 2, 5, 2, 2])
    np.testing.assert_allclose(tw.reinforce_pp()(batch), tw.reinforce_pp_baseline()(batch), rtol=1e-13)


def test_reinforce_pp_is_standard_over_tokens():
    batch = drawn()
    over_tokens = np.repeat(tw.reinforce_pp(discount=0.9)(batch), batch.columns["length"].astype(int))
    np.testing.assert_allclose(over_tokens.mean(), 0.0, atol=1e-13)
    np.testing.assert_allclose(over_tokens.std(ddof=1), 1.0, rtol=1e-5)


def test_a_turn_is_not_compared_with_the_answer_after_it():
    """One search: nothing to compare it with, however much the answer loses without it."""
    batch = batch_of([[2, 2]], [0, 1, 0, 0], turn_drop=[0.5, 0.0, -3.0, 0.0])
    np.testing.assert_array_equal(tw.lotapo(weight=1.0, compared="trajectory")(batch), tw.grpo()(batch))
