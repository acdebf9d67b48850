"""The command line: a mistake is one line on stderr, exit code 2, and nothing is created or lost."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toys import small_config
from turnwise.cli import _parse, main
from turnwise.methods import METHODS
from turnwise.train import loop
from turnwise.train.folder import RunFolder

ROOT = Path(__file__).parents[1]
WORLD = """
class Door:
    def __init__(self, seed, width=3):
        self.seed = seed

    @staticmethod
    def words(**options):
        return ["open the door"]

    def start(self):
        return "the door"

    def step(self, response):
        from turnwise.environments.base import Step
        return Step(observation="", reward=1.0, terminated=True, info={"success": True})

class Doors(Door):
    def step(self, response):
        from turnwise.environments.base import Step
        return Step(observation=f"it was door {self.seed}", terminated=True, info={"success": True})

class Speechless:
    def __new__(cls, seed):
        return Doors(seed)

class Faulty(Door):
    def start(self):
        raise OSError("the door is locked")

class Long(Door):
    def start(self):
        return "the door " * 40

class Random(Door):
    def start(self):
        import random
        return str(random.random())
"""
QUICK = [
    "environment.name=doors:Door",
    "warmstart.steps=0",
    "run.steps=1",
    "rollout.groups=1",
    "rollout.group_size=2",
    "model.hidden_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "evaluate.episodes=2",
    "evaluate.final_episodes=2",
    "run.device=cpu",
]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty working directory with a recipe and a world, and nothing that a failed command may touch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    (tmp_path / "tiny.toml").write_text('[environment]\noptions = { size = "tiny" }\n')
    (tmp_path / "bad.toml").write_text("[run\n")
    (tmp_path / "study.toml").write_text('recipes = ["tiny.toml"]\nseeds = 2\n[methods]\ngrpo = []\n')
    (tmp_path / "recipe.toml").write_text('[environment]\nname = "household"\n')
    (tmp_path / "doors.py").write_text(WORLD)
    (tmp_path / "broken.py").write_text("import nothing_like_it\n")
    monkeypatch.delitem(sys.modules, "doors", raising=False)
    yield tmp_path
    sys.modules.pop("doors", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of two steps, for tests that do not change it."""
    folder = loop.train(small_config(tmp_path_factory.mktemp("runs"), checkpoint={"every": 1}))
    return folder.path


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in str(path)
    }


def refused(capsys, *arguments: str) -> str:
    """Run a command that must fail; returns its one line."""
    assert main(arguments) == 2
    return one_line(capsys.readouterr())


