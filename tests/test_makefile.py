"""`make test-quick` names tests that exist, and among them those that it promises."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.catalogue import ALL
from tests.needs import needs

ROOT = Path(__file__).parents[1]


def quick() -> list[str]:
    """What `make test-quick` gives to pytest: files, folders and single tests."""
    command = ["make", "--dry-run", "--no-print-directory", "test-quick"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in printed.splitlines() if " -m pytest " in line)
    return [word for word in shlex.split(line) if word.startswith("tests/")]


@needs("make")
def test_the_quick_tests_exist_and_hold_what_is_promised():
    named = quick()
    for word in named:
        path, _, test = word.partition("::")
        assert (ROOT / path).exists(), f"make test-quick names {path}, which does not exist"
        if test:
            function, _, parameter = test.removesuffix("]").partition("[")
            tests = [
                node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
            ]
            assert function in tests, f"make test-quick names {word}; {path} has no such test"
            assert not parameter or parameter in ALL, (
                f"make test-quick names {word}; tests.catalogue has no {parameter}"
            )
    files = {word.partition("::")[0] for word in named}
    assert {"tests/test_segments.py", "tests/test_batch.py", "tests/test_transform.py"} <= files
    for part in ("methods", "properties", "oracle", "known_wrong", "train"):
        assert any(f"{file}/".startswith(f"tests/{part}/") for file in files), f"make test-quick names no tests/{part}"


def test_the_quick_tests_are_recommended():
    assert "make test-quick" in (ROOT / "Makefile").read_text().partition("PYTHON")[0]
    assert "`make test-quick`" in (ROOT / "CONTRIBUTING.md").read_text()


@needs("make")
def test_compiled_files_are_kept_whatever_the_shell_says():
    """A third of the processor time of the tests was compiling, where the shell forbids Python to keep what it did."""
    command = ["make", "--no-print-directory", "--eval", 'told: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"', "told"]
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tests_are_found_without_xdist():
    """The environments of `make crosscheck-...` have none."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", "tests/test_visible.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
