"""A run's files carry its identity, a folder that moves stops its run, and a run that diverges keeps its checkpoint."""

import json
import shutil

import pytest
import torch
from tests.needs import needs
from tests.toys import small_config

from turnwise.base.checksums import KEY, RUN_KEY, run_of, sealed
from turnwise.base.errors import DIVERGED, DamagedError, EngineFault, RunError
from turnwise.commands.cli import main
from turnwise.config import Config
from turnwise.engines.local import LocalEngine
from turnwise.rollout.record import read_table
from turnwise.train.checkpoint import load_checkpoint
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.loop import train
from turnwise.train.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    for name in ("a", "b"):
        train(small_config(place, run={"name": name, "steps": 2}, checkpoint={"every": 1, "keep": 5}))
    return place


@pytest.fixture
def two(made, tmp_path):
    shutil.copytree(made, tmp_path / "runs")
    return RunFolder(tmp_path / "runs" / "a"), RunFolder(tmp_path / "runs" / "b")


def replace(target, source) -> None:
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)


FILES = ("rollouts/step-000001.parquet", "evaluations/step-000002.parquet", "checkpoints/step-000002", "metrics.jsonl")


def read(run: RunFolder, name: str) -> None:
    path = run.path / name
    if path.suffix == ".parquet":
        read_table(path, ())
    elif path.is_dir():
        load_checkpoint(path)
    else:
        run.metrics()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_run_is_refused_by_name(two, name):
    ours, theirs = two
    read(ours, name)
    replace(ours.path / name, theirs.path / name)
    with pytest.raises(
        (DamagedError, RunError), match=rf"{name}.* belongs to another run: expected {run_of(ours.path)}"
    ):
        read(ours, name)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["train", "run.steps=3", "--resume"], "checkpoints/step-000002"),
        (["train", "run.steps=3", "--resume"], "metrics.jsonl"),
        (["eval"], "checkpoints/step-000002"),
        (["report"], "metrics.jsonl"),
        (["recredit", "--method", "gigpo"], "rollouts/step-000001.parquet"),
        (["analyse", "surprisal", "--step", "1"], "rollouts/step-000001.parquet"),
    ],
)
def test_commands_refuse_it_in_one_line(two, command, name, capsys):
    ours, theirs = two
    replace(ours.path / name, theirs.path / name)
    assert main([*command, str(ours.path)]) == 2
    said = capsys.readouterr().err
    assert "belongs to another run" in said
    assert "Traceback" not in said


def test_a_checkpoint_of_another_step_is_refused_by_name(two):
    run, _ = two
    replace(run.checkpoints / "step-000002", run.checkpoints / "step-000001")
    with pytest.raises(RunError, match=r"step-000002 is a copy of the checkpoint of step 1"):
        load_checkpoint(run.checkpoints / "step-000002")


def test_a_run_without_an_identity_is_accepted_and_resumed(two):
    run, _ = two
    path = run.path / "config.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(sealed({k: v for k, v in record.items() if k not in (KEY, RUN_KEY)})))
    assert main(["train", "--resume", str(run.path), "run.steps=3"]) == 0
    assert RUN_KEY not in run.metrics_path.read_text().splitlines()[-1]
    assert main(["recredit", str(run.path), "--method", "gigpo"]) == 0


def test_runs_differ_and_keep_their_identity(two):
    ours, theirs = (run_of(run.path) for run in two)
    assert ours
    assert ours != theirs
    assert main(["train", "--resume", str(two[0].path), "run.steps=3"]) == 0
    assert run_of(two[0].path) == ours
    assert all(RUN_KEY not in record for record in two[0].metrics())


WHERE = {"playing": (Run, "measure"), "saving": (Run, "save"), "ending": (RunFolder, "close_trackers")}


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
@pytest.mark.parametrize("when", WHERE)
def test_a_folder_that_goes_away_stops_the_run_and_nothing_is_written(how, when, tmp_path, monkeypatch):
    lose(how, when, tmp_path, monkeypatch)


