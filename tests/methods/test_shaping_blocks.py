"""R3 and the blocks that shape rewards, by hand and against loops."""

import itertools

import numpy as np
import pytest
from tests.methods.shaped import group_of, of_trajectory, on, ragged, random_batch

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError
from turnwise.credit.transforms.shaping import ranks_within


def test_ranks_within_are_mean_ranks():
    parts = tw.Labels.of(np.array([1, 0, 1, 0, 1, 1]))
    np.testing.assert_array_equal(ranks_within(parts, np.array([5.0, 2, 3, 1, 5, 9])), [1.5, 1, 0, 0, 1.5, 3])
    scipy = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).integers(0, 4, 50).astype(float)
    one = ranks_within(tw.Labels.single(50), values)
    np.testing.assert_array_equal(one, scipy.rankdata(values) - 1)


# -- R3 ----------------------------------------------------------------------------------------------------------------

FAILED = {"success": [0, 0, 0, 0], "length": [8, 8, 8, 8]}
IN_A_ROW = FAILED | {"peak_entropy": [3, 4, 1, 2], "entropy": [0.2, 0.1, 0.4, 0.3]}  # 1 dominates all, then 0, 3, 2


def test_failures_are_ranked_as_on_the_card():
    batch = group_of(0, 0, 0, 0, **IN_A_ROW)
    np.testing.assert_allclose(tw.rank_failures(max_reward=0.5)(batch), [1 / 3, 0.5, 0, 1 / 6], rtol=1e-15)


def test_dominance_takes_both_entropies():
    same_peak = group_of(0, 0, 0, 0, **IN_A_ROW | {"peak_entropy": [1, 1, 1, 1]})
    np.testing.assert_array_equal(tw.rank_failures(max_reward=0.6)(same_peak), [0.3] * 4)
    same_mean = group_of(0, 0, 0, 0, **IN_A_ROW | {"entropy": [1, 1, 1, 1]})
    np.testing.assert_array_equal(tw.rank_failures(max_reward=0.6)(same_mean), [0.3] * 4)


def test_failures_are_compared_within_their_group_only():
    two = tw.Batch(
        tw.Segments([0, 2, 5]),
        tw.Segments(range(6)),
        [0] * 5,
        {"success": [0] * 5, "length": [1] * 5, "peak_entropy": [1, 2, 9, 8, 7], "entropy": [5, 4, 1, 2, 3]},
    )
    np.testing.assert_array_equal(tw.rank_failures(max_reward=1.0)(two), [0, 1, 1, 0.5, 0])


def test_a_failure_counts_once_beside_a_larger_group():
    # in the group of three, 0 and 2 dominate 1 and not each other
    two = tw.Batch(
        tw.Segments([0, 3, 8]), tw.Segments(range(9)), [0] * 8,
        {"success": [0] * 8, "length": [1] * 8,
         "peak_entropy": [3, 1, 2, 5, 5, 5, 5, 5], "entropy": [2, 3, 1, 1, 1, 1, 1, 1]},
    )  # fmt: skip
    np.testing.assert_array_equal(tw.rank_failures(max_reward=1.0)(two), [0.75, 0, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5])


def test_failures_beside_successes_are_ranked_on_request_only():
    mixed = group_of(0, 0, 1, 0, **IN_A_ROW | {"success": [0, 0, 1, 0]})
    np.testing.assert_array_equal(tw.rank_failures(max_reward=0.5)(mixed), [0, 0, 1, 0])
    np.testing.assert_array_equal(tw.rank_failures(max_reward=0.5, mixed=True)(mixed), [0.25, 0.5, 1, 0])


def test_failures_of_a_column_alone_are_ranked_on_request():
    """As the paper's algorithm ranks truncated ones; without the others, 1 dominates 2."""
    batch = group_of(0, 0, 0, 0, **IN_A_ROW | {"truncated": [0, 1, 1, 0]})
    np.testing.assert_array_equal(tw.rank_failures(max_reward=0.5, only="truncated")(batch), [0, 0.5, 0, 0])
    with pytest.raises(BatchError, match="'truncated'"):
        tw.rank_failures(max_reward=0.5, only="truncated")(group_of(0, 0, **{k: v[:2] for k, v in IN_A_ROW.items()}))


def test_a_failure_with_nobody_to_compare_with_gets_nothing():
    lone = group_of(0, success=[0], length=[1], peak_entropy=[1], entropy=[1])
    np.testing.assert_array_equal(tw.rank_failures(max_reward=0.5)(lone), [0])