def one_line(captured) -> str:
    """What was printed: nothing on stdout, one line on stderr."""
    out, err = captured
    assert out == ""
    assert err.startswith("turnwise: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


BAD = {
    "no recipe": (["train"], "name one, such as"),
    "unknown section": (["train", "tiny.toml", "rune.steps=1"], "unknown key 'rune'. Did you mean 'run'?"),
    "unknown key": (["train", "tiny.toml", "run.stepz=1"], "Did you mean 'steps'?"),
    "key without its section": (["train", "tiny.toml", "steps=2"], "Did you mean 'run.steps' or 'warmstart.steps'?"),
    "extends as an override": (["train", "tiny.toml", "extends=x"], "'extends' is a key of a recipe's file"),
    "wrong type": (["train", "tiny.toml", "run.steps=x"], 'run.steps: expected a whole number, got "x"'),
    "a number for a list": (["train", "tiny.toml", "measures=3"], "measures: expected a list, got 3"),
    "a number for a section": (["train", "tiny.toml", "critic=3"], "critic: expected a table, got 3"),
    "out of range": (["train", "tiny.toml", "rollout.groups=0"], "greater than or equal to 1, got 0"),
    "no override": (["train", "tiny.toml", "run.steps"], "does not have the form section.key=value"),
    "missing recipe": (["train", "tine.toml"], "Did you mean 'tiny.toml'?"),
    "bad TOML": (["train", "bad.toml"], "bad.toml is not valid TOML"),
    "no games": (["train", "tiny.toml", "environment.name=alfworld", "environment.options={}"], "set ALFWORLD_DATA"),
    "not a run": (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
    "a folder that is not a run": (["train", "--resume", "."], ". is not a run folder"),
    "eval of no run": (["eval", "nowhere"], "nowhere is not a run folder"),
    "unknown method": (["train", "tiny.toml", "method=grp"], "unknown method 'grp'. Did you mean 'grpo'?"),
    "unknown method option": (["train", "tiny.toml", "method.temprature=1"], "Did you mean 'temperature'?"),
    "option of aem": (["train", "tiny.toml", "aem=false", "method.scope=batch"], "belongs to aem, which is off"),
    "option of a wrong type": (["train", "tiny.toml", "method.temperature=hot"], "'hot': expected float"),
    "unknown environment": (["train", "tiny.toml", "environment.name=hausehold"], "Did you mean 'household'?"),
    "environment option": (["train", "tiny.toml", "environment.options.sizes=3"], "Did you mean 'size'?"),
    "value of an option": (["train", "tiny.toml", "environment.options.size=tin"], "expected one of tiny, small"),
    "type of an option": (["train", "tiny.toml", "environment.options.num_train=all"], "num_train='all'"),
    "no games to train on": (["train", "tiny.toml", "environment.options.num_train=0"], "1 or more"),
    "unknown split": (["train", "tiny.toml", "environment.train_split=training"], "Did you mean 'train'?"),
    "unknown held-out split": (["train", "tiny.toml", "environment.eval_split=vali"], "Did you mean 'valid'?"),
    "no such module": (["train", "environment.name=nowhere:Door"], "cannot import 'nowhere'"),
    "broken module": (["train", "environment.name=broken:Door"], "No module named 'nothing_like_it'"),
    "no such factory": (["train", "environment.name=doors:Dor"], "Did you mean 'Door'?"),
    "no factory": (["train", "environment.name=doors:__name__"], "is not a factory of environments"),
    "option of a factory": (["train", *QUICK, "environment.options.wide=3"], "Did you mean 'width'?"),
    "split of a factory": (["train", *QUICK, "environment.eval_split=vald"], "Did you mean 'valid'?"),
    "no demonstrations": (["train", *QUICK, "warmstart.steps=1"], "warmstart.steps=0"),
    "unknown device": (["train", *QUICK, "run.device=gpu"], "run.device='gpu'"),
    "a study for a recipe": (["train", "study.toml"], "'recipes' is a key of a study"),
    "a section as a value": (["train", "tiny.toml", "model=smollm2"], "such as model.name=smollm2"),
    "device": (["train", *QUICK, "run.device=gpu"], "expected auto, cpu, cuda or mps"),
    "a recipe for a study": (["study", "recipe.toml"], "'environment' is a key of a recipe"),
    "config: unknown key": (["config", "tiny.toml", "run.stepz=1"], "Did you mean 'steps'?"),
    "check-env: unknown": (["check-env", "hausehold"], "Did you mean 'household'?"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_and_changes_nothing(case, here, capsys):
    arguments, expected = BAD[case]
    before = tree(here)
    assert expected in refused(capsys, *arguments)
    assert tree(here) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--", "tiny.toml", "run.steps=1"],
        ["train", "tiny.toml", "--", "run.steps=1"],
        ["train", "tiny.toml", "run.steps=1", "--"],
        ["config", "--", "tiny.toml", "run.steps=1"],
        ["study", "tiny.toml", "--jobs", "2", "--", "run.steps=1"],
        ["eval", "--episodes", "5", "--", "tiny.toml", "run.steps=1"],
        ["eval", "tiny.toml", "--episodes", "5", "--", "run.steps=1"],
        ["eval", "tiny.toml", "--episodes", "5", "run.steps=1"],
    ],
)
def test_two_dashes_end_the_options(arguments):
    options = vars(_parse(arguments))
    named = next(options[name] for name in ("recipe", "study", "run_folder") if name in options)
    assert (str(named), options["overrides"]) == ("tiny.toml", ["run.steps=1"])


def test_behind_two_dashes_nothing_is_an_option(capsys):
    assert _parse(["train", "tiny.toml", "--", "--resume"]).overrides == ["--resume"]
    assert _parse(["eval", "run", "--episodes", "5", "--", "--panel"]).overrides == ["--panel"]
    for arguments in (["train", "tiny.toml", "--stepz", "--", "run.steps=1"], ["methods", "--", "grpo"]):
        with pytest.raises(SystemExit):
            _parse(arguments)
        assert "unrecognized arguments" in one_line(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "a", "b", "--", "c", "d"],
        ["compare", "a", "b", "--against", "c", "d"],
        ["compare", "--against", "c", "d", "--", "a", "b"],
        ["compare", "a", "b", "--", "c", "d", "--step", "3"],
    ],
)
def test_in_compare_two_dashes_come_before_the_baseline(arguments):
    options = _parse(arguments)
    assert (options.runs, options.against) == ([Path("a"), Path("b")], [Path("c"), Path("d")])


