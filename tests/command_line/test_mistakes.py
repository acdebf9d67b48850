"""The command line: a mistake is one line on stderr, exit code 2, and nothing is created or lost."""

from pathlib import Path

import pytest

from tests.command_line.outcomes import one_line, refused, tree
from tests.command_line.settings import QUICK
from tests.toys import small_config
from turnwise.commands.cli import _parse, main
from turnwise.train import loop

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
    "more threads than torch takes": (["train", *QUICK, f"run.threads={10**20}"], "less than or equal to 4096, got 1"),
    "no override": (["train", "tiny.toml", "run.steps"], "does not have the form section.key=value"),
    "missing recipe": (["train", "tine.toml"], "Did you mean 'tiny.toml'?"),
    "bad TOML": (["train", "bad.toml"], "bad.toml is not valid TOML"),
    "no games": (["train", "tiny.toml", "environment.name=alfworld", "environment.options={}"], "set ALFWORLD_DATA"),
    "not a run": (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
    "a folder that is not a run": (["train", "--resume", "."], ". is not a run folder"),
    "eval of no run": (["eval", "nowhere"], "nowhere is not a run folder"),
    "method without a name": (["train", "tiny.toml", "method=+"], "unknown method ''. See `turnwise methods`"),
    "a folder for a recipe": (["train", "/"], "/: Is a directory. `turnwise recipes` lists those of the package\n"),
    "long recipe": (["train", "x" * 5000], f"cannot use {'x' * 60}...{'x' * 40}: File name too long\n"),
    "long key": (["train", "tiny.toml", f"run.{'x' * 5000}=1"], f" 'run.{'x' * 55}...{'x' * 38}'. Known: "),
    "unknown method": (["train", "tiny.toml", "method=grp"], "unknown method 'grp'. Did you mean 'grpo'?"),
    "unknown method option": (
        ["train", "tiny.toml", "method=grpo+aem", "method.temprature=1"],
        "Did you mean 'temperature'?",
    ),
    "option of aem": (
        ["train", "tiny.toml", "method=grpo", "method.scope=batch"],
        "has no option 'scope'; aem and empg have it, as in method = \"grpo+aem\"",
    ),
    "option of a wrong type": (
        ["train", "tiny.toml", "method=grpo+aem", "method.temperature=hot"],
        "'hot': expected float",
    ),
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "deep.toml"], "deep.toml is not valid TOML"),
        (["study", "deep.toml"], "deep.toml is not valid TOML"),
        (["train", "tiny.toml", f"method=gae(a={'[' * 2000})"], "expected options as in gae(option=1.0"),
    ],
)
def test_too_many_brackets_are_one_line(arguments, said, here, capsys):
    (here / "deep.toml").write_text(f"a = {'[' * 2000}")
    assert said in refused(capsys, *arguments)


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