def lose(how, when, tmp_path, monkeypatch, **settings) -> None:
    config = small_config(tmp_path, run={"steps": 4}, checkpoint={"every": 1}, **settings)
    run, function, gone = config.run_folder, getattr(*WHERE[when]), []

    def going(self, *given):
        if (when == "ending" or self.step == 2) and not gone:
            gone.append(True)
            shutil.rmtree(run) if how == "deleted" else run.rename(tmp_path / "elsewhere")
            if how == "replaced":
                run.mkdir()
        return function(self, *given)

    monkeypatch.setattr(*WHERE[when], going)
    with pytest.raises(RunError, match="was moved or deleted while the run trained"):
        train(config)
    assert run.exists() == (how == "replaced")
    assert not run.exists() or not list(run.iterdir())
    monkeypatch.undo()
    if how == "moved":
        assert len(train(config, resume=tmp_path / "elsewhere").metrics()) == 6


def test_a_second_writer_is_refused_where_the_lock_was_removed(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    with folder.locked():
        (folder.path / ".lock").unlink()
        with pytest.raises(RunError, match="another process is training in"), RunFolder(folder.path).locked():
            pass
    with folder.locked():
        pass


def diverging(folder, **more) -> Config:
    return small_config(folder, run={"steps": 40}, checkpoint={"every": 1, "keep": 9}, **more)


def test_weights_that_are_not_finite_stop_the_run_at_that_step(tmp_path, monkeypatch):
    step = torch.optim.AdamW.step

    def wild(self, *given):
        step(self, *given)
        if len(by_step(tmp_path / "run" / "checkpoints")) == 3:  # after step 2
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(float("inf"))

    monkeypatch.setattr(torch.optim.AdamW, "step", wild)
    with pytest.raises(RunError, match=r"step 3: the weights of the policy are not finite .*step-000002 is intact"):
        train(diverging(tmp_path))
    run = RunFolder(tmp_path / "run")
    assert max(by_step(run.checkpoints)) == 2
    assert max(record["step"] for record in run.metrics()) == 2
    assert (run.rollouts / "diverged-000003.parquet").exists()


def test_a_step_in_which_every_trajectory_diverged_stops_the_run(tmp_path, monkeypatch):
    generate = LocalEngine.generate

    async def failing(self, *given, **more):
        if max(by_step(tmp_path / "run" / "checkpoints"), default=-1) == 2:
            raise EngineFault(f"the logits are not finite: {DIVERGED}; lower update.learning_rate")
        return await generate(self, *given, **more)

    monkeypatch.setattr(LocalEngine, "generate", failing)
    with pytest.raises(RunError, match=r"step 3: every trajectory failed with: .*the weights diverged.*step-000002"):
        train(diverging(tmp_path, evaluate={"every": 0}))
    run = RunFolder(tmp_path / "run")
    assert max(by_step(run.checkpoints)) == 2
    assert max(record["step"] for record in run.metrics()) == 2
    assert not (run.rollouts / "step-000003.parquet").exists()


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("when", WHERE)
@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_tensorboard_writes_nothing_where_the_folder_was(how, when, tmp_path, monkeypatch):
    lose(how, when, tmp_path, monkeypatch, log={"tensorboard": True})


class Making:
    """A tracker that makes its folder whenever it writes, also at its end."""

    def __init__(self, folder):
        self.folder = folder

    def log(self, step, metrics):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{step}-{len(metrics)}").touch()

    def close(self):
        self.log("end", {})


@pytest.mark.parametrize("when", WHERE)
@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_tracker_that_makes_folders_makes_none_where_the_run_was(how, when, tmp_path, monkeypatch):
    monkeypatch.setattr("turnwise.train.prepare.open_trackers", lambda log, folder, **_: [Making(folder / "tracked")])
    lose(how, when, tmp_path, monkeypatch)
