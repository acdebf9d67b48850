"""Trackers get a copy of what metrics.jsonl says, through their own libraries."""

import json
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from tests.needs import needs, skip_without
from tests.toys import small_config

from turnwise.base.errors import ConfigError, RunError
from turnwise.commands.cli import main
from turnwise.config import Config
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train
from turnwise.train.traces import as_messages, shown
from turnwise.train.trackers import _TensorBoard, check_trackers, display_name, identity


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_a_missing_library_is_one_line_and_nothing_is_made(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"log.{name}=x" if name != "tensorboard" else "log.tensorboard=true"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"turnwise: log.{name} needs {name}, which is not installed; pip install {name}\n"
    assert not list(tmp_path.iterdir())


def test_nothing_is_imported_that_nobody_asked_for(tmp_path, monkeypatch):
    for name in ("tensorboard", "wandb", "trackio", "mlflow"):
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


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("saved", [0, 2])
def test_steps_that_are_made_again_replace_those_before(tmp_path, saved):
    """Also where no checkpoint was saved before the run was killed."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, value in ((0, 0.1), (saved, 0.9)):
        writer = _TensorBoard(tmp_path, start)
        for step in range(start + 1, 5):
            writer.log(step, {"x": value})
        writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    told = [(event.step, round(event.value, 3)) for event in events.Scalars("x")]
    assert told == [(step, 0.1 if step <= saved else 0.9) for step in range(1, 5)]


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


def trajectory(reward: float, turns: int = 1, text: str = "a", **more: Any) -> Trajectory:
    made = [Turn(f"seen {n}", None, [1], [2], [-1.0], f"{text}{n}", False) for n in range(turns)]
    made[-1].reward = reward
    return Trajectory(0, "task", made, ended="terminated", **more)


def test_the_best_the_worst_and_the_longest_are_shown_each_once():
    step = [trajectory(0.5), trajectory(1.0), trajectory(1.0), trajectory(-1.0, 3), trajectory(9.0, failure="lost")]
    assert shown(step) == {"best": step[1], "worst": step[3]}
    step.append(trajectory(0.0, 4))
    assert shown(step) == {"best": step[1], "worst": step[3], "longest": step[5]}
    assert shown(step[4:5]) == {}


def test_what_is_shown_has_a_bound():
    messages = as_messages(trajectory(1.0, 1000, "x" * 50_000))
    assert len(messages) == 80
    assert messages[40]["content"] == "[960 turns are left out]\nseen 980"
    assert max(len(each["content"]) for each in messages) < 4100
    assert "characters are left out" in messages[1]["content"]


def test_trajectories_are_shown_only_if_asked(tmp_path, monkeypatch):
    class Showing(Memory):
        def trace(self, step, name, messages, told):
            self.seen.append((step, name, [each["role"] for each in messages][:2], told["step"]))

    for traces in (False, True):
        tracker = Showing()
        monkeypatch.setattr("turnwise.train.prepare.open_trackers", lambda *_, tracker=tracker, **__: [tracker])
        train(small_config(tmp_path, run={"name": f"{traces}", "steps": 1}, log={"traces": traces}))
        found = [each for each in tracker.seen if isinstance(each, tuple)]
        assert [each[1] for each in found][:1] == (["best"] if traces else [])
        assert all(each == (1, each[1], ["user", "assistant"], 1) for each in found)


@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow warns of its own types, and swallows what that raises
@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_each_library_shows_trajectories_in_its_own_form(name, tmp_path, monkeypatch):
    skip_without(name)
    monkeypatch.chdir(tmp_path)
    for variable, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": str(tmp_path / "mlruns"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():
        monkeypatch.setenv(variable, value)
    log = {name: True if name == "tensorboard" else "toys", "traces": True}
    folder = train(small_config(tmp_path, run={"steps": 1}, log=log))
    if name == "mlflow":
        import mlflow  # pyright: ignore[reportMissingImports]

        client = mlflow.MlflowClient()
        experiment = client.get_experiment_by_name("toys").experiment_id
        (run,) = client.search_runs([experiment])
        assert run.data.metrics["rollout/success"] == folder.metrics()[1]["rollout/success"]
        (best, *_) = mlflow.search_traces(locations=[experiment], return_type="list", order_by=["timestamp_ms ASC"])
        assert best.data.spans[0].name == "best of step 1"
        assert best.data.spans[1].inputs[0]["role"] == "user"
    else:
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        wanted = [b"traces/best"] + ([b"wb_trace"] if name == "wandb" else [])
        assert any(all(each in data for each in wanted) for data in files)
