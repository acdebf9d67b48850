"""Modules under the names that they had before version 0.3."""

import importlib
import subprocess
import sys
import warnings

import pytest

from turnwise.base.moved import FORMER, RENAMED, Moved

NAMES = {old: f"{to}.{old.rpartition('.')[2]}" for to, names in FORMER.items() for old in names.split()} | RENAMED


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_former_name_is_todays_module_and_is_warned_of_once(name, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Moved("turnwise"), *sys.meta_path])
    monkeypatch.delitem(sys.modules, f"turnwise.{name}", raising=False)
    with pytest.warns(DeprecationWarning, match=f"turnwise.{name} is now turnwise.{NAMES[name]};"):
        found = importlib.import_module(f"turnwise.{name}")
    assert found is importlib.import_module(f"turnwise.{NAMES[name]}")
    assert found.__spec__ is not None
    assert found.__spec__.name == f"turnwise.{NAMES[name]}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.import_module(f"turnwise.{name}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "statement",
    [
        "from turnwise.methods.grpo import grpo",
        "from turnwise.methods import grpo",
        "import turnwise; grpo = turnwise.methods.grpo",  # the public name
        "import turnwise.methods; grpo = turnwise.methods.grpo",
    ],
)
def test_users_statements_still_work(statement):
    done = run("-c", f"{statement}; import turnwise; assert grpo is turnwise.grpo; print(grpo().name)")
    assert done.stdout == "grpo(convention='turnwise')\n", done.stderr
    former = "turnwise.methods" in statement[:28]
    assert done.stderr.count("Warning") == done.stderr.count("its former name") == former


def test_a_module_can_be_run_under_its_former_name():
    done = run("-m", "turnwise.analysis", "--help")
    assert done.stdout.startswith("Write the reference page of biases"), done.stderr


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'turnwise\.nothing'"):
        importlib.import_module("turnwise.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"turnwise\.credit\.nothing"):
        importlib.import_module("turnwise.credit.nothing")
