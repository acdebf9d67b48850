"""Episodes of one task tell less of other tasks than episodes of different ones."""

import numpy as np
import pytest
from scipy import stats
from tests.toys import trajectory

from turnwise.rollout.trajectory import Trajectory
from turnwise.train.evaluation.intervals import _student, _worth, mean_interval, share_interval, wilson_interval
from turnwise.train.evaluation.outcomes import by_episode, read_outcomes, write_outcomes
from turnwise.train.evaluation.play import evaluation_metrics
from turnwise.train.evaluation.scores import rows_by_type


def panel(shares: np.ndarray, copies: int, generator: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    tasks = np.repeat(np.arange(len(shares)), copies)
    return generator.random(len(tasks)) < shares[tasks], tasks.tolist()


def test_different_tasks_and_one_task_are_as_wilson_has_them():
    assert share_interval([True] * 3 + [False] * 5, [*range(8)]) == wilson_interval(3, 8)
    assert share_interval([True] * 3 + [False] * 5, ["same"] * 8) == wilson_interval(3, 8)
    assert share_interval([], []) == (0.0, 1.0)


def test_copies_that_end_alike_count_as_one():
    wins = np.repeat([1, 1, 1, 0, 0, 0, 0, 0], 64)
    tasks = [place // 64 for place in range(512)]
    expected = wilson_interval(3, 8, z=_student(7))
    assert share_interval(wins.tolist(), tasks) == pytest.approx(expected)
    assert expected[1] - expected[0] > 0.5  # 0.08 if all counted
    assert share_interval([True] * 512, tasks) == wilson_interval(8, 8, z=_student(7))


def test_sizes_may_differ():
    """By hand: sizes 2 and 1, means 1/2 and 1; between 1/6, within 1/2: no correlation is seen."""
    assert _worth([0.0, 1.0, 1.0], ["a", "a", "b"]) == (3.0, _student(1))
    # sizes 2, 2, 1 and means 1, 0, 1: between 0.6, within 0
    assert _worth([1, 1, 0, 0, 1], list("aabbc")) == (pytest.approx(5 / (1 + 0.8)), _student(2))


@pytest.mark.parametrize("seed", range(5))
def test_order_and_names_do_not_matter(seed):
    generator = np.random.default_rng(seed)
    wins, tasks = panel(generator.random(6), 4, generator)
    order = generator.permutation(len(wins))
    renamed = [f"task {tasks[place]}" for place in order]
    assert share_interval(wins[order].tolist(), renamed) == pytest.approx(share_interval(wins.tolist(), tasks))


@pytest.mark.parametrize(("num", "copies"), [(8, 64), (16, 16), (30, 4), (128, 2)])
@pytest.mark.parametrize("alike", [1.0, 50.0])
def test_the_interval_covers_the_share_of_all_tasks(num, copies, alike):
    """Nominal 0.95. With all episodes counted alike, it covers 0.31, 0.55, 0.83 and 0.91 of the uneven tasks."""
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(600):
        low, high = share_interval(*panel(generator.beta(alike, alike, num), copies, generator))
        covered.append(low <= 0.5 <= high)
    assert np.mean(covered) > 0.92


def test_the_mean_of_rewards_is_as_wide():
    values = np.repeat([0.0, 0.5, 1.0, 2.0], 3).tolist()
    low, high = mean_interval(values, [*"aaabbbcccddd"])
    half = _student(3) * np.std(values, ddof=1) / np.sqrt(4)
    assert (low, high) == pytest.approx((0.875 - half, 0.875 + half))


def test_quantiles_are_those_of_student():
    for degrees in range(1, 300):
        assert _student(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=5e-3)


def repeated(rewards=(0.0, 0.0, 1.0, 1.0)):
    """Two tasks, each played twice with the same end."""
    made = [trajectory(0, ([1], [2]), success=reward > 0) for reward in rewards]
    for number, (each, reward) in enumerate(zip(made, rewards, strict=True)):
        each.task, each.turns[0].reward = f"task {number // 2}", reward
    return made


def test_a_panel_that_repeats_tasks_has_the_interval_of_its_tasks():
    made, tasks = evaluation_metrics(repeated()), ["a", "a", "b", "b"]
    assert (made["success_low"], made["success_high"]) == share_interval([False, False, True, True], tasks)
    graded = evaluation_metrics(repeated((1.0, 1.5, 4.0, 4.5)))
    assert (graded["reward_low"], graded["reward_high"]) == mean_interval([1.0, 1.5, 4.0, 4.5], tasks)


def test_a_table_of_repeated_tasks_has_the_interval_of_its_tasks():
    row = rows_by_type(repeated())[-1]
    assert (row.low, row.high) == share_interval([False, False, True, True], ["a", "a", "b", "b"])


def test_results_are_shares_of_the_episodes_that_did_not_fail():
    won = trajectory(0, ([1], [2]), success=True, info={"result": "win"})
    lost = Trajectory(0, "0", ended="failed", failure="environment: gone")
    assert evaluation_metrics([won, lost])["result/win"] == 1.0


def test_a_failed_episode_is_recorded_without_success_and_keeps_its_place(tmp_path):
    failed, won, second = (trajectory(0, ([1], [2]), success=end) for end in (True, True, False))
    failed.failure = "environment: gone"
    write_outcomes(tmp_path / "step-000001.parquet", [failed, won, second])
    rows = read_outcomes(tmp_path / "step-000001.parquet")
    assert [row["success"] for row in rows] == [None, True, False]
    assert list(by_episode(rows)) == [("0", 0, 1), ("0", 0, 2)]
