"""Grade a repair: run the named tests on a clean copy of the repository with the agent's changes."""

import dataclasses
import io
import json
import secrets
import shlex
import tarfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from turnwise.environments.swe import runner
from turnwise.environments.swe.guard import graded_changes, reaches_for_the_tests
from turnwise.environments.swe.patches import touched
from turnwise.environments.swe.tasks import SweTask
from turnwise.environments.swe.workspace import Files, Workspace
from turnwise.errors import EnvironmentFault

_RUNNER = Path(runner.__file__).read_bytes()
_REPORT_CHARS = 32_000_000
_SAME_TIMES = (
    "room=$(df -Pm . | tail -1 | tr -s ' ' | cut -d ' ' -f 4); "
    "[ $(du -sm . | cut -f 1) -gt $((room / 8)) ] || find . -exec touch -h -d '2000-01-01' {} +"
)
"""Sets equal times on all files. In small repositories it also hides which files were written (device, ctime)."""


class CommandFailed(EnvironmentFault):
    """One of our commands in a workspace failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Result of a test run.

    Attributes:
        passed: Names of tests that passed.
        failed: Messages of tests that did not pass, by name.
        broken: Errors of test files that could not be collected, by file.
        trusted: Whether every test that must fail did fail.
        problem: Why there is no report; empty if there is one.
    """

    passed: frozenset[str] = frozenset()
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    broken: dict[str, str] = dataclasses.field(default_factory=dict)
    trusted: bool = False
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Grade:
    """The verdict; `reason` explains a failure in one line."""

    success: bool
    reason: str = ""
    num_passed: int = 0
    num_named: int = 0


def no_success(task: SweTask, reason: str) -> Grade:
    """Make the verdict of a repair that passed no test."""
    return Grade(False, reason, 0, len(task.named_tests))


def grade(
    make_workspace: Callable[[], Workspace],
    task: SweTask,
    changes: Files,
    *,
    python: str,
    path: Sequence[str] = (),
    packages: Collection[str] = (),
    seconds: float = 120.0,
) -> Grade:
    """Grade changes to a task's repository.

    Args:
        make_workspace: Makes a clean copy of the task's snapshot.
        task: The task.
        changes: Files that the agent changed, with their contents.
        python: The interpreter in the workspace.
        path: Folders that pytest is imported from.
        packages: See `graded_changes`.
        seconds: Longest time of the tests.

    Raises:
        EnvironmentFault: The task's own patches do not apply.
    """
    kept = graded_changes(task, changes, packages=packages)
    named = task.named_tests
    if not kept:
        return no_success(task, "nothing that is graded was changed")
    workspace = make_workspace()
    try:
        begin(workspace, task, hide=False)
        old = read_all(workspace, [name for name in kept if name.endswith(".py")])
        if reached := reaches_for_the_tests(task, old, kept):
            return no_success(task, f"the change reaches for what runs the tests: {reached}")
        # the task's own files first: where these do not go in, the task is broken, and after them it is the change
        if task.test_files:
            put(workspace, {name: text.encode() for name, text in task.test_files})
        if task.test_patch:
            apply(workspace, task.test_patch)
        try:
            put(workspace, kept)
        except CommandFailed as failed:
            return no_success(task, f"the change cannot be carried over: {failed}")
        report = run_tests(workspace, test_paths(task), python=python, path=path, seconds=seconds)
    finally:
        workspace.close()
    if report.problem:
        return no_success(task, report.problem)
    passed = {name for test in report.passed for name in (test, _short(test))}
    missing = [name for name in named if name not in passed]
    if not report.trusted:
        return no_success(task, "a test that must fail has passed: the change tampers with the tests")
    reason = f"{len(missing)} of {len(named)} tests fail, {missing[0]} for one" if missing else ""
    if missing and report.broken:
        file, said = next(iter(report.broken.items()))
        reason += f"; {file} cannot be collected: {_said(said.encode())}"
    return Grade(not missing, reason, len(named) - len(missing), len(named))


def begin(workspace: Workspace, task: SweTask, *, hide: bool = True) -> None:
    """Prepare a clean snapshot for the agent.

    Args:
        workspace: Workspace with the snapshot.
        task: The task.
        hide: Remove the tests that grade, and the file times that reveal the bug.
    """
    if task.bug_patch:
        apply(workspace, task.bug_patch)
    if hide and task.hidden_files:
        put(workspace, dict.fromkeys(task.hidden_files))
    if hide and task.bug_patch:
        workspace.run(_SAME_TIMES)


