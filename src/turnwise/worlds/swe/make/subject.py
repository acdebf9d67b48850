"""Run a package's tests with and without a bug: which pass, which reach a line, and how a change affects them."""

import ast
import contextlib
import dataclasses
import json
import math
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from turnwise.base.cache import made_aside
from turnwise.base.errors import DataError
from turnwise.worlds.swe.bubblewrap import BubblewrapWorkspace
from turnwise.worlds.swe.commands import apply, begin, put, read, test_paths
from turnwise.worlds.swe.make import reach
from turnwise.worlds.swe.make.packages import Package, source_files, test_files
from turnwise.worlds.swe.patches import half_patch, touched
from turnwise.worlds.swe.repositories import site_names
from turnwise.worlds.swe.system import SITE, python_system
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.testing import run_tests
from turnwise.worlds.swe.workspace import Files, Limits, Workspace


class Kept(dict[str, Any]):
    """Answers by question, one per line; a partly written line is ignored and computed again.

    Args:
        path: The file; created if it does not exist.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = path, threading.Lock()
        with path.open("a+b") as file:
            file.seek(0)
            written = file.read()
            file.truncate(written.rfind(b"\n") + 1)
        super().__init__(json.loads(line) for line in written.split(b"\n")[:-1])

    def __setitem__(self, question: str, answer: Any) -> None:
        with self._lock, self._path.open("ab") as file:
            super().__setitem__(question, answer)
            file.write(json.dumps([question, answer]).encode() + b"\n")


_REACH = Path(reach.__file__).read_bytes()
_LONGEST_S = 100.0
"""Time limit of a package's tests (seconds)."""
_PATIENCE = 2.0
"""A bug counts as hanging if its tests take this many times the processor time of all traced tests, at least 3 s."""


class Reached(BaseModel):
    """What the sandbox reports about the package's tests: the functions that each file enters, and their total time."""

    entered: dict[str, list[tuple[str, int, int]]]
    seconds: Annotated[float, Field(ge=0, le=1e4)]


_REACHED = TypeAdapter(Reached)


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """What a change does: the tests that fail with it, and what they say."""

    failing: frozenset[str]
    said: dict[str, str]


