"""CANON, NGRPO, V_0.5, HAPO and ARPO: their cards' checks, equivalences and edges, by hand."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.methods.batches import RAGGED, applied, group_of, groups_of
from tests.properties.strategies import advantage

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError

# -- CANON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "expected"), [(1.0, [1, 0, -0.5, -0.5]), (0.0, [0.5, -0.5, 0, 0]), (0.5, [0.75, -0.25, -0.25, -0.25])]
)
def test_canon_card(mu, expected):
    card = group_of(1, 0, 0, 0, length=[1, 2, 3, 4])
    np.testing.assert_array_equal(tw.canon(metric="length", mu=mu)(card), expected)
    by_entropy = group_of(1, 0, 0, 0, length=[9, 1, 5, 2], entropy=[0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(tw.canon(mu=mu)(by_entropy), expected)


def test_canons_metric_belongs_to_the_trajectory():
    # returns 4, 0 and 1; the lower half of three is one. Tokens: 10, 2 and 3, so the second
    batch = tw.Batch(
        tw.Segments([0, 3]),
        tw.Segments([0, 2, 4, 5]),
        [0, 4, 0, 0, 1],
        {"length": [5, 5, 1, 1, 3], "entropy": [0.1, 0.9, 0.6, 0.7, 0.55]},
    )
    np.testing.assert_array_equal(tw.canon(metric="length")(batch), [4, 4, -2.5, -2.5, 1])
    # mean entropies over tokens 0.5, 0.65 and 0.55, so the first
    np.testing.assert_array_equal(tw.canon()(batch), [3.5, 3.5, -4, -4, -3])
    # with 1 and 7 tokens the first has 0.8, so the third, whatever the plain mean over responses
    columns = dict(batch.columns) | {"length": [1, 7, 1, 1, 3]}
    weighted = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, columns)
    np.testing.assert_array_equal(tw.canon()(weighted), [3, 3, -1, -1, -1])


def test_canon_of_even_groups_at_one_half_is_the_group_mean():
    batch = groups_of(4, 2, reward=[1, 5, 2, 0, 3, 4], length=[4, 1, 2, 3, 2, 1])
    np.testing.assert_allclose(tw.canon(metric="length", mu=0.5)(batch), tw.dr_grpo()(batch), rtol=1e-15)


def test_canons_odd_group_has_the_smaller_lower_half():
    batch = group_of(6, 0, 3, length=[1, 2, 3])
    np.testing.assert_array_equal(tw.canon(metric="length")(batch), [4.5, -6, -3])
    np.testing.assert_array_equal(tw.canon(metric="length", mu=0.0)(batch), [0, -1.5, 1.5])


def test_canons_efficiency_discounts_the_longer_half_and_mirrors_entropy():
    columns = {"length": [1, 2, 3, 4], "entropy": [0.1, 0.2, 0.3, 0.4]}
    batch = group_of(1, 1, 1, 0, **columns)
    # short: R - a * 1/2; long: a * R - 1
    np.testing.assert_allclose(tw.canon(metric="length", efficiency=0.8)(batch), [0.6, 0.6, -0.2, -1], rtol=1e-15)
    # low entropy: a * R - 1/2; high: R - a * 1
    np.testing.assert_allclose(tw.canon(efficiency=0.8)(batch), [0.3, 0.3, 0.2, -0.8], rtol=1e-14)


def test_canons_efficiency_acts_on_the_comparison_with_the_other_half_only():
    batch = group_of(1, 1, 1, 0, length=[1, 2, 3, 4], entropy=[0.1, 0.2, 0.3, 0.4])
    for metric in ("length", "entropy"):
        inter, own = (tw.canon(metric=metric, mu=mu, efficiency=0.8)(batch) for mu in (1.0, 0.0))
        np.testing.assert_array_equal(own, tw.canon(metric=metric, mu=0.0)(batch))
        mixed = tw.canon(metric=metric, mu=0.25, efficiency=0.8)(batch)
        np.testing.assert_allclose(mixed, 0.25 * inter + 0.75 * own, rtol=1e-14)


def test_canons_lone_trajectory_is_in_the_half_to_leave_in_the_release():
    lone = {"length": [3], "entropy": [0.5], "convention": "release"}
    columns = {name: lone.pop(name) for name in ("length", "entropy")}
    batch = group_of(10, **columns)
    np.testing.assert_allclose(tw.canon(metric="length", efficiency=0.88, **lone)(batch), [8.8], rtol=1e-15)
    np.testing.assert_allclose(tw.canon(metric="length", mu=0.5, efficiency=0.88, **lone)(batch), [9.4], rtol=1e-15)
    np.testing.assert_array_equal(tw.canon(metric="length", mu=0.0, efficiency=0.88, **lone)(batch), [10])
    np.testing.assert_array_equal(tw.canon(efficiency=0.88, **lone)(batch), [10])  # the longer half, not the surer one
    np.testing.assert_array_equal(tw.canon(metric="length", efficiency=0.88)(batch), [0])


def test_canons_equal_trajectories_share_the_cut_so_that_order_means_nothing():
    # metric 1, 2, 2, 3: the twos are half in each half; low = (4 + 1) / 2 of ..., by hand:
    batch = group_of(4, 2, 0, 1, length=[1, 2, 2, 3])
    low, high = (4 + 0.5 * 2 + 0.5 * 0) / 2, (0.5 * 2 + 0.5 * 0 + 1) / 2
    np.testing.assert_allclose(
        tw.canon(metric="length")(batch), [4 - high, 2 - (low + high) / 2, 0 - (low + high) / 2, 1 - low]
    )
    # for those that are in one half whatever the order, it is the mean over the orders that "release" could meet
    swapped = group_of(4, 0, 2, 1, length=[1, 2, 2, 3])
    one = tw.canon(metric="length", convention="release")(batch)
    other = tw.canon(metric="length", convention="release")(swapped)[[0, 2, 1, 3]]
    assert one[0] != other[0]
    np.testing.assert_allclose(tw.canon(metric="length")(batch)[[0, 3]], ((one + other) / 2)[[0, 3]])
    # all equal: nothing to condition on, so the group's mean
    flat = group_of(4, 2, 0, 1, length=[7] * 4)
    for mu in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(tw.canon(metric="length", mu=mu)(flat), tw.dr_grpo()(flat), rtol=1e-15)


def test_canons_release_goes_by_order_and_keeps_a_lone_return():
    flat = group_of(4, 2, 0, 1, length=[7] * 4)
    np.testing.assert_array_equal(tw.canon(metric="length", convention="release")(flat), [3.5, 1.5, -3, -2])
    lone = group_of(3, length=[2])
    for mu in (0.0, 1.0):
        np.testing.assert_array_equal(tw.canon(metric="length", mu=mu, convention="release")(lone), [3])
        np.testing.assert_array_equal(tw.canon(metric="length", mu=mu)(lone), [0])


def test_canons_divisor_divides():
    np.testing.assert_array_equal(tw.canon(divisor=8192.0)(RAGGED) * 8192, tw.canon()(RAGGED))


def test_canon_needs_what_its_metric_needs():
    assert tw.canon().needs == ("entropy", "length")
    assert tw.canon(metric="length").needs == ("length",)


# -- NGRPO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("success", "convention", "expected"),
    [
        ([1, 0, 0, 0, 0, 0, 0, 0], "turnwise", [1.7638] + [-0.5040] * 7),
        ([0] * 8, "turnwise", [-0.3333] * 8),
        ([0] * 8, "printed", [-0.3536] * 8),
        ([1] * 8, "turnwise", [0] * 8),
        ([1] * 8, "printed", [0] * 8),
    ],
)
def test_ngrpo_card(success, convention, expected):
    batch = group_of(*(10 * s for s in success), success=success)  # whatever the reward of a success is
    np.testing.assert_allclose(tw.ngrpo(convention=convention)(batch), expected, rtol=0, atol=5e-5)
    by_return = tw.ngrpo(max_reward=10.0, convention=convention)
    np.testing.assert_allclose(by_return(batch), expected, rtol=0, atol=5e-5)
    assert by_return.needs == ()


def test_a_sum_of_rewards_may_round_above_the_largest_return():
    batch, _ = tw.Batch.from_arrays(group=[0] * 4, trajectory=[0, 0, 0, 1], reward=[0.1, 0.1, 0.1, 0.0])
    assert 0.1 + 0.1 + 0.1 > 0.3
    np.testing.assert_allclose(tw.ngrpo(max_reward=0.3)(batch), tw.ngrpo(max_reward=0.1 + 0.1 + 0.1)(batch), rtol=1e-9)
    with pytest.raises(tw.BatchError, match="above the virtual one"):
        tw.ngrpo(max_reward=0.29)(batch)


def test_ngrpo_without_the_virtual_success_is_grpo():
    batch = groups_of(4, 3, 1, reward=[1, 0, 0.5, 0, 1, 0, 0, 1])
    np.testing.assert_allclose(tw.ngrpo(max_reward=1.0, num_virtual=0)(batch), tw.grpo()(batch), rtol=1e-14)


def test_ngrpos_virtual_successes_are_as_good_as_real_ones():
    virtual = tw.ngrpo(max_reward=2.0, num_virtual=3)(group_of(1, 0, 0))
    real = tw.grpo()(group_of(1, 0, 0, 2, 2, 2))[:3]
    np.testing.assert_allclose(virtual, real, rtol=1e-14)


def test_ngrpos_lone_trajectory():
    lone = group_of(0, success=[1])
    np.testing.assert_array_equal(tw.ngrpo()(lone), [0])
    np.testing.assert_array_equal(tw.ngrpo(convention="release")(lone), [1])


def test_ngrpo_refuses_a_return_above_the_best():
    with pytest.raises(
        BatchError, match=r"a return of 10.0 \(group 0, trajectory 1, turn 0\) above the virtual one, 1.0"
    ):
        tw.ngrpo(max_reward=1.0)(group_of(0, 10))
    with pytest.raises(ConfigError, match="num_virtual=-1 is negative"):
        tw.ngrpo(num_virtual=-1)(group_of(0, 1, success=[0, 1]))


# -- V_0.5 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("success", "prior", "baseline"),
    [
        ([1, 1, 1, 0], -0.5, 0.25),  # v = 1/2, w = 3/4
        ([1, 1, 0, 0], 0.1, 0.1),  # v = 0, w = 0
        ([0, 0, 0, 0], 0.8, 0.8 - 1.8 * 2.99 / 3.24),  # v = -1, w = 0.923
    ],
)
def test_v05_card(success, prior, baseline):
    batch = group_of(*success, success=success, task=["q"] * 4)
    np.testing.assert_allclose(advantage(tw.v05(unseen=prior), batch), 2 * np.array(success) - 1 - baseline, rtol=1e-14)
    assert round(0.8 - 1.8 * 2.99 / 3.24, 3) == -0.861  # the card's figure


def test_v05_without_a_prior_is_dr_grpo_on_plus_and_minus_one():
    batch = groups_of(4, 1, 2, reward=[1, -1, -1, -1, 1, 1, 1], success=[1, 0, 0, 0, 1, 1, 1], task=[*"qqqqrss"])
    np.testing.assert_array_equal(advantage(tw.v05(), batch), tw.dr_grpo()(batch))


def test_v05_learns_its_prior_by_the_name_of_the_task():
    method = tw.v05()
    assert method.init is not None
    first = groups_of(4, 2, reward=[0] * 6, success=[1, 1, 1, 0, 0, 0], task=[*"qqqqrr"])
    _, state = method.update(first.reward_R, method.init(), first)
    state = json.loads(json.dumps(state))
    # r comes first now and has V = -1, v = 0: D = 1 - 1/2, w = 1/2, baseline -1/2. q: V = 1/2, v = 1/2: w = 0
    second = groups_of(2, 4, 2, reward=[0] * 8, success=[1, 0, 1, 1, 1, 0, 1, 1], task=[*"rrqqqqnn"])
    credit_R, state = method.update(second.reward_R, state, second)
    np.testing.assert_allclose(credit_R, [1.5, -0.5, 0.5, 0.5, 0.5, -1.5, 0, 0], atol=1e-15)
    # now r has -2/4. A group that always succeeds teaches: v = 1, V = -1/2, D = 9/4 - 1/2 = 7/4, w = 7/9
    third = groups_of(2, reward=[0, 0], success=[1, 1], task=[*"rr"])
    credit_R, _ = method.update(third.reward_R, state, third)
    np.testing.assert_allclose(credit_R, [1 - (7 / 9 - 2 / 9 / 2)] * 2, rtol=1e-14)


def test_a_history_does_not_count_replays():
    """The first group of q has two replays, r's has nothing else: as if they had not been there."""
    method = tw.v05()
    assert method.init is not None
    success, replayed = [1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]
    first = groups_of(4, 2, reward=[0] * 6, success=success, task=[*"qqqqrr"], replayed=replayed)
    _, state = method.update(first.reward_R, method.init(), first)
    assert state == (None, {"q": [0.0, 2]})
    memory = tw.standardize_with_earlier()
    assert memory.init is not None
    rewarded = groups_of(4, 2, reward=success, task=[*"qqqqrr"], replayed=replayed)
    _, state = memory.update(rewarded.reward_R, memory.init(), rewarded)
    assert state == {"q": [1.0, 0.0]}, "what an earlier step knew of r stays"


