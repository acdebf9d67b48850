"""`turnwise eval --panel`: fixed tasks, limits and seeds, and a table in the run folder."""

import json
from pathlib import Path

import pytest

from tests.toys import Colors, small_config
from turnwise.commands.cli import main
from turnwise.environments.panels import Panel
from turnwise.train import loop
from turnwise.train.evaluation.panels import PANELS, task_digest

NAMES = [str(1_000_000 + index * 100_000 // 6) for index in range(6)]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of one step in two-turn games."""
    return loop.train(
        small_config(tmp_path_factory.mktemp("runs"), run={"steps": 1}, environment={"options": {"turns": 2}})
    ).path


@pytest.fixture
def toy(monkeypatch) -> Panel:
    """A panel of one-turn games."""
    panel = Panel(
        environment="tests.toys:Colors",
        split="valid",
        episodes=6,
        max_steps=50,
        options={"turns": 1},
        seeds=(3, 5),
        digest=task_digest(NAMES),
    )
    monkeypatch.setitem(PANELS, "toy-6", panel)
    return panel


def test_a_panel_is_played_with_its_seeds_and_written(run, toy, capsys):
    assert main(["eval", str(run), "--panel", "toy-6", "evaluate.temperature=1.0"]) == 0
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert [(result["seed"], result["episodes"], result["turns"]) for result in results] == [(3, 6, 1), (5, 6, 1)]
    assert {(result["panel"], result["tasks"]) for result in results} == {("toy-6", toy.digest)}
    assert "95 % interval" in err
    written = json.loads((run / "evaluations" / "toy-6-step-1.json").read_text())
    assert (written["panel"], written["tasks"], written["seeds"], written["num_tasks"]) == (
        "toy-6",
        toy.digest,
        [3, 5],
        6,
    )
    assert [episode["task"] for episode in written["episodes"]] == NAMES * 2
    assert written["settings"]["options"] == {"turns": 1}
    assert written["table"][-1]["episodes"] == 12
    before = sorted((run / "evaluations").iterdir())
    assert (
        main(["eval", str(run), "--panel", "toy-6", "evaluate.temperature=1.0"]) == 0
    )  # the same numbers: the same file
    assert sorted((run / "evaluations").iterdir()) == before
    assert main(["eval", str(run), "--panel", "toy-6", "evaluate.temperature=0.3"]) == 0
    assert (run / "evaluations" / "toy-6-step-1-2.json").exists()


def test_an_evaluation_in_which_nothing_could_be_played_is_an_error(run, capsys):
    before = sorted(run.rglob("*"))
    assert main(["eval", str(run), "--episodes", "3", "environment.name=tests.test_eval_panels:Mute"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "3 FAILED (3 x environment: OSError: no games today" in err
    assert err.splitlines()[-1].startswith(
        "turnwise: no episode could be played: 3 x environment: OSError: no games today"
    )
    assert sorted(run.rglob("*")) == before


class Mute(Colors):
    def start(self) -> str:
        raise OSError("no games today")


def test_without_a_panel_the_result_is_the_runs_own(run, capsys):
    assert main(["eval", str(run), "--episodes", "5"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["panel"], result["turns"]) == ("own-tests.toys:Colors-valid-5", 2)
    written = json.loads((run / "evaluations" / "own-tests.toys_Colors-valid-5-step-1.json").read_text())
    assert written["panel"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--panel", "toy-7"], "no panel 'toy-7'. Did you mean 'toy-6'?"),
        (["--panel", "toy-6", "--split", "test"], "--panel toy-6 fixes what --split sets"),
        (["--panel", "toy-6", "--episodes", "9"], "--panel toy-6 fixes what --episodes sets"),
        (["--panel", "toy-6", "--seeds", "1"], "--panel toy-6 fixes what --seeds sets"),
        (["--panel", "toy-6", "--environment", "alfworld"], "--panel toy-6 fixes what --environment sets"),
        (["--panel", "toy-6", "environment.options.turns=2"], "the panel 'toy-6' fixes environment.options.turns"),
        (["--panel", "toy-6", 'environment={name="tests.toys:Colors"}'], "the panel 'toy-6' fixes environment;"),
    ],
)
def test_what_a_panel_fixes_cannot_be_changed(run, toy, capsys, arguments, expected):
    assert main(["eval", str(run), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert expected in err


def test_other_tasks_than_the_panels_are_not_played(run, toy, capsys, monkeypatch):
    monkeypatch.setitem(
        PANELS,
        "toy-6",
        Panel(environment="tests.toys:Colors", split="test", episodes=6, max_steps=50, digest=toy.digest),
    )
    before = sorted(run.rglob("*"))
    assert main(["eval", str(run), "--panel", "toy-6"]) == 2
    assert "those found have" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


def test_panels_are_listed_without_a_run(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["eval", "--panels"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(PANELS)
