"""Switch off the ideas of features one at a time, and run the test of each.

    python -m tests.ideas.run                  # all of them
    python -m tests.ideas.run "store rlep"     # some

Prints a line per feature: `failed` is what should happen. Each runs in a fork of this process, which has imported what
takes long and nothing of turnwise.
"""

import contextlib
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
import transformers

from tests.ideas.table import IDEAS, Changed, Idea

TESTS = Path(__file__).parents[1]
RESULTS = {0: "passed", 1: "failed"}
assert pyarrow.parquet, transformers


class Off:
    """A pytest plugin that switches an idea off, after the configuration of tests and before any test is imported."""

    def __init__(self, idea: Idea):
        self._idea = idea

    def pytest_sessionstart(self) -> None:
        """Put the replacements where they belong."""
        for target, replacement in self._idea.off.items():
            put(target, replacement)


def place(target: str) -> tuple[Any, str, str]:
    """Return the owner, name and key of `module:attribute.attribute` or `module:MAPPING/key`, which must be there."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    path, _, key = path.partition("/")
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    assert hasattr(owner, name), target
    assert not key or key in getattr(owner, name), target
    return owner, name, key


def put(target: str, replacement: Any) -> None:
    """Put a replacement at a place."""
    owner, name, key = place(target)
    old = getattr(owner, name)
    if isinstance(replacement, Changed):
        replacement = replacement.change(old)
    if key:
        old[key] = replacement
    else:
        setattr(owner, name, replacement)


def result_of(idea: Idea, log: Path) -> str:
    """Run the test of an idea that is switched off in a fork: "failed", "passed", or "error" if it could not run."""
    if (child := os.fork()) == 0:
        code = 3
        with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            quiet = "ignore::pytest.PytestAssertRewriteWarning"  # of what this process has imported
            arguments = ["-q", "-x", "-W", quiet, "-p", "no:cacheprovider", str(TESTS / idea.test)]
            try:
                code = int(pytest.main(arguments, plugins=[Off(idea)]))
            except BaseException:
                traceback.print_exc(file=file)
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return RESULTS.get(code, "error")


def main(names: list[str]) -> int:
    """Run the tests of the named features, or of all."""
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names or IDEAS):
            log = Path(folder) / str(number)
            result = result_of(IDEAS[name], log)
            print(f"{result:6}  {name}", flush=True)
            if result != "failed":
                wrong += 1
                print(log.read_text()[-3000:] if result == "error" else f"        {IDEAS[name].test}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