def test_compare_takes_one_baseline_and_loses_none(capsys):
    with pytest.raises(SystemExit):
        _parse(["compare", "a", "--", "b", "--", "c"])
    assert "unrecognized arguments: -- c" in one_line(capsys.readouterr())


def test_an_existing_run_is_neither_overwritten_nor_waited_for(here, capsys):
    (here / "runs" / "tiny").mkdir(parents=True)
    (here / "runs" / "tiny" / "notes.txt").write_text("mine")
    before = tree(here)
    line = refused(capsys, "train", "tiny.toml")
    assert line.endswith("runs/tiny exists and is never overwritten; choose another name with run.name=tiny-2\n")
    assert tree(here) == before
    (here / "runs" / "tiny" / "config.json").write_text("{}")
    assert "resume it with `turnwise train --resume runs/tiny`" in refused(capsys, "train", "tiny.toml")


@pytest.mark.parametrize("override", ["update.learning_rate=1", "run.name=b", "method=gigpo", "other.toml"])
def test_a_run_that_has_begun_keeps_its_settings(override, finished, capsys):
    before = tree(finished)
    line = refused(capsys, "train", "--resume", str(finished), override)
    assert repr(override) in line
    assert "only run.steps, run.threads, evaluate.*, checkpoint.*, engine.*, log.* and store.damaged" in line
    assert tree(finished) == before


def test_a_broken_checkpoint_is_named(tmp_path, capsys):
    folder = loop.train(small_config(tmp_path, run={"steps": 1}))
    damaged = folder.checkpoints / "step-000001"
    (damaged / "model.safetensors").write_bytes(b"junk")
    before = tree(tmp_path)
    for command in (["train", "--resume", str(folder.path), "run.steps=2"], ["eval", str(folder.path)]):
        line = refused(capsys, *command)
        assert f"cannot load the checkpoint {damaged} (" in line
        assert "remove it" in line
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--step", "7"], "no checkpoint of step 7; saved steps: 0, 1, 2"),
        (["--split", "vald"], "Did you mean 'valid'?"),
        (["--environment", "hausehold"], "Did you mean 'household'?"),
        (["evaluate.temprature=1"], "Did you mean 'temperature'?"),
        (["evaluate.episodes=4"], "does not affect an evaluation; use --episodes N"),
        (["run.seed=7"], "use --seeds N for the first N"),
        (["method=gigpo"], "the policy is already trained"),
        (["rollout.group_size=3"], "plays every task once per seed"),
        (["model.hidden_size=32"], "the checkpoint has its own model and conversation format"),
        (["prompt.system=Play."], "the checkpoint has its own model and conversation format"),
        (["measures=entropy"], "the policy is already trained"),
    ],
)
def test_a_wrong_evaluation_is_one_line(finished, capsys, arguments, expected):
    before = tree(finished)
    assert expected in refused(capsys, "eval", str(finished), *arguments)
    assert tree(finished) == before


