"""Numbers of a comparison where its sides differ in size, by hand: equal numbers on both sides hide most mistakes."""

import math
from typing import Any

import numpy as np
import pytest
from tests.diagnostics.made import made_run

from turnwise.lab.diagnostics.compare import compare, rollouts_to
from turnwise.lab.diagnostics.statistics import contrast, detectable, pairs_needed

TASKS = 40


def wins(count: int) -> list[bool]:
    return [task < count for task in range(TASKS)]


def runs(folder, counts, *, first: int = 0, **sections: Any):
    return [made_run(folder, first + n, wins(count), **sections) for n, count in enumerate(counts)]


def test_what_unpaired_runs_of_unequal_numbers_still_need(tmp_path):
    won, lost = [10, 16, 12], [11, 12, 9, 13, 14]
    made = compare(runs(tmp_path / "a", won), runs(tmp_path / "b", lost, first=10, method="grpo"))
    a, b = np.array(won) / TASKS, np.array(lost) / TASKS
    assert made.success == (pytest.approx(a.mean()), pytest.approx(b.mean()))
    assert made.spread == pytest.approx(math.sqrt(a.var(ddof=1) + b.var(ddof=1)))
    assert made.wins.value == pytest.approx(np.mean([[(x > y) + (x == y) / 2 for y in b] for x in a]))
    needed = pairs_needed(a.mean() - b.mean(), made.spread, arms=2) - 3
    assert f"{needed} more runs of each would detect it" in made.verdict
    assert f"a difference of {detectable(made.spread, 3, arms=2):.3f} or more" in made.verdict


def test_worlds_of_unequal_numbers_of_seeds_have_a_spread_within_each(tmp_path):
    def side(name, small, large, **sections):
        elsewhere = {"environment": {"max_steps": 9}, **sections}
        return [*runs(tmp_path / f"{name}1", small, **sections), *runs(tmp_path / f"{name}2", large, **elsewhere)]

    made = compare(
        side("a", [20, 24, 22], [10, 10, 11, 14, 12, 9]),
        side("b", [10, 15, 12], [12, 10, 10, 12, 14, 10], method="grpo"),
    )
    one, other = np.array([10, 9, 10]) / TASKS, np.array([-2, 0, 1, 2, -2, -1]) / TASKS
    squares = ((one - one.mean()) ** 2).sum() + ((other - other.mean()) ** 2).sum()
    assert made.spread == pytest.approx(math.sqrt(squares / (9 - 2)))
    assert made.success == (pytest.approx((22 + 11) / 2 / TASKS), pytest.approx((37 / 3 + 68 / 6) / 2 / TASKS))
    assert made.difference.value == pytest.approx((one.mean() + other.mean()) / 2)
    assert made.wins.value == pytest.approx((3 + 2 + 0.5) / 9)


def test_two_runs_win_by_the_task(tmp_path):
    a, b = (made_run(tmp_path / name, 0, won) for name, won in (("a", wins(30)), ("b", wins(10))))
    assert compare([a], [b]).wins.value == pytest.approx((20 + 20 / 2) / TASKS)


def test_a_level_that_the_last_evaluation_just_reaches_is_reached(tmp_path):
    run = made_run(tmp_path / "a", 0, wins(24), steps=4, curve={2: 0.2})
    assert rollouts_to(run, 0.6) == pytest.approx(48.0)


def test_the_efficiency_of_pairs_is_paired_and_within_the_shortest_budget(tmp_path):
    # 12 trajectories a step; to 0.4: A by 9.6, 14.4 and 19.2 of 24, B by 4.8 more each but the last, which never gets
    # there
    a = [made_run(tmp_path / "a", n, wins(40), steps=2, curve={1: 0.5 - n / 8}) for n in range(3)]
    b = [made_run(tmp_path / "b", n, wins(won), steps=4, method="grpo") for n, won in enumerate((40, 32, 4))]
    made = compare(a, b, level=0.4).efficiency
    assert made is not None
    taken_a = [12 * 0.4 / 0.5, 12 + 12 * 0.025 / 0.625, 12 + 12 * 0.15 / 0.75]
    taken_b = [19.2, 24.0, 24.0]  # the second in 24 itself, the third not at all
    assert made.budget == 24.0
    assert made.reached == (3, 2)
    assert compare(b, a, level=0.4).efficiency.reached == (2, 3)
    assert made.rollouts == (pytest.approx(np.mean(taken_a)), pytest.approx(np.mean(taken_b)))
    expected = contrast([np.array(taken_a) - np.array(taken_b)], [1.0])
    assert (made.difference.value, made.difference.low, made.difference.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )


def test_there_is_no_level_to_reach_where_the_baseline_gained_nothing(tmp_path):
    a = runs(tmp_path / "a", [20, 22])
    flat = [made_run(tmp_path / "b", n, wins(10), curve={0: 0.25}, method="grpo") for n in range(2)]
    assert compare(a, flat).efficiency is None
    rising = [made_run(tmp_path / "c", n, wins(10), curve={0: 0.05, 1: 0.9}, method="grpo") for n in range(2)]
    assert compare(a, rising).efficiency.level == pytest.approx((0.05 + 0.25) / 2)


def test_a_verdict_where_the_baseline_seems_better_and_where_nothing_differs(tmp_path):
    a, b = runs(tmp_path / "a", [10, 12, 14, 9]), runs(tmp_path / "b", [11, 12, 13, 12], method="grpo")
    worse = compare(a, b)
    assert worse.difference.value < 0
    assert not worse.difference.shown
    assert "more paired seeds would detect it" in worse.verdict
    equal = compare(runs(tmp_path / "c", [10, 12, 14, 9]), runs(tmp_path / "d", [12, 10, 9, 14], method="grpo"))
    assert "At a difference of zero no number of runs would show one." in equal.verdict


def test_a_task_type_that_one_side_alone_played_is_left_out(tmp_path):
    a = [made_run(tmp_path / "a", n, wins(20), kinds=["heat"] * TASKS) for n in (0, 1)]
    b = [made_run(tmp_path / "b", n, wins(10), kinds=["cool"] * TASKS, method="grpo") for n in (0, 1)]
    assert compare(a, b).by_type == {}
