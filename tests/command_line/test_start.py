"""Commands answer before they import what takes longer than the answer."""

import subprocess
import sys

import pytest

SLOW = ("torch", "scipy", "matplotlib", "pyarrow", "transformers")
IMPORTED = "import sys; from turnwise.commands.cli import main; code = main(sys.argv[1:]); print(code, *sys.modules)"


def imported(*arguments: str) -> tuple[int, set[str], str]:
    """Run a command; return its exit code, what it imported, and what it wrote on stderr."""
    done = subprocess.run([sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=True)
    code, *modules = done.stdout.splitlines()[-1].split()
    return int(code), set(modules), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "report RUN", "recredit RUN --method gigpo", "eval RUN", "compare RUN -- RUN", "audit RUN",
        "analyse fidelity RUN", "analyse surprisal RUN",
    ],
)  # fmt: skip
def test_a_run_that_does_not_exist_is_named_before_anything_is_imported(here, command):
    (here / "runs" / "first").mkdir(parents=True)
    (here / "runs" / "first" / "config.json").write_text("{}")
    code, modules, said = imported(*command.replace("RUN", "runs/fist").split())
    assert code == 2
    assert "runs/fist" in said
    assert "'first'" in said
    assert not modules & {*SLOW, "numpy", "pydantic"}


@pytest.mark.parametrize("command", ["report RUN", "recredit RUN --method gigpo", "audit RUN"])
def test_a_configuration_that_is_no_text_is_damaged(here, command):
    (here / "runs" / "first").mkdir(parents=True)
    (here / "runs" / "first" / "config.json").write_bytes(b'{"config": "\xff"}')
    code, _, said = imported(*command.replace("RUN", "runs/first").split())
    assert code == 2
    assert said.startswith("turnwise: runs/first/config.json is damaged: ")
    assert said.count("\n") == 1


def test_settings_need_none_of_the_libraries_that_train(here):
    code, modules, _ = imported("config", "household-tiny-aem")
    assert code == 0
    assert not modules & {*SLOW}


def test_a_study_that_does_not_exist_is_named_without_statistics(here):
    code, modules, said = imported("study", "studdy.toml")
    assert code == 2
    assert "'study.toml'" in said
    assert not modules & {"torch", "scipy", "matplotlib"}
