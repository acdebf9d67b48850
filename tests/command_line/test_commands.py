"""What commands do and print."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.command_line.outcomes import refused, tree
from tests.command_line.settings import COMMAND, QUICK
from turnwise.base import heartbeat
from turnwise.commands.cli import main
from turnwise.commands.demo import demo_run
from turnwise.credit.methods import METHODS
from turnwise.train.folder import RunFolder

HEAVY = ("torch", "transformers", "tokenizers", "pyarrow", "matplotlib", "rich")
FAULTY = ["environment.name=doors:Faulty", "run.name=faulty"]


def test_eval_prints_its_results_and_changes_nothing_else(finished, capsys):
    before = tree(finished)
    assert (
        main(["eval", str(finished), "--episodes", "4", "--seeds", "2", "--step", "1", "evaluate.temperature=0"]) == 0
    )
    results = json.loads(capsys.readouterr().out)
    assert [(result["step"], result["seed"], result["episodes"]) for result in results] == [(1, 0, 4), (1, 1, 4)]
    assert results[0]["success"] == results[1]["success"]  # greedy, so that the seed cannot matter
    after = tree(finished)
    assert {path: after[path] for path in before} == before
    assert {path.split("/")[0] for path in after.keys() - before.keys()} <= {"evaluations"}


def test_eval_takes_options_in_any_place(finished, capsys):
    for arguments in (
        ["eval", str(finished), "evaluate.temperature=0", "--episodes", "4"],
        ["eval", "--episodes", "4", str(finished), "evaluate.temperature=0"],
    ):
        assert main(arguments) == 0
        assert json.loads(capsys.readouterr().out)[0]["episodes"] == 4


def test_eval_in_another_environment_takes_its_options(finished, here, capsys):
    arguments = ["--environment", "doors:Door", "environment.options.width=5", "--episodes", "2"]
    assert main(["eval", str(finished), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)[0]["success"] == 1.0


def test_what_an_environment_prints_is_no_part_of_the_results(finished, here, capsys):
    told = "class Loud(Door):\n    def start(self):\n        print('DEBUG')\n        return 'the door'\n"
    Path("loud.py").write_text(f"from doors import Door\nprint('LOADED')\n{told}")
    assert main(["eval", str(finished), "--environment", "loud:Loud", "--episodes", "2"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["episodes"] == 2
    assert said.err.count("DEBUG") == 2
    agent = "import tests.gateway.late\ndef agent(task, endpoint):\n    print('HELLO')\n"
    Path("agent.py").write_text(agent + "    return tests.gateway.late.play(task, endpoint)\n")
    tiny = [setting for setting in QUICK if setting.startswith("model.")]
    game = ["environment.name=tests.gateway.late:FewLate", "--tasks", "2", "--json"]
    assert main(["check-harness", "agent:agent", *game, *tiny]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["tasks"] == 2
    assert said.err.count("HELLO") == 4


def test_a_run_that_cannot_be_written_is_not_played_in_vain(finished, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == finished and mode == os.W_OK))
    for command in (["analyse", "fidelity"], ["audit"]):
        said = refused(capsys, *command, str(finished))
        assert f"{finished} cannot be written, where continuations are kept; copy the run" in said


def test_eval_in_markdown_and_what_comes_next(finished, capsys):
    assert main(["eval", str(finished), "--episodes", "4", "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# own-")
    assert "| all | 4 |" in out
    assert err.splitlines()[-1].startswith(f"next: turnwise report {finished}")
    assert main(["eval", str(finished), "--episodes", "4"]) == 0
    assert "|" not in capsys.readouterr().err


def test_a_run_in_which_every_trajectory_failed_is_an_error_with_its_cause(here, capsys):
    assert main(["train", *QUICK, *FAULTY, "run.steps=3", "checkpoint.every=1"]) == 2
    err = capsys.readouterr().err
    assert "2 FAILED (2 x environment: OSError: the door is locked" in err
    line = err.splitlines()[-1]
    assert line.startswith(
        "turnwise: no usable trajectory in 3 consecutive steps; the last one failed with: environment"
    )
    assert "the door is locked" in line
    assert line.endswith("resume with `turnwise train --resume runs/faulty`")
    assert main(["train", "--resume", "runs/faulty"]) == 2, "it is not finished"
    assert main(["train", *QUICK, *FAULTY[:1], "run.name=none", "run.steps=0"]) == 2
    assert "no episode of the evaluation after step 0 could be played: 2 x environment" in capsys.readouterr().err


def test_commands_that_are_printed_can_be_copied(here, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    named = ["environment.name=doors:Faulty", "run.name=my $run"]
    resuming = "`turnwise train --resume 'runs/my $run'`"
    assert main(["train", *QUICK, *named, "run.steps=1"]) == 2
    assert capsys.readouterr().err.endswith(f"Fix this, then resume with {resuming}\n")
    again = f"resume it with {resuming}, or choose another name with run.name='my $run-2'\n"
    assert refused(capsys, "train", *QUICK, *named).endswith(again)
    assert refused(capsys, "train", "runs/my $run").endswith(f"resume it with {resuming}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.train.loop.prepare", interrupted)
        assert main(["train", "--resume", "runs/my $run"]) == 130
    assert capsys.readouterr().err.endswith(f"resume from the checkpoint of step 0 with {resuming}\n")
    assert main(["train", *QUICK, named[0], f"run.folder={here}", "run.name=no ne", "run.steps=0"]) == 2
    assert capsys.readouterr().err.endswith(f"then evaluate with `turnwise eval '{here}/no ne'`\n")


def test_observations_without_room_are_counted_and_end_the_run(here, capsys):
    long = ["environment.name=doors:Long", "model.max_context=32", "run.name=long"]
    assert main(["train", *QUICK, *long]) == 2
    assert "model.max_context=32 has no room for the first observation" in capsys.readouterr().err
    record = next(r for r in RunFolder(here / "runs" / "long").metrics() if "rollout/context_frac" in r)
    assert (record["rollout/context_frac"], record["rollout/failed_frac"]) == (1.0, 1.0)


def test_a_group_of_one_is_said_to_teach_grpo_nothing(here, capsys):
    for method, noted in (("grpo", True), ("reinforce", False)):
        assert (
            main(["train", *QUICK, "rollout.group_size=1", f"method={method}", f"run.name={method}", "run.steps=0"])
            == 0
        )
        assert ("note: rollout.group_size=1: the method compares" in capsys.readouterr().err) == noted


def test_train_and_resume(here, capsys):
    assert main(["train", *QUICK, "run.name=door"]) == 0
    err = capsys.readouterr().err
    assert "held-out after step 0: success" in err
    assert err.splitlines()[-1] == "next: turnwise report runs/door   # curves, trajectories, credit per turn"
    assert "training 1/1" in err
    assert (here / "runs" / "door" / "figure.png").stat().st_size > 1000
    assert main(["train", "--resume", "runs/door", "run.steps=2"]) == 0
    assert [r["step"] for r in RunFolder(here / "runs" / "door").metrics()] == [0, 1, 1, 2, 2]


def test_config_prints_json_and_touches_nothing(here, capsys):
    before = tree(here)
    assert main(["config", "tiny.toml", "run.steps=3"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["run"]["steps"], data["run"]["name"]) == (3, "tiny")
    assert main(["config", "run.steps=4"]) == 0  # a recipe may be left out
    assert json.loads(capsys.readouterr().out)["run"]["steps"] == 4
    assert tree(here) == before


@pytest.mark.parametrize("arguments", [["config", "tiny.toml"], ["methods"]])
def test_what_needs_no_torch_imports_none(here, arguments):
    code = (
        f"import sys; from turnwise.commands.cli import main; main({arguments!r}); print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in result.stderr.split()}
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["recipes"], ["methods"]])
def test_what_reads_no_recipe_loads_neither_settings_nor_arrays(here, arguments):
    """Such a command starts in the time that Python needs; methods are made of NumPy, and need nothing else."""
    code = f"""import sys, contextlib
