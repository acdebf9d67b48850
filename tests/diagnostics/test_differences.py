"""A difference of budgets or warm starts is never called a difference of methods (N1)."""

import pytest
from tests.diagnostics.made import made_run

from turnwise.commands.cli import main
from turnwise.lab.diagnostics.compare import compare
from turnwise.lab.diagnostics.differences import Difference, differences

SEEDS = range(4)


def side(folder, count: int, **sections):
    return [
        made_run(folder, seed, [task < count + count * seed % 7 for task in range(40)], **sections) for seed in SEEDS
    ]


@pytest.fixture
def unequal(tmp_path):
    """A won more games, with AEM, and after five times the warm start."""
    a = side(tmp_path / "a", 30, method="grpo+aem", warmstart={"steps": 0, "games": 3000})
    b = side(tmp_path / "b", 10, method="grpo", warmstart={"steps": 0, "games": 600})
    return a, b


def test_unequal_warm_starts_are_no_comparison_of_methods(unequal):
    made = compare(*unequal)
    assert made.difference.shown
    assert made.verdict.startswith("Not a comparison of methods")
    assert "warmstart.games (3000 against 600)" in made.verdict
    assert "Shown" not in made.verdict
    assert "is better" not in made.verdict


def test_an_explicit_word_asks_for_it_all_the_same(unequal):
    made = compare(*unequal, unequal=True)
    assert made.verdict.startswith("Shown: grpo + aem is better")
    assert any("warmstart.games (3000 against 600)" in note for note in made.notes)


@pytest.mark.parametrize(
    "sections",
    [{"rollout": {"group_size": 8}}, {"model": {"hidden_size": 32}}, {"rollout": {"groups": 9}}, {"run": {}}],
    ids=str,
)
def test_what_counts_as_unequal(tmp_path, sections):
    a = [made_run(tmp_path / "a", seed, [True, True], **{**sections, "run": {}}) for seed in SEEDS]
    b = [made_run(tmp_path / "b", seed, [True, False]) for seed in SEEDS]
    named = "run" not in sections
    assert compare(a, b).verdict.startswith("Not a comparison of methods") == named


def test_other_settings_of_the_method_are_named_beside_the_verdict(tmp_path):
    a, b = side(tmp_path / "a", 30, update={"clip_high": 0.3}), side(tmp_path / "b", 10)
    made = compare(a, b)
    assert made.verdict.startswith("Shown")
    assert any("update.clip_high (0.3 against 0.2)" in note for note in made.notes)
    equal = compare(side(tmp_path / "c", 30, method="grpo+aem"), side(tmp_path / "d", 10, method="grpo"))
    assert not any("differ" in note for note in equal.notes)


def test_what_varies_on_both_sides_alike_is_no_difference(tmp_path):
    a = side(tmp_path / "a", 30)
    b = side(tmp_path / "b", 10)
    assert differences([run.config for run in a], [run.config for run in b]) == []


def test_the_command_says_so_and_takes_the_word(unequal, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [str(run.folder.path) for run in unequal[0]], [str(run.folder.path) for run in unequal[1]]
    assert main(["compare", *paths[0], "--", *paths[1]]) == 0
    said = capsys.readouterr().out
    assert "Not a comparison of methods" in said
    assert "--unequal" in said
    assert main(["compare", "--unequal", *paths[0], "--", *paths[1]]) == 0
    assert "Shown: grpo + aem is better" in capsys.readouterr().out


def test_budgets_that_differ_within_pairs_are_seen(tmp_path):
    """As sets, both sides have played groups of 2 and 8."""
    a, b = (
        [made_run(tmp_path / side, seed, [True], rollout={"groups": groups}) for seed, groups in enumerate(sizes)]
        for side, sizes in (("a", (8, 2, 8)), ("b", (2, 8, 8)))
    )
    configs = [[run.config for run in side] for side in (a, b)]
    assert differences(*configs) == []
    assert [str(each) for each in differences(*configs, paired=True)] == ["rollout.groups (8 / 2 against 2 / 8)"]
    assert differences(configs[0], configs[0], paired=True) == []
    with_note = compare(a, b)
    assert with_note.unequal == ["rollout.groups (8 / 2 against 2 / 8)"]


def test_a_row_budget_does_not_make_a_difference_of_methods():
    assert Difference("update.clip_high", "0.2", "0.3").is_of_the_method
    assert not Difference("update.max_tokens", "512", "1024").is_of_the_method