@pytest.mark.parametrize("seed", range(5))
def test_dominance_equals_a_loop_over_pairs(seed):
    batch = random_batch(
        seed,
        success=of_trajectory(0, 1),
        length=lambda g, b: np.ones(b.num_responses, dtype=int),
        peak_entropy=of_trajectory(1, 2, 3),
        entropy=of_trajectory(0.1, 0.2, 0.3),
    )
    for mixed in (False, True):
        paid = on(tw.rank_failures(max_reward=0.5, mixed=mixed), np.zeros(batch.num_responses), batch)
        paid_N, offsets = batch.trajectories.sum(paid), batch.groups.offsets
        won, peak, overall = (
            batch.trajectories.first(batch.columns[c]) for c in ("success", "peak_entropy", "entropy")
        )
        for start, stop in itertools.pairwise(offsets):
            who = [n for n in range(start, stop) if won[n] == 0]
            if not mixed and len(who) < stop - start:
                who = []
            wins = {n: sum(peak[n] > peak[m] and overall[n] < overall[m] for m in who) for n in who}
            for n in range(start, stop):
                better = sum(wins[m] > wins[n] for m in who) if n in who else 0
                equal = sum(wins[m] == wins[n] for m in who) if n in who else 1
                place = better + (equal - 1) / 2
                expected = 0.5 * (1 - place / (len(who) - 1)) if n in who and len(who) > 1 else 0.0
                np.testing.assert_allclose(paid_N[n], expected, rtol=1e-14, atol=1e-15)


def test_r3_prefers_short_successes_and_explores_where_all_fail():
    solved = {
        "success": [1, 1, 1],
        "peak_entropy": [1, 1, 1],
        "entropy": [1, 1, 1],
        "length": [32768, 0.25 * 32768, 40000],
    }
    method = tw.r3(max_reward=0.5, std_weight=1.0, eps=1e-6)
    credit = method(group_of(0, 0, 0, **solved))  # 1, 1.75, 1
    np.testing.assert_allclose(credit, np.array([-0.25, 0.5, -0.25]) / (np.sqrt(0.1875) + 1e-6), rtol=1e-13)
    failing = method(group_of(0, 0, 0, 0, **IN_A_ROW))
    assert (np.argsort(-failing) == [1, 0, 3, 2]).all()


def test_r3_knows_how_long_is_long():
    solved = {"success": [1, 1], "peak_entropy": [1, 1], "entropy": [1, 1], "length": [4, 16]}
    credit = tw.r3(max_reward=0.5, std_weight=1.0, eps=1.0, max_length=16)(group_of(0, 0, **solved))  # 1.75 and 1
    np.testing.assert_allclose(credit, np.array([0.375, -0.375]) / (0.75 * np.sqrt(0.5) + 1), rtol=1e-14)


def test_r3_divides_by_alpha_times_the_deviation_plus_lambda():
    batch = group_of(0, 0, success=[1, 0], length=[32768, 1], peak_entropy=[1, 1], entropy=[1, 1])
    credit = tw.r3(max_reward=0.5, std_weight=3.0, eps=0.7)(batch)
    np.testing.assert_allclose(credit, np.array([0.5, -0.5]) / (3 * np.sqrt(0.5) + 0.7), rtol=1e-14)


@pytest.mark.parametrize("options", [{"std_weight": 0.0, "eps": 1.0}, {"std_weight": 1.0, "eps": 0.0}])
def test_r3_needs_positive_constants(options):
    with pytest.raises(ConfigError, match=r"r3: std_weight=\S+ and eps=\S+ must be positive"):
        tw.r3(max_reward=0.5, **options)


def test_r3_has_no_invented_constants():
    with pytest.raises(ConfigError, match="needs the option 'max_reward'"):
        tw.r3(std_weight=1.0, eps=1e-6)  # pyright: ignore[reportCallIssue]


# -- blocks that shape rewards -----------------------------------------------------------------------------------------


def test_dapos_soft_overlong_fine_as_on_the_card():
    fined = tw.penalize_overlong()(group_of(1, 1, 1, 1, length=[100, 16384, 18432, 20480]))
    np.testing.assert_array_equal(fined, [1, 1, 0.5, 0])
    harder = tw.penalize_overlong(limit=10, buffer=5, factor=2.0)(group_of(0, 0, 0, length=[5, 6, 15]))
    np.testing.assert_allclose(harder, [0, -0.4, -4], rtol=1e-15)  # beyond the limit it goes on


