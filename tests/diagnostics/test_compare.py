"""Comparisons of runs whose outcomes are written by hand."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.diagnostics.made import episode, made_run

from turnwise.base.errors import DataError, RunError
from turnwise.base.tables import page_as_markdown
from turnwise.commands.cli import main
from turnwise.lab.diagnostics.compare import compare, rollouts_to
from turnwise.lab.diagnostics.runs import RunLog, find_runs
from turnwise.lab.diagnostics.show import among_all, figure, page, table
from turnwise.lab.diagnostics.statistics import Interval
from turnwise.train.evaluation.outcomes import write_outcomes

TASKS = 40


def wins(count: int) -> list[bool]:
    return [task < count for task in range(TASKS)]


def lucky(folder: Path) -> tuple[list[RunLog], list[RunLog]]:
    """Seeds differ by far more than the methods: A is better by 1 or 2 games of 40 in every seed."""
    starts = [5, 12, 20, 28, 33, 9]
    a = [
        made_run(folder / "a", seed, wins(start + 1 + seed % 2), method="grpo+aem") for seed, start in enumerate(starts)
    ]
    b = [made_run(folder / "b", seed, wins(start), method="grpo") for seed, start in enumerate(starts)]
    return a, b


@pytest.fixture
def luck(tmp_path):
    return lucky(tmp_path)


def test_pairing_shows_what_unpaired_runs_cannot(luck, tmp_path):
    a, b = luck
    paired = compare(a, b)
    assert paired.unit == "seeds, paired"
    assert paired.difference.value == pytest.approx(1.5 / TASKS)
    assert paired.difference.shown
    assert paired.verdict.startswith("Shown: grpo + aem is better")
    assert paired.wins.value == 1.0
    other = [
        made_run(tmp_path / "c", 100 + n, wins(int(run.success(2) * TASKS)), method="grpo") for n, run in enumerate(b)
    ]
    unpaired = compare(a, other)  # the same numbers under other seeds
    assert unpaired.unit == "runs, not paired"
    assert unpaired.difference.value == pytest.approx(1.5 / TASKS)
    assert not unpaired.difference.shown
    assert unpaired.verdict.startswith("Not shown")
    assert "more runs of each would detect it" in unpaired.verdict
    assert any("have no seed in common" in note for note in unpaired.notes)


def test_success_is_that_of_the_episodes_that_both_have(tmp_path):
    a = [made_run(tmp_path / "a", seed, [True, True, False, False]) for seed in (0, 1)]
    b = [made_run(tmp_path / "b", seed, [True, False, False, False]) for seed in (0, 1)]
    lost = [episode(0, True), episode(1, True), episode(2, False), episode(3, False)]
    lost[0].failure, lost[0].ended = "environment: gone", "failed"
    write_outcomes(a[0].folder.evaluations / "step-000002.parquet", lost)
    first, second = compare(a, b).pairs
    assert (first.a, first.b) == (pytest.approx(1 / 3), 0.0)
    assert (second.a, second.b) == (0.5, 0.25)


def test_one_run_each_is_about_these_two_alone(tmp_path):
    a, b = made_run(tmp_path / "a", 0, wins(30)), made_run(tmp_path / "b", 0, wins(12), method="grpo")
    made = compare([a], [b])
    assert made.unit == "tasks, paired"
    assert made.difference.shown
    assert "says nothing about other seeds" in made.verdict
    generator = np.random.default_rng(0)
    swapped = [bool(x) for x in generator.random(TASKS) < 0.5]
    c = made_run(tmp_path / "c", 0, swapped)
    d = made_run(tmp_path / "d", 0, swapped[::-1], method="grpo")
    assert compare([c], [d]).verdict.startswith("Not shown")


def test_games_played_again_are_no_further_games(tmp_path):
    generator = np.random.default_rng(0)
    a, b = (
        generator.random(TASKS) < 0.5 for _ in "ab"
    )  # what a game gives is fixed: playing it four times says nothing more
    once, often = [], []
    for name, won, method in (("a", a, {}), ("b", b, {"method": "grpo"})):
        once.append(made_run(tmp_path / name, 0, won.tolist(), **method))
        often.append(made_run(tmp_path / f"{name}4", 0, np.tile(won, 4).tolist(), **method))
        path = often[-1].folder.evaluations / "step-000002.parquet"
        write_outcomes(path, [episode(n, bool(won[n])) for _ in range(4) for n in range(TASKS)])
    single, repeated = (compare([sides[0]], [sides[1]]) for sides in (once, often))
    assert len(repeated.pairs[0].by_task) == TASKS
    assert repeated.difference == single.difference
    assert repr(repeated.wins) == repr(single.wins)  # its p is nan, which from Python 3.13 on differs from itself


def on_panel(run: RunLog, successes: list[bool], *, temperature: float = 0.4, name: str = "p-step-2") -> RunLog:
    episodes = [{"task": f"game-{n}", "seed": 0, "success": won} for n, won in enumerate(successes)]
    record = {"episodes": episodes, "tasks": "0123", "settings": {"temperature": temperature}}
    run.folder.evaluations.mkdir(exist_ok=True)
    (run.folder.evaluations / f"{name}.json").write_text(json.dumps(record))
    return run


def test_runs_of_other_recipes_are_compared_on_a_panel(tmp_path):
    sides = []
    for side, seeds, elsewhere in (
        ("a", (0, 1, 2), {}),
        ("b", (5, 6, 7), {"environment": {"eval_split": "elsewhere"}}),
    ):
        runs = [
            made_run(tmp_path / side, seed, wins(3), method="grpo+aem" if side == "a" else "grpo", **elsewhere)
            for seed in seeds
        ]
        sides.append([on_panel(run, wins(10 + run.config.run.seed)) for run in runs])
    made = compare(*sides, panel="p")
    assert made.unit == "runs, not paired"
    assert made.difference.value == pytest.approx(-5 / TASKS)
    on_panel(sides[1][1], wins(3), temperature=1.0)
    with pytest.raises(
        RunError, match=r'"temperature": 0.4.*"temperature": 1.0.*; evaluate them with the same settings'
    ):
        compare(*sides, panel="p")
    on_panel(sides[0][0], wins(3), name="p-step-2-2")
    with pytest.raises(RunError, match=r"is ambiguous, since p-step-2-2.json exists too"):
        compare(*sides, panel="p")


def test_what_is_unfinished_or_alone_is_left_out_and_said(luck, tmp_path):
    a, b = luck
    half = made_run(tmp_path / "a", 50, wins(3))
    lines = half.folder.metrics_path.read_text().splitlines()
    half.folder.metrics_path.write_text("\n".join(lines[:-1]) + "\n")
    alone = made_run(tmp_path / "b", 60, wins(3), method="grpo")
    made = compare([*a, half], [*b, alone])
    assert made.runs == (6, 6)
    assert [note.split(",")[0] for note in made.notes] == [
        "1 unfinished run of A left out",
        "1 run without a partner of the same seed left out",
    ]


def test_sides_that_mix_methods_are_said(luck, tmp_path):
    a, b = luck
    odd = made_run(tmp_path / "x", 7, wins(9), method="rloo+aem")
    made = compare([*a, odd], [*b, made_run(tmp_path / "y", 7, wins(9), method="grpo")])
    assert any(note == "A mixes 2 methods: grpo + aem, rloo + aem" for note in made.notes)


def test_more_seeds_needed_are_said(tmp_path):
    counts = [(20, 17), (18, 20), (25, 23), (9, 12), (30, 28)]
    a = [made_run(tmp_path / "a", seed, wins(one)) for seed, (one, _) in enumerate(counts)]
    b = [made_run(tmp_path / "b", seed, wins(other), method="grpo") for seed, (_, other) in enumerate(counts)]
    made = compare(a, b)
    differences = np.array([one - other for one, other in counts]) / TASKS
    assert made.spread == pytest.approx(differences.std(ddof=1))
    needed = math.ceil(((1.959964 + 0.841621) * made.spread / differences.mean()) ** 2 + 1.92) - 5
    assert f"{needed} more paired seeds would detect it" in made.verdict


def test_worlds_are_strata_of_equal_weight(tmp_path):
    def side(name, shift, **sections):
        small = [made_run(tmp_path / f"{name}1", seed, wins(10 + seed + shift), **sections) for seed in range(3)]
        options = {"environment": {"max_steps": 9}, **sections}
        large = [made_run(tmp_path / f"{name}2", seed, wins(20 + seed % 2 + 3 * shift), **options) for seed in range(6)]
        return [*small, *large]

    made = compare(side("a", 2), side("b", 0, method="grpo"))
    assert made.difference.value == pytest.approx((2 + 6) / 2 / TASKS)
    assert made.unit.startswith("seeds, paired, within each of 2 environments")


def test_runs_of_several_environments_without_common_seeds_are_refused(tmp_path):
    elsewhere = {"environment": {"name": "household", "options": {"size": "tiny"}}}
    sides = [
        [made_run(tmp_path / name, first, wins(5)), made_run(tmp_path / f"{name}2", first + 1, wins(5), **elsewhere)]
        for name, first in (("a", 0), ("b", 10))
    ]
    with pytest.raises(RunError, match="several environments can be compared only if they are paired by seed"):
        compare(*sides)


def test_rollouts_to_a_level_by_hand(tmp_path):
    # 12 trajectories a step; 0 at the start, 0.2 after step 2, 0.6 after step 4
    run = made_run(tmp_path / "a", 0, wins(24), steps=4, curve={2: 0.2})
    assert rollouts_to(run, 0.1) == pytest.approx(12.0)
    assert rollouts_to(run, 0.2) == pytest.approx(24.0)
    assert rollouts_to(run, 0.4) == pytest.approx(36.0)
    assert rollouts_to(run, 0.7) == math.inf
    assert rollouts_to(run, 0.0) == 0.0
    # steps whose trajectories were counted: 20, as where some end in the step after the one that began them
    counted = made_run(tmp_path / "b", 0, wins(24), steps=4, curve={2: 0.2}, more={"rollout/trajectories": 20.0})
    assert rollouts_to(counted, 0.1) == pytest.approx(20.0)
    assert rollouts_to(counted, 0.4) == pytest.approx(60.0)


def test_sample_efficiency_counts_runs_that_never_get_there_with_the_budget(tmp_path):
    a = [
        made_run(tmp_path / "a", seed, wins(32), steps=4, curve={2: level})
        for seed, level in enumerate((0.5, 0.45, 0.4))
    ]
    b = [made_run(tmp_path / "b", seed, wins(final), steps=4, method="grpo") for seed, final in enumerate((24, 20, 8))]
    made = compare(a, b, level=0.4).efficiency
    assert made is not None
    assert (made.level, made.budget, made.reached) == (0.4, 48.0, (3, 2))
    assert made.rollouts[1] == pytest.approx(np.mean([48 * 0.4 / 0.6, 48 * 0.4 / 0.5, 48.0]))
    assert made.difference.value == pytest.approx(made.rollouts[0] - made.rollouts[1])
    default = compare(a, b).efficiency
    assert default is not None
    assert default.level == pytest.approx(np.mean([24, 20, 8]) / TASKS / 2)


def test_a_table_by_task_type(tmp_path):
    kinds = ["heat"] * 20 + ["cool"] * 20
    a = [made_run(tmp_path / "a", seed, wins(20), kinds=kinds) for seed in (0, 1)]
    b = [made_run(tmp_path / "b", seed, wins(10), kinds=kinds, method="grpo") for seed in (0, 1)]
    assert compare(a, b).by_type == {"cool": (0.0, 0.0, 80), "heat": (1.0, 0.5, 80)}


def test_runs_that_kept_no_episodes_are_compared_by_their_means(luck):
    a, b = luck
    expected = compare(a, b).difference
    for run in (*a, *b):
        (run.folder.evaluations / "step-000002.parquet").unlink()
    assert compare(a, b).difference == expected


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(luck, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "a", "--", "b", "--out", "out"]) == 0
    out = capsys.readouterr().out
    assert "Shown: grpo + aem is better" in out
    assert "|" not in out
    assert main(["compare", "a", "--", "b", "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert "| grpo + aem | grpo |" in out
    assert (tmp_path / "out" / "comparison.md").read_text().startswith(out)
    assert "nothing was written; --out FOLDER" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "out"], "nothing without --out"
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 5000
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["comparison.md", "comparison.png"]
    (tmp_path / "out" / "comparison.md").unlink()
    assert main(["compare", "a", "--", "b", "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert "out/comparison.png exists, and nothing is overwritten" in err
    assert not out
    assert main(["compare", "--level", "0.3", "a/a-0", "a/a-1", "--", "b/b-0", "b/b-1"]) == 0
    assert "runs that reach success 0.300" in capsys.readouterr().out


def test_a_page_has_every_part(luck):
    text = page_as_markdown(page(compare(*luck)))
    for part in ("# grpo + aem against grpo", "P(A beats B)", "| seed |", "trajectories until then", "## How"):
        assert part in text
    assert figure(compare(*luck)).axes


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory) -> Path:
    """A working directory with runs that can be compared, and some that cannot; a mistake changes nothing in it."""
    folder = tmp_path_factory.mktemp("compared")
    lucky(folder)
    made_run(folder / "other", 0, wins(3), environment={"eval_split": "elsewhere"})
    made_run(folder / "copy", 0, wins(3))
    strange = made_run(folder / "tasks", 0, wins(3))
    write_outcomes(strange.folder.evaluations / "step-000002.parquet", [episode(n, True) for n in range(100, 104)])
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a"], "`turnwise compare A... -- B...`"),
        (["a", "--", "b", "a/a-0"], "is on both sides"),
        (["a", "--", "d"], "d is neither a run folder nor a folder of runs"),
        (["a", "--", "bb"], "Did you mean 'b'?"),
        (["a", "a/a-0", "--", "b"], "is given twice"),
        (["a", "--", "other"], "not evaluated in the same environments"),
        (["a", "--", "b", "--step", "1"], "was not evaluated at step 1; choose one of the steps 0, 2"),
        (["a", "--", "b", "--panel", "p"], "make it with `turnwise eval"),
        (["a", "copy", "--", "b"], "have the same seed 0"),
        (["tasks", "--", "b"], "no episode in common"),
    ],
)
def test_a_mistake_is_one_line(arguments, expected, mistaken, monkeypatch, capsys):
    monkeypatch.chdir(mistaken)
    before = sorted(mistaken.rglob("*"))
    assert main(["compare", "--out", "told", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("turnwise: ")
    assert err.count("\n") == 1
    assert expected in err
    assert sorted(mistaken.rglob("*")) == before


def test_a_damaged_table_of_episodes_is_no_run_that_kept_none(tmp_path):
    sides = [[made_run(tmp_path / side, seed, wins(5)) for seed in (0, 1)] for side in "ab"]
    (sides[0][0].folder.evaluations / "step-000002.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"step-000002.parquet"):
        compare(*sides)


@pytest.mark.parametrize("level", ["2", "-1", "nan", "0", "half"])
def test_a_level_that_is_no_share_is_refused(level, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["compare", "a", "--level", level, "--", "b"])
    assert caught.value.code == 2
    assert "expected a number in (0, 1]" in capsys.readouterr().err


def test_a_table_of_several_says_what_stands_among_all(tmp_path):
    one = compare(*([made_run(tmp_path / side, 0, [True, False])] for side in "ab"))
    intervals = Interval(0.1, 0.05, 0.15, 0.001), Interval(0.1, 0.02, 0.18, 0.03), Interval(0.1, -0.1, 0.3, 0.5)
    several = [dataclasses.replace(one, difference=interval) for interval in intervals]
    corrected = [*zip(*among_all(several, 3), strict=True)]
    said = [list(line[-2:]) for line in table(several, corrected)[1:]]
    assert said == [["shown", "0.003"], ["before correction", "0.060"], ["not shown", "0.500"]]  # 3 p, 2 p, p
    assert table(several[1:2])[-1][-1] == "shown", "alone it has its interval"
    said = list(table(several[1:2], [*zip(*among_all(several[1:2], 3), strict=True)])[-1][-2:])
    assert said == ["before correction", "0.090"], "what is planned counts before it has runs"


def test_no_finished_run_is_said(tmp_path):
    sides = []
    for side in "ab":
        run = made_run(tmp_path / side, 0, [], curve={})
        run.folder.metrics_path.unlink()
        run.folder.log({"step": 0, "eval/success": 0.1})
        sides.append(find_runs([run.folder.path]))
    with pytest.raises(RunError, match="no run of A is finished"):
        compare(*sides)


def test_a_run_whose_last_evaluation_failed_as_a_whole_is_not_finished(tmp_path):
    """Its success is recorded as 0, of no episode."""
    run = made_run(tmp_path / "a", 0, [True])
    assert run.finished
    run.records[-1] |= {"eval/success": 0.0, "eval/episodes": 0.0}
    assert not run.finished
    assert run.curve()[2].tolist() == [0.0]
