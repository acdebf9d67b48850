"""Files are replaced in one move, or stay as they were."""

import os
import platform
import subprocess
import sys

import pytest

from turnwise.base.cache import made_aside
from turnwise.base.files import remove_remains, replacing, write_text


def test_a_file_is_replaced_in_one_move(tmp_path):
    path = tmp_path / "told.json"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_what_could_not_be_written_leaves_nothing(tmp_path, error):
    path = tmp_path / "told.json"
    write_text(path, "old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    killed = "import os, sys; from turnwise.base.files import replacing"
    killed += "; r = replacing(__import__('pathlib').Path(sys.argv[1]))"
    killed += "; open(r.__enter__(), 'w').close(); os.kill(os.getpid(), 9)"
    (tmp_path / "rollouts").mkdir()
    for name in ("rollouts/step-000003.parquet", "metrics.jsonl"):
        subprocess.run([sys.executable, "-c", killed, str(tmp_path / name)], check=False)
    names = [f".figure.png.{platform.node()}.{os.getpid()}.tmp", ".step-000003.tmp", "notes.1.tmp"]
    names += [f".figure.png.elsewhere.{2**22 + 1}.tmp"]  # no process here has this number
    kept = [tmp_path / name for name in names]
    for path in kept:
        path.touch()
    (tmp_path / f".folder.{platform.node()}.{2**22 + 1}.tmp").mkdir()
    assert len(list(tmp_path.rglob(".*.tmp"))) == 6
    remove_remains(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["rollouts"]


def test_a_folder_that_a_killed_process_filled_is_removed_when_the_next_one_is_made(tmp_path):
    killed = "import os, pathlib, sys; from turnwise.base.cache import made_aside"
    killed += "; made = made_aside(pathlib.Path(sys.argv[1])); (made.__enter__() / 'weights').touch()"
    killed += "; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "one")], check=False)
    assert len([*tmp_path.iterdir()]) == 1
    with made_aside(tmp_path / "two") as ours, made_aside(tmp_path / "two") as again:
        assert sorted(tmp_path.iterdir()) == sorted([ours, again])
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_process_that_nobody_has_waited_for_yet_has_ended(tmp_path):
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    left = tmp_path / f".figure.png.{platform.node()}.{ended.pid}.tmp"
    left.touch()
    remove_remains(tmp_path)
    assert not left.exists()
    assert ended.wait(10) == 0
