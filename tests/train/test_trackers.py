"""Trackers get a copy of what metrics.jsonl says, through their own libraries."""

import json
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from tests.needs import needs
from tests.toys import small_config

from turnwise.base.errors import ConfigError, RunError
from turnwise.commands.cli import main
from turnwise.config import Config
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train
from turnwise.train.trackers import check_trackers, display_name, identity


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_library_is_one_line_and_nothing_is_made(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"log.{name}=x" if name != "tensorboard" else "log.tensorboard=true"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"turnwise: log.{name} needs {name}, which is not installed; pip install {name}\n"
    assert not list(tmp_path.iterdir())


def test_nothing_is_imported_that_nobody_asked_for(tmp_path, monkeypatch):
    for name in ("tensorboard", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    check_trackers(small_config(tmp_path).log)
    with pytest.raises(ConfigError, match=r"log\.wandb needs wandb"):
        check_trackers(small_config(tmp_path, log={"wandb": "x"}).log)


class Memory:
    """A tracker that remembers."""

    def __init__(self):
        self.seen, self.closed = [], False

    def log(self, step, metrics):
        self.seen.append({"step": step, **metrics})

    def close(self):
        self.closed = True


def test_a_tracker_gets_every_record_and_is_closed(tmp_path, monkeypatch):
    tracker, starts = Memory(), []

    def opened(log, folder, *, name, seed, config, start):
        starts.append(start)
        return [tracker]

    monkeypatch.setattr("turnwise.train.prepare.open_trackers", opened)
    folder = train(small_config(tmp_path))
    assert tracker.seen == folder.metrics()
    assert tracker.closed
    _, config = RunFolder.open(folder.path)
    train(config.model_copy(update={"run": config.run.model_copy(update={"steps": 3})}), resume=folder.path)
    assert starts == [0, 2]
    assert tracker.seen[-1] == folder.metrics()[-1]


class Library:
    """Stands in for wandb or trackio: remembers how `init` was called."""

    def __init__(self):
        self.calls: list[dict[str, Any]] = []

    def init(self, **told):
        self.calls.append(told)
        return types.SimpleNamespace(
            log=lambda *_, **__: None, finish=lambda: None, define_metric=lambda *_, **__: None
        )


@pytest.fixture(params=["wandb", "trackio"])
def library(request, monkeypatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, request.param, made)
    made.name = request.param
    made.key = {"wandb": "id", "trackio": "name"}[request.param]  # by what the library knows a run that it resumes
    return made


def arm(folder: Path, library: Library, **run: Any) -> Config:
    """A run as a study names it: its arm is its folder's parent."""
    run = {"folder": str(folder), "name": "seed-00", "steps": 1, **run}
    return small_config(folder, run=run, log={library.name: "toys"})


def test_runs_of_equal_names_do_not_collide(library, tmp_path):
    for name in ("grpo", "grpo+aem"):
        train(arm(tmp_path / name, library))
    first, second = library.calls
    assert first["project"] == second["project"] == "toys"
    assert first[library.key] != second[library.key]
    assert first["name"].startswith("grpo/seed-00")
    assert second["name"].startswith("grpo+aem/seed-00")


def test_a_resumed_run_keeps_its_id_wherever_its_folder_lies(library, tmp_path):
    folder = train(arm(tmp_path / "grpo", library))
    train(arm(tmp_path / "grpo", library, steps=2), resume=folder.path)
    (tmp_path / "elsewhere").mkdir()
    moved = folder.path.rename(tmp_path / "elsewhere" / "seed-00")
    train(arm(tmp_path / "elsewhere", library, steps=3), resume=moved)
    assert [told["resume"] for told in library.calls] == ["allow"] * 3
    assert len({told[library.key] for told in library.calls}) == 1
    assert len({told["name"] for told in library.calls}) == 1


def test_a_tracker_gets_the_configuration_as_plain_values(library, tmp_path):
    config = arm(tmp_path, library)
    train(config)
    (told,) = library.calls
    assert type(told["config"]) is dict
    assert told["config"] == json.loads(json.dumps(config.model_dump(mode="json")))


@pytest.mark.parametrize(
    ("folder", "name", "shown"),
    [
        ("runs/study/recipe/grpo+aem/seed-03", "seed-03", "grpo+aem/seed-03"),
        ("runs/household", "household", "runs/household, seed 3"),
    ],
)
def test_the_name_that_is_shown_holds_arm_and_seed(folder, name, shown):
    assert display_name(Path(folder), name, seed=3) == shown


def test_an_id_is_made_once(tmp_path):
    made = identity(tmp_path, "run", seed=0)
    assert re.fullmatch("[0-9a-f]{16}", made.id)  # characters that Weights & Biases takes
    assert identity(tmp_path, "another", seed=1) == made
    assert [path.name for path in tmp_path.iterdir()] == ["tracker.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"id": 1}', "{}"])
def test_a_damaged_id_is_one_line(content, tmp_path):
    (tmp_path / "tracker.json").write_text(content)
    with pytest.raises(RunError, match=r"tracker\.json is damaged: .*; delete it"):
        identity(tmp_path, "run", seed=0)


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_back_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train(small_config(tmp_path, log={"tensorboard": True}))
    _, config = RunFolder.open(folder.path)
    train(config.model_copy(update={"run": config.run.model_copy(update={"steps": 3})}), resume=folder.path)
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    told = [(r["step"], r["rollout/success"]) for r in folder.metrics() if "rollout/success" in r]
    shown = [(event.step, event.value) for event in events.Scalars("rollout/success")]
    assert [step for step, _ in shown] == [step for step, _ in told] == [1, 2, 3]
    assert [value for _, value in shown] == pytest.approx([value for _, value in told])


@needs("wandb")
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_keeps_what_was_logged(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = train(small_config(tmp_path, log={"wandb": "toys"}))
    (written,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30  # its writer is a process of its own, which finish() does not wait for
    while b"eval/success" not in (content := written.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"rollout/success" in content
    assert b"eval/success" in content
    assert json.loads((folder.path / "config.json").read_text())["config"]["log"]["wandb"] == "toys"


@needs("trackio")
@pytest.mark.filterwarnings("ignore")
def test_trackio_keeps_what_was_logged(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    folder = train(small_config(tmp_path, log={"trackio": "toys"}))
    assert len(folder.metrics()) == 4
    assert list((tmp_path / "trackio").rglob("*.db"))
