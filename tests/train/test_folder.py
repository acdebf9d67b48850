"""The run folder: nothing in it is lost, a run is never overwritten."""

import json
import platform
import subprocess
import sys

import pytest
from tests.toys import small_config

from turnwise.base.checksums import KEY
from turnwise.base.errors import RunError
from turnwise.base.files import write_text
from turnwise.config import override_config
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.loop import train


def test_a_new_run_records_its_configuration_and_where_it_came_from(tmp_path):
    config = small_config(tmp_path)
    folder = RunFolder.create(config)
    opened, same = RunFolder.open(folder.path)
    assert same == config
    assert opened.path == tmp_path / "run"
    data = json.loads((folder.path / "config.json").read_text())
    assert {"config", "created", "versions", "commit", "python", "cpus"} <= set(data)


def test_an_existing_run_is_refused_and_left_alone(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    before = {path: path.read_bytes() for path in folder.path.rglob("*")}
    with pytest.raises(
        RunError, match=r"never overwritten; resume it with `turnwise train --resume .*/run`, or .* run.name=run-2"
    ):
        RunFolder.create(small_config(tmp_path, run={"seed": 1}))
    assert {path: path.read_bytes() for path in folder.path.rglob("*")} == before


def test_a_run_with_settings_that_had_no_effect_and_are_refused_now_opens(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    path = folder.path / "config.json"
    record = json.loads(path.read_text())
    record.pop(KEY, None)
    config = record["config"]
    config["update"] |= {"scoring": "engine", "mismatch_cap": 2.0}
    config["warmstart"] |= {"steps": 0, "dagger_rounds": 2}
    path.write_text(json.dumps(record))
    opened = RunFolder.open(folder.path)[1]
    assert opened.update.scoring == "engine"
    assert opened.update.mismatch_cap is None
    assert opened.warmstart.dagger_rounds == 0
    config["update"] |= {"old_policy": "start"}
    config["rollout"] |= {"max_lag": 1}
    path.write_text(json.dumps(record))
    assert RunFolder.open(folder.path)[1].update.old_policy == "behavior"  # the same under scoring="engine"
    config["update"] |= {"policy": False, "tokens": {"name": "steer"}, "preference": {"name": "simpo"}}
    config["update"] |= {"dose": 0.5, "dose_by": "scale"}
    path.write_text(json.dumps(record))
    opened = RunFolder.open(folder.path)[1]
    assert (opened.update.tokens, opened.update.dose, opened.update.dose_by) == (None, None, "sample")
    config["update"] |= {"old_policy": "behavior"}
    config["rollout"] |= {"max_lag": 0, "top_p": 0.5}
    path.write_text(json.dumps(record))
    made_by = f"turnwise {record['versions']['turnwise']}"
    with pytest.raises(RunError, match=rf"refuses \(open it with the version that made it, {made_by}\): .*top_p"):
        RunFolder.open(folder.path)


def test_a_lock_that_cannot_be_opened_is_named(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    (folder.path / ".lock").symlink_to("nowhere")
    with pytest.raises(RunError, match=r"cannot lock .*/run: .*/\.lock: .*; remove that file"), folder.locked():
        pass


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="never overwritten"):
        RunFolder.create(small_config(tmp_path))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="cannot create"):
        RunFolder.create(small_config(tmp_path / "file"))


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"config": {"run": {"stepz": 1}}}', '{"other": 1}'])
def test_what_is_no_run_is_said_so(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    unknown = r"refuses \(open it with the version that made it\): unknown key 'run.stepz'"
    refused = unknown if "stepz" in (content or "") else "config.json is damaged"
    with pytest.raises(RunError, match="not a run folder" if content is None else refused):
        RunFolder.open(tmp_path)


def test_a_run_that_is_not_there_names_one_that_is(tmp_path):
    RunFolder.create(small_config(tmp_path, run={"name": "mine"}))
    with pytest.raises(RunError, match=r"mime is not a run folder: .* Did you mean 'mine'\?"):
        RunFolder.open(tmp_path / "mime")


@pytest.mark.parametrize("garbage", ["{", "[]", "nonsense", '{"step": "x"}', '{"step": 1, "eval/success": "y"}', "{}"])
def test_garbage_in_the_metrics_is_named_also_at_the_end(garbage, tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    folder.log({"step": 0})
    with folder.metrics_path.open("a") as lines:
        lines.write(f"{garbage}\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2, is damaged"):
        folder.metrics()


def test_metrics_are_read_back_without_a_cut_off_last_line(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    assert folder.metrics() == []
    records = [{"step": 0, "eval/success": 0.1}, {"step": 1, "x": 1e-9}, {"step": 2, "x": 3}]
    for record in records:
        folder.log(record)
    assert folder.metrics() == records
    whole = folder.metrics_path.read_bytes()
    last = len(whole) - len(whole.splitlines()[-1]) - 1
    for cut in range(last + 1, len(whole) - 1):  # a kill may cut anywhere in the last line
        folder.metrics_path.write_bytes(whole[:cut])
        assert folder.metrics() == records[:2]


@pytest.mark.parametrize("bad", [b"garbage", b'{"step": "\xff"}', b"5", b"{}"])
def test_a_damaged_line_is_named_and_nothing_is_lost(tmp_path, bad):
    folder = RunFolder.create(small_config(tmp_path))
    for step in range(4):
        folder.log({"step": step})
    lines = folder.metrics_path.read_bytes().splitlines()
    lines[1] = bad
    folder.metrics_path.write_bytes(b"\n".join(lines) + b"\n")
    before = folder.metrics_path.read_bytes()
    for read in (folder.metrics, lambda: folder.rewind(2)):
        with pytest.raises(RunError, match=r"metrics.jsonl, line 2, is damaged"):
            read()
    assert folder.metrics_path.read_bytes() == before


def test_a_copy_under_another_name_is_no_step(tmp_path):
    for name in ("step-000002", "step-000010", "step-000010 (copy)", "step-foo"):
        (tmp_path / name).mkdir()
    assert by_step(tmp_path) == {2: tmp_path / "step-000002", 10: tmp_path / "step-000010"}


def test_a_checkpoint_is_no_run(tmp_path):
    folder = tmp_path / "run" / "checkpoints" / "step-000020"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "step.json").write_text('{"step": 20}')
    with pytest.raises(
        RunError, match=rf"is a checkpoint of the run {tmp_path / 'run'}; name the run instead, with --step 20"
    ):
        RunFolder.open(folder)


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"workers": 0, "isolation": "worker"}, "in-process"),  # as earlier versions wrote their default
        ({"workers": 2, "isolation": "worker"}, "worker"),
        ({"workers": 0, "isolation": "worker", "image": ""}, "worker"),  # asked for, in a record of this version
    ],
)
def test_the_isolation_of_an_earlier_run_means_what_it_meant(tmp_path, given, level):
    folder = RunFolder.create(small_config(tmp_path))
    record = json.loads((folder.path / "config.json").read_text())
    environment = record["config"]["environment"]
    environment = {name: value for name, value in environment.items() if name not in ("isolation", "image")} | given
    record = {"format": record["format"], "config": {**record["config"], "environment": environment}}
    (folder.path / "config.json").write_text(json.dumps(record))
    assert RunFolder.open(folder.path)[1].environment.level == level


def test_a_run_that_goes_on_removes_what_its_killed_process_left(tmp_path):
    run = train(small_config(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = run.rollouts / f".step-000003.parquet.{platform.node()}.{gone.pid}.tmp"
    left.touch()
    train(override_config(small_config(tmp_path), ["run.steps=3"]), resume=run.path)
    assert not left.exists()


def test_rewind_drops_what_came_after_the_checkpoint(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    for step in range(6):
        folder.log({"step": step, "kind": "training"})
        if step % 2 == 0:
            folder.log({"step": step, "kind": "evaluation"})
    folder.rollouts.mkdir()
    for step in range(1, 6):
        (folder.rollouts / f"step-{step:06d}.parquet").touch()
    with folder.metrics_path.open("a") as file:
        file.write('{"step": 6, "ki')
    folder.rewind(2)
    assert [(r["step"], r["kind"][0]) for r in folder.metrics()] == [(0, "t"), (0, "e"), (1, "t"), (2, "t"), (2, "e")]
    assert sorted(path.name for path in folder.rollouts.iterdir()) == ["step-000001.parquet", "step-000002.parquet"]
    folder.log({"step": 3})
    assert folder.metrics()[-1] == {"step": 3}


def test_replacing_a_file_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