def test_v05_counts_every_group_of_a_task_once_and_keeps_the_state_it_was_given():
    method = tw.v05()
    assert method.init is not None
    before = method.init()
    twice = groups_of(2, 2, reward=[0] * 4, success=[1, 1, 0, 1], task=["q"] * 4)
    credit_R, after = method.update(twice.reward_R, before, twice)
    assert before == method.init(), "the second group of a batch does not see the first"
    np.testing.assert_array_equal(credit_R, [0, 0, -1, 1])
    copy = json.loads(json.dumps(after))
    once = groups_of(1, reward=[0], success=[1], task=["q"])
    # V = 2/4; D = max(0, 1/4 - 1) = 0
    np.testing.assert_array_equal(method.update(once.reward_R, after, once)[0], [0.5])
    assert json.loads(json.dumps(after)) == copy


def test_v05_counts_what_is_assumed_of_a_task_as_trajectories():
    method = tw.v05(unseen=-1.0, strength=2.0)
    assert method.init is not None
    first = groups_of(2, reward=[0] * 2, success=[1, 1], task=["q"] * 2)
    _, state = method.update(first.reward_R, method.init(), first)
    once = groups_of(1, reward=[0], success=[1], task=["q"])
    # V = (2 - 2) / 4, and D = max(0, 1 - 1) = 0; without a strength V = 1
    np.testing.assert_array_equal(method.update(once.reward_R, state, once)[0], [1.0])
    np.testing.assert_array_equal(tw.v05(unseen=-1.0).update(once.reward_R, state, once)[0], [0.0])