from turnwise.commands.cli import main
with contextlib.suppress(SystemExit): main({arguments!r})
print(*sys.modules, file=sys.stderr)"""
    result = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    loaded = set(result.stderr.split())
    assert not {name.partition(".")[0] for name in loaded} & {*HEAVY, "pydantic", "jaxtyping", "asyncio"}
    assert ("numpy" in loaded) == (arguments == ["methods"])
    assert not {"turnwise.config", "importlib.metadata"} & loaded


def test_settings_are_loaded_without_reading_their_source():
    """To collect the docstrings under fields took more than a quarter of the time to start a command."""
    code = "import linecache, turnwise.config; print(*(name for name in linecache.cache if 'turnwise' in name))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_a_command_that_takes_long_says_so_in_a_log_and_a_server_does_not(here, monkeypatch, capsys):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    monkeypatch.setattr("turnwise.integrations.logs.write.import_log", lambda *_, **__: time.sleep(0.5) or SystemExit())
    with pytest.raises(AttributeError):
        main(["import", "tiny.toml"])
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"import: working, \d+ s so far", line) for line in lines)
    said = []

    def serve(*_, on_ready, **__):
        time.sleep(0.5)
        on_ready()
        said.append(capsys.readouterr().err)
        time.sleep(0.5)

    monkeypatch.setattr("turnwise.environments.serve.serve", serve)
    assert main(["serve-env", "doors:Doors"]) == 0
    assert "serve-env: working" in said[0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("live", [False, True])
def test_a_report_that_takes_long_says_how_far_it_is_and_is_silent_once_it_is_read(here, monkeypatch, capsys, live):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)

    def read(*given, progress=None, on_ready=None, **_):
        progress = progress or given[3]
        progress(3, 7)
        time.sleep(0.5)
        progress(7, 7)
        if on_ready:
            on_ready("http://here/")
        time.sleep(0.5 if on_ready else 0.0)

    monkeypatch.setattr("turnwise.lab.report.write.write_report", read)
    monkeypatch.setattr("turnwise.lab.report.live.serve_report", read)
    (run := here / "some").mkdir()
    (run / "config.json").write_text("{}")
    assert main(["report", str(run), *["--live"] * live]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3/7 steps read"
    whole = [line for line in lines[1:] if not line.startswith(("3/7", "next:"))]
    assert all(re.fullmatch(r"report: working, \d+ s so far", line) for line in whole)
    assert len(whole) < (2 if live else 9), "the whole command's sign of life is silent once the page is served"


def test_bars_of_libraries_are_off_in_a_log(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    code = "from turnwise.commands.common import load_libraries as load; load()"
    code += "; from tqdm.auto import tqdm; list(tqdm(range(9)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


LOG = [
    {
        "task": "add",
        "reward": float(right),
        "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": right}],
    }
    for right in "01"
]
WITHOUT = """import sys, importlib.abc, importlib.util
class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {lacking!r}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
import importlib.metadata
known = importlib.metadata.version
def version(name):
    if name in {lacking!r}: raise importlib.metadata.PackageNotFoundError(name)
    return known(name)
