"""The conformance test in processes of its own: hangs, crashes and hash seeds."""

import re
import time
from typing import Any

import pytest

from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.environments.check_apart import check_apart
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite


def check(name: str, kind: str = "", **more: Any) -> list[str]:
    options = {"kind": kind} if kind else {}
    name = f"tests.environments.hanging:{name}"
    config = EnvironmentConfig(name=name, options=options, **{"step_timeout_s": 20.0, **more})
    return [problem.what for problem in check_apart(config).problems]


@pytest.mark.parametrize("name", ["Sound", "Waiting", "Own"])
def test_a_sound_environment_has_no_problems(name):
    assert check(name) == []


def test_the_tasks_are_those_of_the_split_that_trains():
    assert check("Named", train_split="mine") == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["Sound", "Waiting"])
def test_a_step_that_hangs_is_stopped(workers, name):
    begun = time.monotonic()
    told = check(name, "hang", step_timeout_s=0.5, workers=workers)
    assert told == ["step('') gave no answer within step_timeout_s=0.5"]
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(("kind", "call"), [("start hangs", "start()"), ("constructor hangs", "the constructor")])
def test_what_hangs_before_is_stopped_too(kind, call):
    assert check("Sound", kind, step_timeout_s=0.5) == [f"{call} gave no answer within step_timeout_s=0.5"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("os._exit", "step('') ended its process (exit code 3)"),
        ("segfault", "step('') ended its process (signal SIGSEGV)"),
        ("sys.exit", "step('') raised SystemExit: enough"),
    ],
)
def test_an_environment_that_ends_its_process_is_reported(kind, told):
    assert check("Sound", kind) == [told]


def test_what_depends_on_the_hash_seed_is_found():
    [told] = check("Sound", "hash")
    assert re.match(
        r"observation at turn 0 of task 0 depends on the interpreter: '.*' and '.*' with PYTHONHASHSEED=1 and 2", told
    )
    [told] = check("Sound", "hash offered")
    assert told.startswith("admissible at turn 0 of task 0 depends on the interpreter")
    assert check("Watch", "hash") == []


def test_what_a_suite_raises_is_reported():
    [told] = check("Own", "suite")
    assert told.startswith("loading the environment raised OSError: no games here at __init__ (hanging.py:")


def test_a_suite_without_names_of_its_tasks_is_named_by_their_texts():
    suite = make_suite(EnvironmentConfig(name="tests.environments.test_check_apart:Nameless"))
    assert suite.task_name(3) == "3"


class Nameless:
    """Tasks without names."""

    def __init__(self, config):
        pass

    def tasks(self, split):
        return range(4)


def test_a_suite_without_a_configuration_says_what_to_write():
    with pytest.raises(
        ConfigError,
        match=r"has tasks\(\), so it is a suite, .*; write def __init__\(self, config: EnvironmentConfig, \*",
    ) as it:
        check("NoConfig")
    assert "\n" not in str(it.value)
    with pytest.raises(
        ConfigError, match=r"is called with a seed .*; write def __init__\(self, seed: int, \*, <options>\)"
    ):
        check("NoSeed")


def test_a_long_game_is_sound_within_its_own_limit(capsys):
    """Two hundred turns are endless only where the environment does not say otherwise."""
    assert main(["check-env", "household", "environment.max_steps=230"]) == 0
    assert "household: sound" in capsys.readouterr().out