def test_v05_says_what_is_wrong():
    with pytest.raises(ConfigError, match=r"unseen=1.5 must be between -1 and 1"):
        tw.v05(unseen=1.5)
    for options in ({"unseen": 0.0, "strength": -1.0}, {"strength": 2.0}):
        with pytest.raises(ConfigError, match=r"strength=.* must be 0, or a number of trajectories.*set unseen"):
            tw.v05(**options)
    with pytest.raises(BatchError, match=r"one task per group, but 'r' \(group 0, trajectory 1, turn 0\)"):
        advantage(tw.v05(), group_of(0, 1, success=[0, 1], task=["q", "r"]))
    with pytest.raises(BatchError, match=r"a return of 10.0 \(group 0, trajectory 1, turn 0\), expected -1 to 1"):
        advantage(tw.subtract_shrunk_mean(), group_of(0, 10, task=["q", "q"]))


@pytest.mark.parametrize(
    ("success", "shown"), [([0, 10], r"10.0 \(group 0, trajectory 1"), ([-0.5, 0], r"-0.5 \(group 0, trajectory 0")]
)
def test_success_is_between_zero_and_one(success, shown):
    batch = group_of(0, 1, success=success)
    for method in (tw.ngrpo(), tw.a_grae()):
        with pytest.raises(BatchError, match="one success between 0 and 1 per trajectory, got " + shown):
            method(batch)