@pytest.mark.parametrize("option", ["--episodes", "--seeds"])
@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_numbers_of_episodes_and_seeds_are_positive(finished, capsys, option, value):
    with pytest.raises(SystemExit) as caught:
        main(["eval", str(finished), option, value])
    assert caught.value.code == 2
    assert f"argument {option}: expected a whole number, 1 or more, got '{value}'" in one_line(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'. Did you mean 'train'?"),
        (["analyse", "dynamic", "a"], "invalid choice: 'dynamic'. Did you mean 'dynamics'?"),
        (["methods", "more"], "unrecognized arguments: more"),
        (["train", "tiny.toml", "--resum"], "expected one argument"),
        (["config", "tiny.toml", "--verbose"], "unrecognized arguments: --verbose"),
        (["eval"], "the following arguments are required: RUN;"),
        (["analyse", "noise", "a", "--seed", "-1"], "--seed: expected "),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_line(capsys, arguments, expected):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert expected in one_line(capsys.readouterr())


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


def test_eval_in_markdown_and_what_comes_next(finished, capsys):
    assert main(["eval", str(finished), "--episodes", "4", "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# own-")
    assert "| all | 4 |" in out
    assert err.splitlines()[-1].startswith(f"next: turnwise report {finished}")
    assert main(["eval", str(finished), "--episodes", "4"]) == 0
    assert "|" not in capsys.readouterr().err


FAULTY = ["environment.name=doors:Faulty", "run.name=faulty"]


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


COMMAND = [sys.executable, "-m", "turnwise.cli"]
HEAVY = ("torch", "transformers", "tokenizers", "pyarrow", "matplotlib", "rich")


@pytest.mark.parametrize("arguments", [["config", "tiny.toml"], ["methods"]])
def test_what_needs_no_torch_imports_none(here, arguments):
    code = f"import sys; from turnwise.cli import main; main({arguments!r}); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in result.stderr.split()}
    assert not loaded & set(HEAVY)


def test_options_of_methods_are_checked_without_run_time_types(here):
    """Under pytest, shapes and types are checked at run time, which a user does not have."""
    command = [*COMMAND, "config", "tiny.toml", "method.temperature=2"]
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
    assert "note: no words(), so that model.name='tiny' cannot play it" in capsys.readouterr().out
    assert main(["check-env", "doors:Random"]) == 2
    assert "another answer" in capsys.readouterr().out


def test_an_interrupt_is_no_traceback(here, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", interrupted)
    assert main(["train", "tiny.toml"]) == 130
    err = capsys.readouterr().err
    assert err.endswith("turnwise: interrupted; no checkpoint was saved; run the same command to start again\n")
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
    def wrong(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(loop, "train", wrong)
    with pytest.raises(ZeroDivisionError):
        main(["train", "tiny.toml"])


def test_without_the_training_extra_it_says_what_to_install(here, capsys, monkeypatch):
    def missing(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(loop, "train", missing)
    assert "torch is not installed; pip install 'turnwise[train]'" in refused(capsys, "train", "tiny.toml")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["methods"], ["config"]])
def test_output_that_cannot_be_written_is_one_line_without_advice_to_resume(here, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("turnwise: cannot write: ")
    assert done.stderr.endswith("Free disk space, and run the command again\n")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_stops_a_training_with_the_way_to_resume(here, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loop, "train", full)
    assert "Resume from the last one with `turnwise train --resume RUN_FOLDER`" in refused(capsys, "train", "tiny.toml")


def test_an_error_without_a_cause_of_the_system_is_told(here, capsys, monkeypatch):
    def strange(*args, **kwargs):
        raise OSError("the archive is odd")

    monkeypatch.setattr(Path, "mkdir", strange)
    assert "the archive is odd" in refused(capsys, "train", *QUICK)


def test_an_interrupt_while_modules_are_imported_is_one_line(here):
    """As with Ctrl-C right after the command."""
    code = "import sys, turnwise.__main__ as start\n"
    code += "class Slow:\n    def find_spec(self, name, *_):\n        if name == 'pydantic': raise KeyboardInterrupt\n"
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
