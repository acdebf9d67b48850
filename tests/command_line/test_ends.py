"""How a command ends that cannot go on: interrupted, without disk, or by a fault of ours."""

import errno
import importlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line.outcomes import refused
from tests.command_line.settings import COMMAND, QUICK
from turnwise.commands.cli import main
from turnwise.train import loop
from turnwise.train.folder import RunFolder


def test_an_interrupt_is_no_traceback(here, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", interrupted)
    assert main(["train", "tiny.toml"]) == 130
    err = capsys.readouterr().err
    assert err.endswith("turnwise: interrupted; no checkpoint was saved; start again with the same command\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("during", [(loop, "train"), (RunFolder, "open")])
def test_an_interrupted_run_says_where_it_goes_on(during, finished, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(*during, interrupted)
    assert main(["train", "--resume", str(finished), "run.steps=4"]) == 130
    said = f"turnwise: interrupted; resume from the checkpoint of step 2 with `turnwise train --resume {finished}`\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_fault_of_ours_is_a_traceback(here, monkeypatch):
    monkeypatch.setattr(loop, "train", lambda *_, **__: None)  # whose folder it then asks for
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'path'"):
        main(["train", "tiny.toml"])


OWN = """
import json

class Tasks:
    def __init__(self, config): pass
    def tasks(self, split): return {tasks}
    def words(self): return json.loads("[")
    def environment(self, task): ...
"""


TABLE = """
class Table:
    def __len__(self): return 2
    def __getitem__(self, column): return {"question": ["why", "how"]}[column]
"""


@pytest.mark.parametrize("arguments", [["train", "run.name=own"], ["play"], ["check-harness"]])
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(4)", "'own' ends the program when it is imported (sys.exit(4)); put what it runs as a"),
        (OWN.format(tasks="[1 / 0]"), "own.py:6, in tasks: ZeroDivisionError: division by zero\n"),
        (OWN.format(tasks="None"), "tasks('train') returned NoneType, expected a list of tasks\n"),
        (OWN.format(tasks="{0: 1}"), "tasks('train') returned dict, expected a list of tasks\n"),
        (TABLE + OWN.format(tasks="Table()"), "tasks('train') returned Table, expected a list of tasks\n"),
        (OWN.format(tasks="[1]").replace("config): pass", "config): open('gone')"), "own.py:5, in __init__: FileNot"),
    ],
)
def test_what_fails_in_code_of_the_users_is_named_in_a_line(arguments, code, told, here, capsys, monkeypatch):
    Path("own.py").write_text(code)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    importlib.invalidate_caches()
    name = "own:Tasks" if arguments == ["play"] else "environment.name=own:Tasks"
    more = [] if arguments == ["play"] else ["warmstart.steps=0"]
    if arguments == ["check-harness"]:
        arguments, more = [*arguments, "tests.gateway.late:play"], []
    elif arguments == ["play"]:
        told = told.replace("'train'", "'valid'")
    assert main([*arguments, name, *more]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [["play"], ["check-env"], ["check-env", "--tamper"], ["train", "run.name=own"]])
def test_tasks_that_only_an_agent_plays_are_no_environment(command, here, capsys, monkeypatch):
    Path("own.py").write_text(OWN.format(tasks="[1]").replace("    def environment(self, task): ...\n", ""))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    importlib.invalidate_caches()
    monkeypatch.syspath_prepend(here)  # for the processes of check-env
    name = "own:Tasks" if command[0] != "train" else "environment.name=own:Tasks"
    said = refused(capsys, *command, name)
    assert said.startswith("turnwise: 'own:Tasks' has no environment(task), so only an agent ([harness]) plays")


def test_words_that_cannot_be_read_are_named_too(here, capsys, monkeypatch):
    """The deepest frame is Python's own, which the user's code called."""
    Path("own.py").write_text(OWN.format(tasks="[1]"))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    importlib.invalidate_caches()
    said = refused(capsys, "train", "run.name=own", "environment.name=own:Tasks", "warmstart.steps=0")
    assert "own.py:7, in words: JSONDecodeError: Expecting value" in said


def test_an_empty_recipe_is_no_default_run(here, capsys):
    assert "the name of the recipe is empty; `turnwise recipes` lists them" in refused(capsys, "train", "")
    assert not Path("runs").exists()


def test_without_the_training_extra_it_says_what_to_install(here, capsys, monkeypatch):
    def missing(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(loop, "train", missing)
    assert "torch is not installed; pip install 'turnwise-rl[train]'" in refused(capsys, "train", "tiny.toml")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["methods"], ["config"]])