def test_the_fine_counts_the_tokens_of_a_trajectory_or_of_a_response():
    batch = ragged([0] * 6, length=[9, 3, 5, 4, 1, 4])
    whole = tw.penalize_overlong(limit=10, buffer=4)(batch)
    np.testing.assert_array_equal(whole, [-0.75, 0, -0.5, 0, 0, -0.75])  # 9, 8 and 9 tokens, at the last response
    single = tw.penalize_overlong(limit=10, buffer=6, over="responses")(batch)
    np.testing.assert_allclose(single, [-5 / 6, 0, -1 / 6, 0, 0, 0], rtol=1e-15)


def test_the_fine_goes_before_any_method_and_knows_tokens_without_a_column():
    lengths = tw.Segments.from_lengths([9, 3, 5, 4, 1, 4])
    batch = tw.Batch(tw.Segments([0, 3]), tw.Segments([0, 1, 3, 6]), [1, 0, 1, 0, 0, 0], tokens=lengths)
    credit = tw.chain(tw.penalize_overlong(limit=10, buffer=4), tw.dr_grpo())(batch)
    returns = np.array([0.25, 0.5, -0.75])
    np.testing.assert_allclose(credit, np.repeat(returns - returns.mean(), [1, 2, 3]), rtol=1e-14, atol=1e-16)


def test_length_reward_pays_successes_only_and_never_less_than_nothing():
    batch = ragged(success=[0.5, 1, 1, 0, 0, 0], length=[8, 4, 8, 1, 1, 1])
    paid = on(tw.add_length_reward(max_length=16), np.zeros(6), batch)
    np.testing.assert_array_equal(paid, [0.25, 0, 0.25, 0, 0, 0])
    np.testing.assert_array_equal(on(tw.add_length_reward(max_length=4), np.zeros(6), batch), 0)


def test_scalarize_weighs_columns_of_responses_or_of_trajectories():
    batch = ragged(step_reward=[1, 2, 3, 4, 5, 6], success=[1, 0, 0, 0.5, 0.5, 0.5])
    weights = {"step_reward": 2.0, "success": -1}
    np.testing.assert_array_equal(tw.scalarize(weights=weights)(batch), [1, 4, 6, 7.5, 9.5, 11.5])
    paid = tw.scalarize(weights={"success": 10.0}, over="trajectories")(batch)
    np.testing.assert_array_equal(paid, [10, 0, 0, 0, 0, 5])
    assert tw.scalarize(weights=weights).needs == ("step_reward", "success")


@pytest.mark.parametrize(
    ("block", "columns", "complaint"),
    [
        (tw.scalarize(weights={"task": 1.0}), {"task": ["a"] * 6}, r"column 'task' holds names, not numbers"),
        (tw.scalarize(weights={"role": 1.0}), {"role": [0] * 6}, r"column 'role' holds names, not numbers"),
        (tw.scalarize(weights={"rank": 1.0}, over="trajectories"), {"rank": [0, 0, 1, 2, 2, 2]},
         r"'rank' belongs to a trajectory, but varies within it \(group 0, trajectory 1, turn 1\); repeat one value"),
        (tw.reward_rank(), {"rank": [0, 1, 1, 3, 3, 3]},
         r"rank is 3 \(group 0, trajectory 2, turn 0\), expected 0 \(best\) to 2, one less than the group's"),
        (tw.reward_rank(), {"rank": [-1, 1, 1, 2, 2, 2]}, r"rank is -1 \(group 0, trajectory 0, turn 0\)"),
        (tw.skip_uniform_success(), {"success": [0, 0, 1, 1, 1, 1]}, r"one success between 0 and 1 per trajectory"),
    ],
)  # fmt: skip
def test_errors_say_what_and_where(block, columns, complaint):
    with pytest.raises(BatchError, match=complaint):
        block(ragged(**columns))


def test_impossible_options_are_refused():
    with pytest.raises(ConfigError, match=r"buffer=0 must be positive, in tokens"):
        tw.penalize_overlong(buffer=0)(ragged(length=[1] * 6))
    with pytest.raises(ConfigError, match=r"temperature=0\.0 must be positive, in units of reward"):
        tw.infopo(temperature=0.0)(ragged(length=[1] * 6, info_gain=[1] * 6))
