"""Trackers get a copy of what metrics.jsonl says, through their own libraries."""

import importlib.util
import json
import sys
import time

import pytest
from tests.toys import small_config

from turnwise.cli import main
from turnwise.errors import ConfigError
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train
from turnwise.train.trackers import check_trackers


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


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
    check_trackers(small_config(tmp_path))
    with pytest.raises(ConfigError, match=r"log\.wandb needs wandb"):
        check_trackers(small_config(tmp_path, log={"wandb": "x"}))


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

    def opened(config, folder, *, start):
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
