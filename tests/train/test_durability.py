"""Nothing is lost: kills at random moments, a full disk, two processes on one run, files of a newer version."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.doses import doses
from tests.toys import small_config
from tests.train.kills import KINDS

from turnwise.base.errors import DataError, RunError
from turnwise.commands.cli import main
from turnwise.config import override_config
from turnwise.rollout.record import FORMAT, NEWEST, read_table, write_table
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ROOT = Path(__file__).parents[2]


def told_by(module: str, *words: str) -> dict:
    """What a module of the tests prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},  # a fork cannot use a GPU
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kills", doses(4, 50, "TURNWISE_KILLS"))
def test_kills_at_random_moments_change_nothing(kills, tmp_path):
    told = told_by("tests.train.kills", str(tmp_path), str(kills), "0")
    assert told["killed"] == kills
    assert told["ended"] > kills // 15, "kills came so fast that no run ended between them"
    assert told["differing"] == []


FURTHER = [kind for kind in KINDS if kind != "harness"]  # which tests.gateway has


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        pytest.param(kind, kills, marks=[pytest.mark.slow] * (kills > 1 or kind != "store"))
        for kind in FURTHER
        for kills in (1, 5)
    ],
)
def test_kills_change_nothing_in_runs_that_keep_more(kind, kills, tmp_path):
    told = told_by("tests.train.kills", str(tmp_path), str(kills), "0", kind)
    assert told["killed"] == kills
    assert told["ended"] > 0
    assert told["differing"] == []


@pytest.fixture(scope="module")
def lives(tmp_path_factory) -> dict:
    return told_by("tests.train.disk", str(tmp_path_factory.mktemp("disk")))


@pytest.mark.parametrize("during", ["checkpoint", "metrics"])
def test_a_full_disk_is_said_in_a_line_and_the_run_goes_on_when_there_is_room(lives, during):
    assert lives["largest"] < lives["lines"], "otherwise no limit lets checkpoints pass and metrics not"
    full, again = lives[during]["full"], lives[during]["again"]
    assert full["code"] == 2
    assert full["err"].splitlines()[-1].startswith("turnwise: cannot write")
    assert "Traceback" not in full["err"]
    assert again["code"] == 0, again["err"]
    assert lives[during]["differing"] == []


def test_a_second_process_on_a_run_is_refused(lives):
    second = lives["second"]
    assert second["code"] == 2
    assert re.fullmatch(
        r"turnwise: another process is training in .*/run; wait for it, or stop it", second["err"].splitlines()[-1]
    )
    assert lives["afterwards"]["code"] == 0, lives["afterwards"]["err"]


def test_a_run_that_failed_leaves_no_lock(tmp_path):
    from turnwise.train.display import Display

    class Deadly(Display):
        def step(self, step, steps, metrics):
            raise RunError("enough")

    config = small_config(tmp_path)
    with pytest.raises(RunError, match="enough"):
        train(config, display=Deadly())
    assert len(train(config, resume=tmp_path / "run").metrics()) == 4


def test_a_folder_without_a_checkpoint_is_begun_anew(tmp_path):
    config = small_config(tmp_path)
    RunFolder.create(config)
    assert [record["step"] for record in train(config, resume=config.run_folder).metrics()] == [0, 1, 2, 2]


def test_a_record_that_cannot_be_gone_on_with_is_left_alone(tmp_path):
    config = small_config(tmp_path, checkpoint={"every": 1})
    run = train(config)

    def whole() -> dict:
        return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"}

    records = run.metrics_path.read_text().splitlines(keepends=True)
    run.metrics_path.write_text("".join(line for line in records if json.loads(line)["step"] != 1))
    before = whole()
    with pytest.raises(
        RunError,
        match=r"metrics.jsonl lacks 1 of the 2 steps before the last checkpoint, such as step 1; restore the file",
    ):
        train(override_config(config, ["run.steps=3"]), resume=run.path)
    assert whole() == before
    run.metrics_path.write_text("".join(records))
    shutil.rmtree(run.checkpoints)
    before = whole()
    for steps in ("run.steps=2", "run.steps=1", "run.steps=3"):  # to train anew over what is there would lose it
        with pytest.raises(
            RunError,
            match=r"has no checkpoint, which playing and resuming need.* Nothing was changed",
        ):
            train(override_config(config, [steps]), resume=run.path)
    assert whole() == before


@pytest.fixture
def newer(tmp_path) -> RunFolder:
    run = train(small_config(tmp_path))
    path = run.rollouts / "step-000001.parquet"
    table = pq.read_table(path)
    write_table(path, table.replace_schema_metadata({"turnwise_format": str(NEWEST + 1)}))
    return run


def test_a_record_of_a_newer_version_is_refused_in_a_line(newer, capsys):
    with pytest.raises(DataError, match=f"written by a newer turnwise, in format {NEWEST + 1}"):
        read_table(newer.rollouts / "step-000001.parquet", ())
    for asked in (["recredit", str(newer.path)], ["report", str(newer.path), "--out", tempfile.mkdtemp()]):
        assert main(asked) == 2
        told = capsys.readouterr().err.splitlines()
        assert "step-000001.parquet was written by a newer turnwise" in told[-1]
        assert "update turnwise" in told[-1]


def test_a_run_of_a_newer_version_is_refused_in_a_line(newer, capsys):
    path = newer.path / "config.json"
    record = json.loads(path.read_text())
    assert record["format"] == FORMAT
    path.write_text(json.dumps(record | {"format": NEWEST + 1}))
    assert main(["train", "--resume", str(newer.path)]) == 2
    assert "was written by a newer turnwise" in capsys.readouterr().err.splitlines()[-1]
