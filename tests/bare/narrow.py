"""A plugin for pytest: in the chosen files, deselect the tests that nothing a machine lacks can change.

A test stays if it has a mark that may skip it, or if its code asks what is there or starts a process: its own code,
that of its fixtures, and that of the tests' functions and classes which these name, however deep. A file stays whole
if it, or a helper, names an optional program that turnwise itself starts: a test that forgets to say that it needs one
looks like any other.
"""

import functools
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bare.choose import DEPENDS, helpers, is_aside
from tests.needs import PROGRAMS

ONLY_TESTS = {"chromium", "chromium-browser", "google-chrome", "make", "node"}
"""Programs that helpers of the tests start, which look for them first."""
STARTED = re.compile(rf"""["'](?:{"|".join(map(re.escape, sorted(PROGRAMS.keys() - ONLY_TESTS)))})["']""")
AT_ONCE = re.compile(r"^(?![@\s]|def |class |\w+ = needs\().*", re.MULTILINE)
"""Code that runs when a file is imported; marks are found where they are used."""
STARTS = re.compile(r"\bsubprocess\.|\bsys\.executable\b|\bos\.exec|\bgetfixturevalue\(")
"""Starts a process, or asks for a fixture that its arguments do not name."""
NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that may depend on the machine."""
    kept = [item for item in items if may_depend(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def may_depend(item: pytest.Item) -> bool:
    """Whether something that the machine lacks could change what a test does."""
    if any(item.iter_markers("skipif")) or any(item.iter_markers("skip")) or stays_whole(item.path):
        return True
    made: dict[str, Any] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 (private to pytest)
    fixtures = {each.func for several in made.values() for each in several}
    return any(map(asks_or_starts, {item.function, *fixtures}))  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def asks_or_starts(function: Any) -> bool:
    """Whether code that a function reaches asks what is there, or starts a process."""
    return any(DEPENDS.search(code) or STARTS.search(code) for code in reachable([function]))


@functools.cache
def stays_whole(path: Path) -> bool:
    """Whether all tests of a file are run."""
    seen: set[Path] = set()
    todo = [path]
    while todo:
        if (file := todo.pop()) in seen or is_aside(file) or not file.is_file():
            continue
        seen.add(file)
        text = file.read_text()
        if STARTED.search(text) or (file == path and DEPENDS.search("\n".join(AT_ONCE.findall(text)))):
            return True
        todo += helpers(file, text)
    return False


def reachable(objects: list[Any]) -> Iterator[str]:
    """Yield the code of functions and classes, and of those of the tests that it names."""
    seen: set[int] = set()
    while objects:
        each = inspect.unwrap(objects.pop())
        if id(each) in seen or not str(getattr(each, "__module__", "")).startswith(("tests.", "test_", "conftest")):
            continue
        seen.add(id(each))
        code = inspect.getsource(each)
        yield code
        known = vars(inspect.getmodule(each) or types)
        names = set(NAME.findall(code))
        for value in [known[name] for name in names & known.keys()]:
            if isinstance(value, types.ModuleType) and value.__name__.startswith("tests."):
                objects += [vars(value)[name] for name in names & vars(value).keys()]
            objects.append(value)
        objects = [one for one in objects if inspect.isfunction(inspect.unwrap(one)) or inspect.isclass(one)]