def test_output_that_cannot_be_written_is_one_line_without_advice_to_resume(here, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("turnwise: cannot write: ")
    assert done.stderr.endswith("Free disk space, and run the command again\n")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_stops_a_training_with_the_way_to_resume(here, finished, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loop, "train", full)
    said = refused(capsys, "train", "--resume", str(finished))
    assert "Free disk space; resume from the checkpoint of step 2" in said
    assert f"`turnwise train --resume {finished}`" in said
    assert "no checkpoint was saved; start again with the same command" in refused(capsys, "train", "tiny.toml")


def test_an_error_without_a_cause_of_the_system_is_told(here, capsys, monkeypatch):
    def strange(*args, **kwargs):
        raise OSError("the archive is odd")

    monkeypatch.setattr(Path, "mkdir", strange)
    assert "the archive is odd" in refused(capsys, "train", *QUICK)


def test_an_interrupt_while_modules_are_imported_is_one_line(here):
    """As with Ctrl-C right after the command."""
    code = "import sys, turnwise.__main__ as start\n"
    code += "class Slow:\n    def find_spec(self, name, *_):\n"
    code += "        if name == 'turnwise.commands.train': raise KeyboardInterrupt\n"
    code += "sys.meta_path.insert(0, Slow())\nsys.exit(start.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "turnwise: interrupted\n")


def test_a_closed_pipe_is_no_traceback(here):
    """As with `turnwise config | head -1`."""
    with subprocess.Popen(
        [*COMMAND, "config", "tiny.toml"], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("gone_at", ["", "training 2/"])
def test_a_training_goes_on_when_nobody_reads_its_log_any_more(gone_at, here):
    """As with `turnwise train ... 2>&1 | grep -m1 "training 2/"`; the world prints too, to stdout."""
    talks = "import doors\nclass Door(doors.Door):\n    def start(self):\n        return print('!' * 9999) or ''\n"
    (here / "talks.py").write_text(talks)
    settings = [*QUICK, "environment.name=talks:Door", "run.steps=4", "run.threads=1"]
    reader, writer = os.pipe()
    with subprocess.Popen([*COMMAND, "train", *settings], cwd=here, stdout=writer, stderr=writer) as process:
        os.close(writer)
        with open(reader) as log:
            assert not gone_at or any(line.startswith(gone_at) for line in log)
    assert process.returncode == 0
    assert RunFolder(here / "runs" / "run").metrics()[-1]["step"] == 4


@pytest.mark.skipif(os.name != "posix", reason="POSIX only")
@pytest.mark.parametrize("arguments", [["recipes"], ["train", "nosuch"]])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_hides_what_is_printed_and_no_more(arguments, closed, here):
    command = shlex.join([*COMMAND, *arguments])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if arguments == ["recipes"] else 2)
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == ("2>&-" not in closed)
    assert bool(done.stdout) == (arguments == ["recipes"] and ">&-" not in closed.split())


def test_the_installed_command_runs(here):
    """A world in the working directory is found, though a script's own folder is not the working directory."""
    command = Path(sys.executable).with_name("turnwise")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [str(command) if command.exists() else "turnwise", "check-env", "doors:Doors"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "doors:Doors: sound" in result.stdout


def test_a_path_that_cannot_be_written_is_one_line(tmp_path, capsys, monkeypatch):
    def run(_):
        (tmp_path / "file").touch()
        (tmp_path / "file" / "table.parquet").write_text("x")

    monkeypatch.setattr("turnwise.commands.methods._methods", run)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == f"turnwise: cannot use {tmp_path / 'file' / 'table.parquet'}: Not a directory\n"