def test_paths(task: SweTask) -> list[str]:
    """Return the files for pytest: those of the named tests, and those of the task."""
    files = [name.partition("::")[0] for name in task.named_tests if "::" in name]
    brought = [path for path in touched(task.test_patch) if path.endswith(".py") and "test" in path.rpartition("/")[2]]
    return sorted({*files, *(brought if not files else ()), *(name for name, _ in task.test_files)})


def run_tests(
    workspace: Workspace,
    tests: Sequence[str],
    *,
    python: str,
    path: Sequence[str] = (),
    seconds: float,
    processor_s: int | None = None,
) -> Report:
    """Run test files in a workspace.

    Args:
        workspace: The workspace.
        tests: Paths of the test files.
        python: The interpreter in the workspace.
        path: Folders that pytest is imported from.
        seconds: Longest wall-clock time.
        processor_s: Longest processor time (seconds), independent of other load; None: no limit.
    """
    secret = secrets.token_hex(20)
    program = f"{workspace.scratch}/runner.py"
    sent = workspace.run(f"cat > {program}", stdin=_RUNNER)
    if sent.code:
        return Report(problem=f"the tests cannot be started: {_said(sent.output)}")
    root = workspace.root
    request = {"root": root, "scratch": workspace.scratch, "path": list(path), "sources": [f"{root}/src", root]}
    request |= {"tests": list(tests), "secret": secret}
    # what is installed in a virtual environment is found in isolated mode, too
    command, stdin = f"exec {shlex.quote(python)} -I {program}", json.dumps(request).encode()
    if processor_s is not None:
        command = f"ulimit -t {processor_s}; {command}"
    outcome = workspace.run(command, stdin=stdin, seconds=seconds, output_chars=_REPORT_CHARS)
    if outcome.stopped_by:
        return Report(problem=f"the tests were stopped: they took too much {outcome.stopped_by}")
    *_, written, after = [b"", b"", *outcome.output.rsplit(secret.encode(), 2)]
    try:
        found = json.loads(written)
        passed, failed, broken = frozenset(found["passed"]), dict(found["failed"]), dict(found["broken"])
        trusted = found["canaries"] == runner.NUM_CANARIES and found["fooled"] == 0 and not after.strip()
    except (ValueError, KeyError, TypeError):
        return Report(problem=f"the tests ended without a report, exit status {outcome.code}: {_said(outcome.output)}")
    return Report(passed, failed, broken, trusted)


def put(workspace: Workspace, files: Files) -> None:
    """Write and delete files of the repository.

    Raises:
        CommandFailed: A file cannot be written or deleted.
    """
    gone = "\0".join(name for name, content in files.items() if content is None).encode()
    if gone:
        _must(workspace, "xargs -0 rm -f --", gone)
    written = {name: content for name, content in files.items() if content is not None}
    if not written:
        return
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in written.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    _must(workspace, "tar -x --no-same-owner --unlink-first --recursive-unlink -f -", archive.getvalue())


def apply(workspace: Workspace, patch: str) -> None:
    """Apply a unified diff.

    Raises:
        CommandFailed: The patch does not apply.
    """
    _must(workspace, "git apply --whitespace=nowarn -", patch.encode())


def _must(workspace: Workspace, command: str, stdin: bytes) -> None:
    outcome = workspace.run(command, stdin=stdin)
    if outcome.code:
        raise CommandFailed(f"swe: `{command}` failed with {outcome.code}: {_said(outcome.output)}")


def read(workspace: Workspace, path: str) -> bytes | None:
    """Read a file of the repository; None if it does not exist."""
    outcome = workspace.run(f"cat -- {shlex.quote(path)}")
    return outcome.output if outcome.code == 0 else None


def read_all(workspace: Workspace, paths: Sequence[str]) -> dict[str, bytes]:
    """Read those files of the repository that exist."""
    listed = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
    there = 'xargs -0 sh -c \'for name; do [ ! -f "$name" ] || printf "%s\\0" "$name"; done\' sh'
    command = f"{there} | tar -c -h -f - --null --verbatim-files-from -T - 2> /dev/null"
    archive = workspace.run(command, stdin=listed, output_chars=_REPORT_CHARS).output if paths else b""
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {entry.name: tar.extractfile(entry) for entry in tar}
        return {name: file.read() for name, file in files.items() if file}


def _short(test: str) -> str:
    """Shorten a test's name to R2E-Gym's form."""
    return ".".join(test.split("::")[1:])


def _said(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-300:].replace("\n", "; ")