class Subject:
    """A package's snapshot.

    Raises:
        DataError: Too few of its tests pass as it is, or the tests' packages have it, too.
    """

    def __init__(self, package: Package, snapshot: Path, site: Path, aside: Path):
        self.package, self.snapshot, self.kept = package, snapshot, Kept(aside / "answers.jsonl")
        self._system = python_system(site=site)
        self._limits, self._lower = Limits(memory_mb=1024), snapshot
        self._tests = test_files(snapshot)
        self.sources = dict(_read_sources(snapshot))
        tops = {path.removeprefix("src/").partition("/")[0].removesuffix(".py") for path in self.sources}
        if twice := tops & site_names(self._system):
            raise DataError(
                f"make-swe-tasks: {package.name} has {min(twice)!r}, which the tests' own packages have, too"
            )
        if "begin" not in self.kept:
            self.kept["begin"] = self._begin()
        known = self.kept["begin"]
        self.passing = frozenset[str](known["passing"])
        """Tests that pass, each time."""
        self._entered: dict[str, list[tuple[str, int, int]]] = known["entered"]
        if not (aside / "compiled").is_dir():
            with made_aside(aside / "compiled") as filled:
                self._compile(filled)
        self._lower = aside / "compiled"
        self._processor_s = math.ceil(max(3.0, _PATIENCE * known["seconds"]))

    def reaching(self, path: str, line: int) -> list[str]:
        """Test files that enter the function of a line."""
        return [
            file
            for file, spans in sorted(self._entered.items())
            if any(where == path and first <= line <= last for where, first, last in spans)
        ]

    def effect(self, files: Files, tests: list[str]) -> Effect | None:
        """Run test files with a change; None if they do not run to the end."""
        limits = {"seconds": _LONGEST_S, "processor_s": self._processor_s}
        with contextlib.closing(self._workspace()) as workspace:
            put(workspace, files)
            report = run_tests(workspace, tests, python=self._system.python, path=[SITE], **limits)
        if report.problem or report.broken:
            return None
        failing = frozenset(name for name in self.passing - report.passed if _file(name) in tests)
        return Effect(failing, dict(report.failed))

    def is_valid(self, task: SweTask) -> bool:
        """Whether the grader accepts the right answer, and refuses half of it."""
        question = f"valid {task.instance_id}"
        if question not in self.kept:
            half = half_patch(task.patch)
            self.kept[question] = half is not None and self._accepts(task, task.patch) and not self._accepts(task, half)
        return self.kept[question]

    def _accepts(self, task: SweTask, patch: str) -> bool:
        with contextlib.closing(self._workspace()) as workspace:
            begin(workspace, task, hide=False)
            apply(workspace, patch)
            if not all(_parses(read(workspace, path)) for path in touched(patch)):
                return False
            report = run_tests(workspace, test_paths(task), python=self._system.python, path=[SITE], seconds=_LONGEST_S)
        return not report.problem and report.passed.issuperset(task.named_tests)

    def _begin(self) -> dict[str, object]:
        """Run all tests as they are: twice for their outcomes, and once for what they enter.

        The second time the order is reversed: tests that pass only after other test files would fail when only some are
        run.
        """
        name, version, tests = self.package.name, self.package.version, self._tests
        passing: list[frozenset[str]] = []
        for order in (tests, tests[::-1]):
            with contextlib.closing(self._workspace()) as workspace:
                report = run_tests(workspace, order, python=self._system.python, path=[SITE], seconds=_LONGEST_S)
            if report.problem:
                raise DataError(f"make-swe-tasks: the tests of {name} {version} do not run: {report.problem}")
            passing.append(report.passed)
        each = frozenset(name for name in passing[0] & passing[1] if _file(name) in tests)  # a report may name any file
        if len(each) < 10:
            raise DataError(f"make-swe-tasks: {len(each)} tests of {name} {version} pass, expected 10 or more")
        return {"passing": sorted(each), **self._reach(sorted({_file(test) for test in each}))}

    def _reach(self, tests: list[str]) -> dict[str, object]:
        with contextlib.closing(self._workspace()) as workspace:
            root, program = workspace.root, f"{workspace.scratch}/reach.py"
            workspace.run(f"cat > {program}", stdin=_REACH)
            request = {"root": root, "path": [SITE], "sources": [f"{root}/src", root], "tests": tests}
            outcome = workspace.run(
                f"exec {shlex.quote(self._system.python)} -I {program}",
                stdin=json.dumps(request).encode(),
                seconds=3 * _LONGEST_S,
                output_chars=32_000_000,
            )
        try:
            return _REACHED.validate_json(outcome.output).model_dump()
        except ValidationError:
            said = outcome.output.decode(errors="replace")[-300:]
            raise DataError(
                f"make-swe-tasks: the tests of {self.package.name} cannot be traced, exit status {outcome.code}: {said}"
            ) from None

    def _compile(self, target: Path) -> None:
        """Copy the snapshot with its bytecode and its tests', because compiling takes about as long as running.

        The bytecode contains the correct code, so an agent's copy must not have it.
        """
        with contextlib.closing(self._workspace()) as workspace:
            run_tests(workspace, self._tests, python=self._system.python, path=[SITE], seconds=_LONGEST_S)
            made = workspace.changes()
        shutil.copytree(self.snapshot, target, dirs_exist_ok=True)
        for path, content in made.items():
            if path.endswith(".pyc") and content is not None:
                (target / path).parent.mkdir(exist_ok=True)
                (target / path).write_bytes(content)

    def _workspace(self) -> Workspace:
        return BubblewrapWorkspace(self._lower, self._system, self._limits)


def _read_sources(snapshot: Path) -> Iterator[tuple[str, str]]:
    """Yield the package's own code, without files that are not UTF-8 or end lines differently: patches would fail."""
    for path in source_files(snapshot):
        content = (snapshot / path).read_bytes()
        try:
            text = content.decode()
            ast.parse(text)
        except (UnicodeDecodeError, SyntaxError):
            continue
        if "\r" not in text:
            yield path, text


def _file(test: str) -> str:
    return test.partition("::")[0]


def _parses(content: bytes | None) -> bool:
    try:
        ast.parse(content or b"")
    except (SyntaxError, ValueError):
        return False
    return True
