"""Load tasks of software repair from JSON Lines with the fields of SWE-bench or R2E-Gym."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError
from turnwise.base.files import replacing
from turnwise.base.jsonl import check_unique, read_objects
from turnwise.environments.splits import named_split
from turnwise.worlds.swe import forms

TIERS = (1, 2, 3)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweTask:
    """One bug to repair. The first fields are SWE-bench's, those from `bug_patch` on are ours or R2E-Gym's."""

    instance_id: str  # its name; decides the split
    repo: str  # name of the repository
    base_commit: str  # version of the repository before `bug_patch`
    problem_statement: str  # description of the bug
    fail_to_pass: tuple[str, ...]  # names of tests that fail now and must pass
    pass_to_pass: tuple[str, ...]  # names of tests that must still pass
    patch: str = ""  # the reference patch; empty if unknown
    test_patch: str = ""  # patch that adds the tests that grade
    version: str = ""  # prepared Python environment of the tests
    bug_patch: str = ""  # patch that adds the bug to the snapshot
    hidden_files: tuple[str, ...] = ()  # tests of the snapshot that are hidden from the agent
    test_files: tuple[tuple[str, str], ...] = ()  # further tests that grade, by path
    # Difficulty: 1 (the statement names file and line), 2 (it names the function), 3 (it says what happens only); 0:
    # not rated
    tier: int = 0
    docker_image: str = ""  # image with the repository

    def __post_init__(self) -> None:
        for field in ("instance_id", "problem_statement", "patch", "test_patch", "bug_patch"):
            forms.text(field, getattr(self, field))
        forms.name("repo", self.repo)
        forms.version("base_commit", self.base_commit)
        if self.version:
            forms.name("version", self.version)
        if self.docker_image:
            forms.image("docker_image", self.docker_image)
        for test in self.named_tests:
            forms.text("the name of a test", test)
            if "::" in test:
                forms.path("the file of a test", test.partition("::")[0])
        for path in self.hidden_files:
            forms.path("a path of hidden_files", path)
        for path, content in self.test_files:
            forms.path("a path of test_files", path)
            forms.text("a file of test_files", content)

    @property
    def named_tests(self) -> tuple[str, ...]:
        """Names of all tests that must pass."""
        return (*self.fail_to_pass, *self.pass_to_pass)


def load_tasks(path: Path) -> list[SweTask]:
    """Load tasks.

    Raises:
        DataError: The file is malformed or empty, or has a name twice.
    """
    tasks = [_task(path, number, line) for number, line in read_objects(path)]
    check_unique(path, "tasks", "instance_id", [task.instance_id for task in tasks])
    return tasks


def write_tasks(path: Path, tasks: Sequence[SweTask]) -> None:
    """Save tasks in SWE-bench's fields, and in our fields that are not empty; replaces the file atomically."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for task in tasks:
            fields = dataclasses.asdict(task)
            for name in ("fail_to_pass", "pass_to_pass"):
                fields[name.upper()] = json.dumps(fields.pop(name))  # a text that holds a list, as in SWE-bench
            fields = {name: value for name, value in fields.items() if value not in ("", (), 0)}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


def split_tasks(tasks: Sequence[SweTask], split: str, tiers: Sequence[int] = ()) -> list[SweTask]:
    """Return the tasks of a split, by a hash of their names, independent of other tasks.

    Args:
        tasks: All tasks.
        split: "train" (eight tenths), "valid", "test" or "all".
        tiers: Difficulties to keep; empty: all.

    Raises:
        ConfigError: The split is unknown.
        DataError: The split is empty.
    """
    mine = named_split(split, of="swe")
    chosen = [task for task in tasks if mine(task.instance_id) and (not tiers or task.tier in tiers)]
    if not chosen:
        of = f" of tiers {list(tiers)}" if tiers else ""
        raise DataError(f"split {split!r}{of} is empty: there are {len(tasks)} tasks in all; split 'all' has them.")
    return chosen


def _task(path: Path, number: int, line: dict[str, Any]) -> SweTask:
    try:
        return _from_r2e(line) if "expected_output_json" in line else _from_swe_bench(line)
    except KeyError as error:
        raise DataError(
            f"{path}, line {number}: has no field {error}; expected those of SWE-bench (instance_id, repo, "
            "base_commit, problem_statement, FAIL_TO_PASS, PASS_TO_PASS) or of R2E-Gym (docker_image, "
            "expected_output_json, ...)."
        ) from error
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: {str(error).rstrip('.')}.") from error


def _from_swe_bench(line: dict[str, Any]) -> SweTask:
    texts = ("instance_id", "repo", "base_commit", "problem_statement")
    optional = ("patch", "test_patch", "version", "bug_patch", "docker_image")
    image = line.get("image_name") or ""  # as SWE-smith calls it
    return SweTask(
        **{name: str(line[name]) for name in texts},
        **({"docker_image": image} | {name: str(line.get(name) or "") for name in optional if line.get(name)}),
        fail_to_pass=_names(line["FAIL_TO_PASS"]),
        pass_to_pass=_names(line["PASS_TO_PASS"]),
        hidden_files=_names(line.get("hidden_files") or []),
        test_files=tuple((name, text) for name, text in line.get("test_files") or ()),
        tier=int(line.get("tier") or 0),
    )


def _from_r2e(line: dict[str, Any]) -> SweTask:
    """Read R2E-Gym's fields, which list the tests that pass after the repair, but not those that fail before it."""
    for field in ("repo_name", "commit_hash"):
        forms.name(field, line[field])
    expected = _json(line["expected_output_json"])
    run = _json(line.get("execution_result_content") or "{}")
    names, texts = run.get("test_file_names") or [], run.get("test_file_codes") or []
    return SweTask(
        instance_id=f"{line['repo_name']}-{line['commit_hash']}",
        repo=line["repo_name"],
        base_commit=f"{line['commit_hash']}^",
        problem_statement=line["problem_statement"],
        fail_to_pass=tuple(name for name, status in expected.items() if status == "PASSED"),
        pass_to_pass=(),
        test_files=tuple((f"r2e_tests/{name}", text) for name, text in zip(names, texts, strict=True)),
        docker_image=line["docker_image"],
    )


def _names(value: Any) -> tuple[str, ...]:
    """Read a list of names, or a text that holds one as JSON."""
    names = _json(value)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"expected a list of names of tests, got {str(value)[:60]!r}")
    return tuple(names)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
