"""Tasks of software repair, read from JSON Lines in the fields of SWE-bench or of R2E-Gym."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.environments.jsonl import read_objects
from turnwise.environments.splits import named_split
from turnwise.errors import DataError

TIERS = (1, 2, 3)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweTask:
    """One bug to repair. The first fields are SWE-bench's, those from `bug_patch` on are ours or R2E-Gym's.

    Attributes:
        instance_id: Its name; decides the split.
        repo: Name of the repository.
        base_commit: Version of it that the agent begins with, before `bug_patch`.
        problem_statement: What is wrong.
        fail_to_pass: Names of tests that fail now and must pass.
        pass_to_pass: Names of tests that must still pass.
        patch: The right answer; empty where unknown.
        test_patch: Brings the tests that grade.
        version: Which prepared environment the tests run in.
        bug_patch: Brings the bug into the snapshot.
        hidden_files: Tests of the snapshot that the agent does not get.
        test_files: Further tests that grade, by path.
        tier: Difficulty: 1 (the statement names file and line), 2 (it names the function), 3 (it says what happens only); 0: not rated.
        docker_image: Where the repository is installed.
    """

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    patch: str = ""
    test_patch: str = ""
    version: str = ""
    bug_patch: str = ""
    hidden_files: tuple[str, ...] = ()
    test_files: tuple[tuple[str, str], ...] = ()
    tier: int = 0
    docker_image: str = ""

    @property
    def named_tests(self) -> tuple[str, ...]:
        """All tests that must pass."""
        return (*self.fail_to_pass, *self.pass_to_pass)


def load_tasks(path: Path) -> list[SweTask]:
    """Read tasks.

    Raises:
        DataError: The file is broken, empty, or has a name twice.
    """
    tasks = [_task(path, number, line) for number, line in read_objects(path)]
    if not tasks:
        raise DataError(f"{path} holds no tasks.")
    names = [task.instance_id for task in tasks]
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise DataError(f"{path}: instance_id {twice!r} stands for two tasks; they must differ.")
    return tasks


def write_tasks(path: Path, tasks: Sequence[SweTask]) -> None:
    """Write tasks in SWE-bench's fields, and ours where they are not empty; the file is replaced in one move."""
    aside = path.with_suffix(".part")
    with aside.open("w", encoding="utf-8") as file:
        for task in tasks:
            fields = dataclasses.asdict(task)
            for name in ("fail_to_pass", "pass_to_pass"):
                fields[name.upper()] = json.dumps(fields.pop(name))  # a text that holds a list, as in SWE-bench
            fields = {name: value for name, value in fields.items() if value not in ("", (), 0)}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    aside.replace(path)


def split_tasks(tasks: Sequence[SweTask], split: str, tiers: Sequence[int] = ()) -> list[SweTask]:
    """The tasks of a split, by a hash of their names: other tasks in the file change nothing.

    Args:
        tasks: All of them.
        split: "train" (eight tenths), "valid", "test" or "all".
        tiers: Difficulties; none: all.

    Raises:
        ConfigError: There is no such split.
        DataError: It is empty.
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
        raise DataError(f"{path}, line {number}: has no field {error}; expected those of SWE-bench (instance_id, repo, base_commit, "
                        "problem_statement, FAIL_TO_PASS, PASS_TO_PASS) or of R2E-Gym (docker_image, expected_output_json, ...).") from error  # fmt: skip
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}, line {number}: {error}.") from error


def _from_swe_bench(line: dict[str, Any]) -> SweTask:
    texts = ("instance_id", "repo", "base_commit", "problem_statement")
    optional = ("patch", "test_patch", "version", "bug_patch", "docker_image")
    image = line.get("image_name") or ""  # as SWE-smith calls it
    return SweTask(
        **{name: str(line[name]) for name in texts},
        **({"docker_image": image} | {name: str(line.get(name) or "") for name in optional if line.get(name)}),
        fail_to_pass=_names(line["FAIL_TO_PASS"]),
        pass_to_pass=_names(line["PASS_TO_PASS"]),
        hidden_files=tuple(line.get("hidden_files") or ()),
        test_files=tuple((str(name), str(text)) for name, text in line.get("test_files") or ()),
        tier=int(line.get("tier") or 0),
    )


def _from_r2e(line: dict[str, Any]) -> SweTask:
    """R2E-Gym says which tests of a task's own files pass once it is solved; which of them fail before it does not say."""
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
    """A list of names, or a text that holds one as JSON."""
    names = _json(value)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"expected a list of names of tests, got {str(value)[:60]!r}")
    return tuple(names)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
