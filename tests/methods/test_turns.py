"""Comparisons by turn, role, state, history, chance and text: the cards' checks and equivalences, by hand."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from tests.methods.batches import batch_of

import turnwise as tw
from turnwise.errors import BatchError, ConfigError
from turnwise.methods.build import build_method
from turnwise.transforms.history import history_levels


def drawn(seed: int = 0) -> tw.Batch:
    """Three prompts, trajectories of 1 to 6 turns, three states, two roles, rewards on the way."""
    generator = np.random.default_rng(seed)
    lengths = [generator.integers(1, 7, size=num).tolist() for num in (4, 3, 5)]
    num = sum(map(sum, lengths))
    return batch_of(
        lengths,
        generator.integers(-8, 9, num) / 8,
        state_key=generator.integers(0, 3, num),
        role=generator.integers(0, 2, num),
        length=generator.integers(1, 9, num),
        step_reward=generator.integers(0, 2, num),
        success=np.repeat(generator.integers(0, 2, 12), [turns for group in lengths for turns in group]),
        state_text=[f"state {['one', 'two', 'three'][k]}" for k in generator.integers(0, 3, num)],
    )


def one_turn() -> tw.Batch:
    """The same prompts with one turn a trajectory."""
    return batch_of([[1] * 4, [1] * 3, [1]], np.random.default_rng(1).normal(size=8), role=[0] * 8, length=[1] * 8)


def step_term(scale: bool, discount: float = 0.95) -> tw.Transform:
    """GiGPO's second part, with HGPO's deviation."""
    same = {"over": "responses", "same": "state_key"}
    blocks = [tw.discounted_return(discount=discount), tw.center_by_group(**same)]
    return tw.chain(*blocks, *([tw.scale_by_group_std(**same, ddof=0)] if scale else []))


# -- HGPO --------------------------------------------------------------------------------------------------------------


def test_hgpo_without_history_is_gigpos_step_term():
    batch = drawn()
    gigpo = tw.gigpo(scale=False)(batch) - tw.gigpo(scale=False, weight=0.0)(batch)
    np.testing.assert_allclose(tw.hgpo(depth=0, scale=False)(batch), gigpo, atol=1e-13)
    np.testing.assert_allclose(tw.hgpo(depth=0)(batch), step_term(scale=True)(batch), atol=1e-12)


# A four-turn walk a b a c of trajectory 0; the others share parts of it. Prompt 1 walks the same way.
WALKS = [[list("abac"), list("dbac"), list("ea"), list("c")], [list("abac")]]
WALKED = batch_of(
    [list(map(len, group)) for group in WALKS],
    [0, 0, 0, 1, 0, 0, 0, 0, 0, 0.5, 0.25, 0, 0, 0, 9],
    state_key=[s for group in WALKS for walk in group for s in walk],
)


def test_the_levels_hold_the_responses_with_the_same_last_states():
    def members(depth):
        rows, histories = list(history_levels(WALKED, depth=depth))[-1]
        parts = {tuple(rows[histories.ids == part].tolist()) for part in range(len(histories))}
        return {part for part in parts if len(part) > 1}, rows.tolist()

    assert members(0)[0] == {(0, 2, 6, 9), (1, 5), (3, 7, 10), (11, 13)}  # a, b, c; then a twice in prompt 1
    assert members(1) == ({(2, 6), (3, 7)}, [1, 2, 3, 5, 6, 7, 9, 12, 13, 14])  # "ba" and "ac"; no first turns
    assert members(2) == ({(3, 7)}, [2, 3, 6, 7, 13, 14])  # "bac"
    assert members(3) == (set(), [3, 7, 14])  # "abac" in another prompt is another history


def test_hgpo_weighs_the_levels_on_which_a_response_is_not_alone():
    # the last c of trajectory 0, return 1, against returns 1, 0, 1/4 in c, and 1, 0 behind "a" and behind "b, a"
    levels = [1 - 5 / 12, 1 / 2, 1 / 2]
    credit_R = tw.hgpo(discount=1.0, scale=False)(WALKED)
    np.testing.assert_allclose(credit_R[3], np.average(levels, weights=[1 / 6, 1 / 3, 1 / 2]), rtol=1e-14)
    # the c of trajectory 3, a first turn: level 0 alone, whatever its weight
    np.testing.assert_allclose(credit_R[10], 1 / 4 - 5 / 12, rtol=1e-14)
    # nobody else was in d or e, nor twice in b of prompt 1
    np.testing.assert_array_equal(credit_R[[4, 8, 12, 14]], 0.0)


@pytest.mark.parametrize(("alpha", "weights"), [(0.0, [1, 1, 1]), (2.0, [1, 4, 9])])
def test_alpha_is_the_power_of_the_weights(alpha, weights):
    credit_R = tw.hgpo(discount=1.0, scale=False, alpha=alpha)(WALKED)
    np.testing.assert_allclose(credit_R[3], np.average([7 / 12, 1 / 2, 1 / 2], weights=weights), rtol=1e-14)


def test_verl_agents_weights_begin_at_two():
    credit_R = tw.hgpo(discount=1.0, scale=False, convention="verl-agent")(WALKED)
    np.testing.assert_allclose(credit_R[3], np.average([7 / 12, 1 / 2, 1 / 2], weights=[2, 3, 4]), rtol=1e-14)


def test_with_base_group_the_episode_is_the_lowest_level():
    # returns 1, 0, 1/2, 1/4 of prompt 0: mean 7/16
    credit_R = tw.hgpo(discount=1.0, scale=False, base_group=True)(WALKED)
    episode = np.array([1, 0, 1 / 2, 1 / 4]) - 7 / 16
    expected = np.average([episode[0], 7 / 12, 1 / 2, 1 / 2], weights=[1, 2, 3, 4])
    np.testing.assert_allclose(credit_R[3], expected, rtol=1e-14)
    np.testing.assert_allclose(credit_R[[4, 8]], episode[[1, 2]], rtol=1e-14)  # d and e: nothing but the episode


def test_a_lone_trajectory_is_not_compared_with_its_group():
    alone = batch_of([[3]], [0, 0, 1], state_key=list("aab"))
    np.testing.assert_allclose(tw.hgpo(base_group=True)(alone), tw.hgpo()(alone), rtol=1e-14)
    assert np.abs(tw.hgpo()(alone)).max() > 0.9


def test_more_depth_than_turns_changes_nothing_any_more():
    batch = drawn()
    np.testing.assert_array_equal(tw.hgpo(depth=6)(batch), tw.hgpo(depth=50)(batch))
    assert np.abs(tw.hgpo(depth=2)(batch) - tw.hgpo(depth=1)(batch)).max() > 0.01


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_release_leaves_out_average_levels_in_any_order_of_the_rows(order):
    # 0.4 is the mean of 0.1, 0.4 and 0.7, but not in every order of summing; behind "a" it is compared with 0.1 only
    values, before = np.array([0.1, 0.4, 0.7]), np.array(["a", "a", "b"])
    reward = np.stack([np.zeros(3), values[list(order)]], axis=1).ravel()
    states = [state for n in order for state in (before[n], "c")]
    credit_R = tw.hgpo(convention="verl-agent", scale=False)(batch_of([[2, 2, 2]], reward, state_key=states))
    np.testing.assert_allclose(credit_R[1::2][order.index(1)], 0.15, rtol=1e-12)


# -- TRLOO -------------------------------------------------------------------------------------------------------------


def test_trloo_card():
    batch = batch_of([[1, 1, 1]], [1, 0.5, 0.3])
    np.testing.assert_allclose(tw.trloo()(batch), [0.6, -0.15, -0.45], rtol=1e-14)


def test_trloo_of_one_turn_is_rloo():
    np.testing.assert_allclose(tw.trloo()(one_turn()), tw.rloo()(one_turn()), rtol=1e-14)


def test_trloos_release_has_no_baseline_where_there_is_nobody_else():
    alone = batch_of([[3], [2]], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(tw.trloo(convention="release")(alone), tw.reinforce()(alone))
    np.testing.assert_array_equal(tw.trloo()(alone), 0.0)
    half = tw.trloo(convention="release", discount=0.5)
    np.testing.assert_array_equal(half(alone), tw.reinforce(discount=0.5)(alone))


def test_trloo_compares_with_those_who_got_as_far():
    batch = batch_of([[1, 2, 3]], [1, 2, 3, 4, 5, 6])  # to go: 1; 5, 3; 15, 11, 6
    np.testing.assert_array_equal(tw.trloo()(batch), [1 - 10, 5 - 8, 3 - 11, 15 - 3, 11 - 3, 0])


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "biased"), ({"convention": "release"}, "unbiased"), ({"convention": "release", "discount": 0.9}, "biased")],
)
def test_trloo_declares_what_its_options_do(options, kind):
    gradient = tw.trloo(**options).gradient
    assert gradient is not None
    assert gradient.kind == kind


# -- MARS and MICA -----------------------------------------------------------------------------------------------------


def test_mars_card():
    batch = batch_of([[2, 2]], [0, 1, 0, -1], role=["x"] * 4)
    np.testing.assert_array_equal(tw.mars()(batch), [1, 1, -1, -1])


def test_mars_of_one_role_centres_turn_returns_within_the_group():
    batch = drawn()
    centred = tw.chain(tw.discounted_return(), tw.center_by_group(over="responses"))(batch)
    np.testing.assert_array_equal(tw.mars(by_role=False)(batch), centred)
    alone = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, {"role": ["x"] * batch.num_responses})
    np.testing.assert_allclose(tw.mars()(alone), centred, atol=1e-14)
    np.testing.assert_allclose(tw.mars(by_role=False)(one_turn()), tw.dr_grpo()(one_turn()), atol=1e-15)


def test_mars_compares_the_turns_of_a_lone_game():
    np.testing.assert_array_equal(tw.mars(by_role=False)(batch_of([[2]], [2, 4])), [1, -1])


def test_mars_over_the_batch_joins_games_of_one_trajectory():
    batch = batch_of([[1], [2]], [4, 0, 2], role=["x", "x", "y"])
    np.testing.assert_array_equal(tw.mars(scope="batch")(batch), [1, -1, 0])


def test_mars_release_centres_before_it_sums():
    # rewards 1, 0, 2 of one role: mean 1, so 0, -1, 1; to go -1 + 0, -1, 1; the different ones -1 and 1
    batch = batch_of([[2, 1]], [1, 0, 2], role=["x"] * 3)
    np.testing.assert_array_equal(tw.mars(convention="release")(batch), [-1, -1, 1])


def test_distinct_values_count_once_up_to_rounding():
    batch = batch_of([[1, 1, 1], [1, 1]], [0.1 + 0.2, 0.3, 0.9, 5, 5])
    np.testing.assert_allclose(tw.center_by_distinct()(batch), [-0.3, -0.3, 0.3, 0, 0], atol=1e-15)
    np.testing.assert_allclose(
        tw.center_by_distinct(scope="batch")(batch), np.array([0.3, 0.3, 0.9, 5, 5]) - 6.2 / 3, rtol=1e-14
    )


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
        build_method("mica", {}, with_aem=False)


# -- SRGPO -------------------------------------------------------------------------------------------------------------


def test_srgpo_adds_the_step_reward_among_steps_of_all_tasks():
    batch = batch_of([[1, 1], [2]], [0, 0, 0, 0], step_reward=[1, 0, 0, 1])
    z = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(tw.srgpo()(batch), 0.5 * z * np.array([1, -1, -1, 1]), rtol=1e-13)


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


# -- ProxMO, more in test_texts.py -------------------------------------------------------------------------------------


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


# -- REINFORCE++ with a baseline ---------------------------------------------------------------------------------------


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


# -- REINFORCE++ without a group ---------------------------------------------------------------------------------------


def test_reinforce_pp_is_its_baseline_variant_where_groups_have_the_same_mean():
    batch = batch_of([[1] * 4, [1] * 2], [1, 0, 0, 1, 1, 0], length=[3, 1, 2, 5, 2, 2])
    np.testing.assert_allclose(tw.reinforce_pp()(batch), tw.reinforce_pp_baseline()(batch), rtol=1e-13)


def test_reinforce_pp_is_standard_over_tokens():
    batch = drawn()
    over_tokens = np.repeat(tw.reinforce_pp(discount=0.9)(batch), batch.columns["length"].astype(int))
    np.testing.assert_allclose(over_tokens.mean(), 0.0, atol=1e-13)
    np.testing.assert_allclose(over_tokens.std(ddof=1), 1.0, rtol=1e-5)


# -- errors, each in one line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda b: tw.hgpo(depth=-1)(b), r"depth=-1 must be 0 or more; it counts earlier states$"),
        (lambda b: tw.srgpo(group_size=0)(b), r"size=0 must be at least 1; it counts responses per group$"),
        (lambda b: tw.proxmo(tau=0.0)(b), r"temperature=0.0 must be positive$"),
        (lambda b: tw.proxmo(alpha=0.0)(b), r"alpha=0.0 must be above 0"),
        (lambda b: tw.reject_by_profile(width=0.0)(b), r"width=0.0 must be positive"),
    ],
)
def test_impossible_options_are_refused(make, complaint):
    batch = batch_of(
        [[1, 1]], [0, 1], state_key=[0, 1], step_reward=[0, 1], success=[0, 1], state_text=["", ""], profile_frac=[0, 1]
    )
    with pytest.raises(ConfigError, match=complaint):
        make(batch)


def test_columns_of_the_wrong_kind_are_refused():
    batch = batch_of([[1, 1]], [0, 1], role=["x", "y"], state_text=["mug", "key"])
    with pytest.raises(BatchError, match=r"^take_column needs values, but column 'role' holds names"):
        tw.take_column(column="role")(batch)
    with pytest.raises(BatchError, match=r"^take_column needs values, but column 'state_text' holds names"):
        tw.take_column(column="state_text")(batch)
    with pytest.raises(BatchError, match=r"^center_by_similarity needs texts, but column 'role' does not hold texts"):
        tw.center_by_similarity(column="role")(batch)


CHOICES = """
import turnwise as tw
batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 1]), [0.0], {})
for make, options in [
    (tw.hgpo, {"convention": "verl"}), (tw.trloo, {"convention": "releas"}), (tw.mars, {"convention": "relese"}),
    (tw.mars, {"scope": "groups"}), (tw.srgpo, {"convention": "verl"}), (tw.proxmo, {"convention": "papers"}),
    (tw.reinforce_pp_baseline, {"convention": "ver"}),
    (tw.reinforce_pp, {"convention": "ver"}), (tw.graph_gpo, {"convention": "verl"}),
    (tw.weigh_by_success_rate, {"read_from": "rewards"}),
    (tw.scale_by_group_std, {"eps_in": "std"}),
]:
    try:
        make(**options)(batch)
    except tw.ConfigError as error:
        print(error)