def test_success_is_one_a_trajectory():
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0, 1], {"success": [0, 1]})
    with pytest.raises(BatchError, match=r"per trajectory, got 1.0 \(group 0, trajectory 0, turn 1\)"):
        tw.success_return()(batch)


# -- HAPO --------------------------------------------------------------------------------------------------------------


def test_hapo_counts_tokens():
    # tokens 4, 3 and 6 of returns 1, 0 and 1: mean 10/13, population std sqrt(10 * 3) / 13
    std = np.sqrt(30) / 13 + 1e-6
    np.testing.assert_allclose(tw.hapo()(RAGGED)[:6], np.array([3, -10, -10, 3, 3, 3]) / 13 / std, rtol=1e-14)


def test_hapo_on_one_token_a_trajectory_is_grpo_with_the_population_std():
    batch = groups_of(4, 3, 1, reward=[1, 0, 0.5, 0, 1, 0, 0, 1], length=[1] * 8)
    np.testing.assert_allclose(tw.hapo()(batch), tw.grpo(convention="torchtitan")(batch), rtol=1e-15)


def test_hapos_release_falls_back_to_grpo_where_an_advantage_reaches_five():
    # one token beside 26, 24 and 26 of the other outcome: advantages sqrt(26), sqrt(24) and -sqrt(26)
    batch = groups_of(2, 2, 2, reward=[1, 0, 1, 0, 0, 1], length=[1, 26, 1, 24, 1, 26])
    paper, release = tw.hapo()(batch), tw.hapo(convention="release")(batch)
    np.testing.assert_allclose(paper[::2], [np.sqrt(26), np.sqrt(24), -np.sqrt(26)], rtol=1e-4)
    np.testing.assert_array_equal(release[[0, 1, 4, 5]], tw.grpo()(batch)[[0, 1, 4, 5]])
    np.testing.assert_array_equal(release[2:4], paper[2:4])
    exactly = tw.standardize_by_tokens(limit=float(paper.max()))
    np.testing.assert_array_equal(exactly(batch)[:2], tw.grpo()(batch)[:2])


