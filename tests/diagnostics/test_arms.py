"""The table of a study's arms: means over runs, whatever the number of episodes of each."""

from tests.diagnostics.made import made_run

from turnwise.lab.diagnostics.arms import arm_table


def test_runs_count_the_same_and_types_are_columns(tmp_path):
    # heat 3 of 4 and cool 1 of 2, then heat 0 of 1: by run 0.75 and 0, pooled over episodes it would be 0.6
    many = made_run(
        tmp_path / "a", 0, [True, True, True, False, True, False], kinds=["heat"] * 4 + ["cool"] * 2, curve={0: 0.25}
    )
    few = made_run(tmp_path / "a", 1, [False], kinds=["heat"], curve={0: 0.75})
    other = made_run(tmp_path / "b", 0, [True, True], curve={1: 0.5})
    head, a, b = arm_table({"with": [many, few], "without": [other]})
    assert head == ("arm", "runs", "before", "after", "cool", "heat")
    assert (*a[:3], *a[4:]) == ("with", "2", "0.500", "0.500", "0.375")
    assert a[3] == "0.333 [0.000, 1.000]", "two runs say little, but no share lies outside"
    assert b == ("without", "1", "0.000", "1.000 [no interval]", "-", "-")


def test_worlds_without_types_have_no_columns_for_them(tmp_path):
    assert arm_table({"it": [made_run(tmp_path, 0, [True])]})[0] == ("arm", "runs", "before", "after")


def test_the_dose_of_an_arm_counts_every_run_once(tmp_path):
    runs = [
        made_run(tmp_path, seed, [True, False], steps=steps, more={"credit/effective_frac": dose})
        for seed, steps, dose in ((0, 1, 0.2), (1, 3, 0.6))
    ]
    head, row = arm_table({"a": runs})
    assert row[head.index("effective sample")] == "0.400"