importlib.metadata.version = version
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {lacking!r} else find(name, *more)
from turnwise.commands.cli import main
for arguments in {commands!r}:
    assert main(arguments) == {code}, arguments"""


def test_logs_are_read_credited_and_shown_without_torch(tmp_path):
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, LOG)))
    commands = [["import", "log.jsonl"], ["recredit", "runs/log", "--method", "gigpo"], ["report", "runs/log"]]
    trained = [["demo", "--no-open"], ["report", "demo", "--methods", "gigpo"], ["recredit", "demo"]]
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    name = re.compile(r"[\w.-]+")
    logs, train = ({name.match(one)[0] for one in extras[extra]} for extra in ("logs", "train"))
    assert logs < train
    code = WITHOUT.format(lacking=sorted((train | {"jinja2"}) - logs), commands=commands, code=0)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "runs" / "log" / "report" / "index.html").exists()
    environment = {**os.environ, "TURNWISE_CACHE": str(tmp_path / "cache")}
    shutil.copytree(demo_run(), tmp_path / "demo")
    code = WITHOUT.format(lacking=sorted((train | {"jinja2"}) - logs), commands=trained, code=0)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, env=environment)
    assert (
        done.stderr.count("No module named 'tokenizers'. The page shows no entropies of single tokens; pip install")
        == 1
    )
    code = WITHOUT.format(lacking=["pyarrow"], commands=commands[2:], code=2)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stderr == "turnwise: pyarrow is not installed; pip install 'turnwise-rl[logs]'\n"


def test_options_of_methods_are_checked_without_run_time_types(here):
    """Under pytest, shapes and types are checked at run time, which a user does not have."""
    command = [*COMMAND, "config", "tiny.toml", "method=grpo+aem", "method.temperature=2"]
    assert subprocess.run(command, cwd=here, capture_output=True, check=False).returncode == 0
    result = subprocess.run(
        [*command, "method.convention=verll"], cwd=here, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "verll" in result.stderr
    assert "'verl'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_methods_lists_every_method(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(METHODS)
    assert "state_key" in next(line for line in lines if line.startswith("gigpo"))
    assert "2605.00425" in next(line for line in lines if line.startswith("aem"))


def test_help_shows_an_example_first(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    example = text.index("turnwise train household-tiny-aem")
    assert example < text.index("positional arguments") < text.index("options:")


def test_check_env_reports_and_says_by_its_exit_code(here, capsys):
    assert main(["check-env", "doors:Doors"]) == 0
    out = capsys.readouterr().out
    assert "doors:Doors: sound" in out
    assert "no words()" not in out
    assert main(["check-env", "doors:Door"]) == 0
    assert "warning: tasks 0, 33333, 66666 gave the same answers" in capsys.readouterr().out
    assert main(["check-env", "doors:Speechless"]) == 0
    assert "note: no words(), so model.name='tiny' cannot play it" in capsys.readouterr().out
    assert main(["check-env", "doors:Random"]) == 2
    assert "a different answer" in capsys.readouterr().out