# -- ARPO --------------------------------------------------------------------------------------------------------------


def test_arpos_card():
    batch = group_of(0, 0, 0, prefix=["p", "p", "x"])
    np.testing.assert_allclose(
        applied(tw.share_between_forks(), batch, 1.2247, 0, -1.2247), [0.61235, 0.61235, -1.2247], rtol=1e-15
    )


# the first two of three trajectories share their first turn, the first and the third a later one; another prompt has
# the same names
FORKED = tw.Batch(
    tw.Segments([0, 3, 4]),
    tw.Segments([0, 3, 5, 7, 8]),
    [0, 0, 3, 0, 0, 0, 6, 1],
    {"prefix": ["root", "a", "a", "root", "b", "c", "a", "root"]},
)


def test_arpo_hard_averages_over_the_trajectories_that_share_a_stretch():
    first, second, third = tw.grpo()(FORKED)[[0, 3, 5]]
    # "a" is twice in the first trajectory, which counts once
    shared, a = (first + second) / 2, (first + third) / 2
    np.testing.assert_allclose(
        tw.arpo(mode="hard")(FORKED), [shared, a, a, shared, second, third, a, 0], rtol=1e-14, atol=1e-15
    )
    assert tw.arpo(mode="hard").needs == ("prefix",)


def test_arpo_soft_and_arpo_without_forks_are_grpo():
    np.testing.assert_array_equal(tw.arpo()(FORKED), tw.grpo()(FORKED))
    alone = tw.Batch(FORKED.groups, FORKED.trajectories, FORKED.reward_R, {"prefix": range(8)})
    np.testing.assert_array_equal(tw.arpo(mode="hard")(alone), tw.grpo()(FORKED))
    per_trajectory = tw.Batch(FORKED.groups, FORKED.trajectories, FORKED.reward_R, {"prefix": FORKED.trajectories.ids})
    np.testing.assert_array_equal(tw.arpo(mode="hard")(per_trajectory), tw.grpo()(FORKED))


# -- choices -----------------------------------------------------------------------------------------------------------

CHOICES = """
import turnwise as tw
columns = {"success": [0], "length": [1], "entropy": [1], "truncated": [0]}
batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 1]), [0.0], columns)
for make, options in [
    (tw.canon, {"metric": "lengths"}), (tw.canon, {"convention": "relase"}), (tw.center_by_halves, {"ties": "shared"}),
    (tw.center_by_halves, {"lone": "zeros"}), (tw.ngrpo, {"convention": "prints"}), (tw.adora, {"convention": "llms"}),
    (tw.a_grae, {"convention": "papers"}), (tw.grpo_n, {"sign": "negativ"}), (tw.hapo, {"convention": "releases"}),
    (tw.arpo, {"mode": "hart"}), (tw.d3s, {"kept_frac": 0.5, "over": "response"}),
]:
    try:
        make(**options)(batch)
    except tw.ConfigError as error:
        print(error)
"""


def test_every_choice_is_checked_where_no_type_checker_runs():
    # in a process without run-time type checks, which would refuse the value before the library can explain
    done = subprocess.run([sys.executable, "-c", CHOICES], capture_output=True, text=True, check=True)
    hints = [line.split("Did you mean ")[1] for line in done.stdout.splitlines()]
    known = [
        "length",
        "release",
        "share",
        "zero",
        "printed",
        "llm",
        "paper",
        "negative",
        "release",
        "hard",
        "responses",
    ]
    assert hints == [f"{name!r}?" for name in known]


def test_the_length_of_a_trajectory_is_that_of_all_its_turns():
    # two turns of 3 tokens are longer than one of 4: the longer half's return counts half
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 2, 3]), [0.0, 1.0, 0.0], {"length": [3, 3, 4]})
    np.testing.assert_allclose(tw.canon(metric="length", efficiency=0.5)(batch), [0.5, 0.5, -0.5])


def test_a_running_mean_needs_texts_since_labels_are_numbered_anew_in_each_batch():
    method = tw.subtract_running_mean(same="seat")
    for seats in (["white", "black"], [3, 1]):
        batch, _ = tw.Batch.from_arrays(group=[0, 1], trajectory=[0, 1], reward=[1.0, -1.0], columns={"seat": seats})
        with pytest.raises(tw.BatchError, match=r"needs texts, but the column 'seat' has numbers"):
            method.trace(batch)
