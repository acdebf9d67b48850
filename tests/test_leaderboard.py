"""The leaderboard: built by one command, resumed where it was, and its page from the kept data alone."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "studies" / "leaderboard.py"

PLAN = """
methods = ["grpo", "rloo", "grpo+aem"]
groups = 6
continuations = 6
settings = ["aem=false", "run.steps=2", "run.threads=1", "warmstart.steps=0", "rollout.groups=2", "evaluate.every=0",
  "evaluate.final_episodes=4", "model.hidden_size=16", "model.num_layers=1", "model.num_heads=2",
  "environment.options.num_train=50", "environment.options.turns=3", "environment.options.critical=1",
  "rollout.max_new_tokens=2"]

[environments]
"walk" = { recipe = "crossroads-tiny-aem", settings = ["environment.options.delay=0"] }
"later" = { recipe = "crossroads-tiny-aem", settings = [] }
"""


@pytest.fixture(scope="module")
def leaderboard():
    spec = importlib.util.spec_from_file_location("leaderboard", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["leaderboard"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["leaderboard"]


@pytest.fixture(scope="module")
def made(leaderboard, tmp_path_factory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("board")
    (folder / "plan.toml").write_text(PLAN)
    options = ["--plan", str(folder / "plan.toml"), "--folder", str(folder), "--runs", str(folder / "runs")]
    assert leaderboard.main([*options, "--only", "walk"]) == 0
    return folder, options


def test_one_command_plays_and_writes_the_page(made, leaderboard):
    folder, _ = made
    found = {path.stem: json.loads(path.read_text()) for path in (folder / "data").iterdir()}
    assert set(found) == {"walk-start", "walk-middle", "walk-end"}
    assert [found[f"walk-{when}"]["step"] for when in leaderboard.WHENS] == [0, 1, 2]
    text = (folder / "README.md").read_text()
    one = found["walk-end"]["fidelity"]["rloo"]
    assert f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]" in text
    assert "Not measured yet: later." in text
    assert "## walk, start" in text
    assert max(path.stat().st_size for path in (folder / "data").iterdir()) < 20_000


def test_it_resumes_and_rebuilds_the_page_from_data_alone(made, leaderboard, monkeypatch, capsys):
    folder, options = made
    page = (folder / "README.md").read_text()
    monkeypatch.setattr(leaderboard, "train", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(leaderboard, "measure_run", lambda *_, **__: pytest.fail("measured again"))
    (folder / "README.md").unlink()
    assert leaderboard.main([*options, "--only", "walk"]) == 0
    assert (folder / "README.md").read_text() == page
    (folder / "README.md").unlink()
    assert leaderboard.main([*options, "--page"]) == 0
    assert (folder / "README.md").read_text() == page
    assert leaderboard.main([*options, "--only", "wlak"]) == 2
    assert "the plan has no environment 'wlak'. Did you mean 'walk'?" in capsys.readouterr().err


def test_a_method_that_needs_options_is_refused_before_anything_is_played(leaderboard, made, tmp_path, capsys):
    _, options = made
    (tmp_path / "plan.toml").write_text(PLAN.replace('"rloo"', '"mica"'))
    assert leaderboard.main([*options, "--plan", str(tmp_path / "plan.toml"), "--folder", str(tmp_path)]) == 2
    assert "leaderboard: method 'mica' needs the option 'discount'" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_without_data_there_is_no_page(leaderboard, made, tmp_path, capsys):
    _, options = made
    assert leaderboard.main([*options, "--folder", str(tmp_path), "--page"]) == 2
    assert "has no data; run without --page to make it" in capsys.readouterr().err


def test_cells_told_apart_are_counted(leaderboard):
    interval = lambda low, high: {"value": (low + high) / 2, "low": low, "high": high, "p": 0.1}  # noqa: E731
    cells = [
        leaderboard.Cell("a", "start", {"minus_first": {"b": interval(*ends)}, "gradient": None})
        for ends in ((0.1, 0.2), (-0.1, 0.2), (-0.3, -0.1), (0.0, 0.1), (0.01, 0.1))
    ]
    rows = leaderboard.told_apart({"methods": ["a", "b"]}, cells)
    assert rows[1] == ("b", "2", "1", "0", "0", "5")


def test_the_page_of_the_repository_is_that_of_its_data(leaderboard, tmp_path):
    kept = ROOT / "docs" / "leaderboard"
    (tmp_path / "data").mkdir()
    for path in (kept / "data").iterdir():
        (tmp_path / "data" / path.name).write_bytes(path.read_bytes())
    assert leaderboard.main(["--page", "--folder", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == (kept / "README.md").read_text(), (
        "docs/leaderboard/README.md is out of date; run python studies/leaderboard.py --page"
    )
    assert sum(path.stat().st_size for path in (kept / "data").iterdir()) < 1_000_000