"""


def test_every_choice_is_checked_where_no_type_checker_runs():
    # in a process without run-time type checks, which would refuse the value before the library can explain
    done = subprocess.run([sys.executable, "-c", CHOICES], capture_output=True, text=True, check=True)
    assert [line.split(" is not one of ")[0] for line in done.stdout.splitlines()] == [
        *("convention='verl'", "convention='releas'", "convention='relese'", "scope='groups'", "convention='verl'"),
        *(
            "convention='papers'",
            "convention='ver'",
            "convention='ver'",
            "convention='verl'",
            "read_from='rewards'",
            "eps_in='std'",
        ),
    ]
    assert done.stdout.count("Did you mean 'release'?") == 2


# -- together ----------------------------------------------------------------------------------------------------------


def test_methods_say_whether_they_look_across_prompts():
    across = {name for name in tw.METHODS if tw.trial(tw.METHODS[name]).across_groups}
    assert {"srgpo", "proxmo", "reinforce_pp_baseline"} <= across
    assert not {"hgpo", "trloo", "mars", "mica"} & across
    assert tw.mars(scope="batch").across_groups


def test_aem_modulates_them_like_any_method():
    batch = drawn()
    entropic = tw.Batch(
        batch.groups,
        batch.trajectories,
        batch.reward_R,
        {**batch.columns, "entropy": np.linspace(0, 2, batch.num_responses)},
    )
    for base in (tw.hgpo(), tw.trloo(), tw.mars(), tw.srgpo(), tw.proxmo(), tw.mica(discount=0.9)):
        expected = base(entropic) * tw.entropy_coefficient(entropic)
        np.testing.assert_array_equal(tw.aem(base)(entropic), expected)


def test_hgpos_release_counts_levels_whatever_the_unit_of_reward():
    """A mean's rounding is no level: -2.8e-17 counted as one once."""

    def credit(unit: float) -> np.ndarray:
        batch = tw.Batch(
            tw.Segments([0, 3]), tw.Segments(range(4)), np.array([0.0, 4.0, 2.0]) * unit, {"state_key": ["s", "t", "s"]}
        )
        return tw.hgpo(base_group=True, scale=False, depth=0, convention="verl-agent", discount=1.0)(batch) / unit

    np.testing.assert_allclose(credit(1.0), [-4 / 3, 2.0, 1.0])
    np.testing.assert_allclose(credit(0.1), credit(1.0))
