"""Run test files in a workspace, and distrust the report: the tested code may have written it."""

import dataclasses
import functools
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.worlds.swe import inside
from turnwise.worlds.swe.workspace import CommandResult, Workspace

REPORT_BYTES = 4_000_000
"""Maximum size of the report that is read (bytes)."""
_MOST_LINES = 50_000
_START = "import sys; stdin = sys.stdin.buffer; exec(compile(stdin.read(int(stdin.readline())), 'program', 'exec'))"
_EMPTY = "rm -rf {0}/..?* {0}/.[!.]* {0}/*"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a test run reports about itself."""

    passed: frozenset[str] = frozenset()  # names of tests that passed
    xfailed: frozenset[str] = frozenset()  # names of tests that failed and are marked as expected to fail
    # Messages of tests that did not pass, by name; also of skipped ones
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Errors of test files that could not be collected, by file
    broken: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)  # time of each test, by name
    problem: str = ""  # why there is no report; empty if there is one


def run_program(
    workspace: Workspace,
    program: str,
    request: Mapping[str, Any],
    *,
    python: str,
    seconds: float,
    read_only: bool,
    processor_s: int | None = None,
    output_chars: int = REPORT_BYTES,
) -> CommandResult:
    """Run a program of `inside` on a request.

    It first removes what an earlier program left in the scratch folder. The program itself is never a file in the
    sandbox, so nothing can change it.

    Args:
        workspace: The workspace.
        program: Name of the module.
        request: What the program reads from standard input, as JSON.
        python: The interpreter in the workspace.
        seconds: Limit of wall-clock time.
        read_only: Whether the repository cannot be written to.
        processor_s: Limit of processor time (seconds), independent of other load; None: no limit.
        output_chars: Bytes of output to keep.
    """
    code = _code(program)
    stdin = b"%d\n%b%b" % (len(code), code, json.dumps(request).encode())
    # what is installed in a virtual environment is found in isolated mode, too
    command = f"{_EMPTY.format(workspace.scratch)}; exec {shlex.quote(python)} -I -c {shlex.quote(_START)}"
    if processor_s is not None:
        command = f"ulimit -t {processor_s}; {command}"
    return workspace.run(command, stdin=stdin, seconds=seconds, output_chars=output_chars, read_only=read_only)


@functools.cache
def _code(program: str) -> bytes:
    return (Path(inside.__file__).parent / f"{program}.py").read_bytes()


def run_tests(
    workspace: Workspace,
    tests: Sequence[str],
    *,
    python: str,
    path: Sequence[str] = (),
    seconds: float,
    processor_s: int | None = None,
    read_only: bool = False,
) -> Report:
    """Run test files in a workspace.

    Args:
        workspace: The workspace.
        tests: Paths of the test files.
        python: The interpreter in the workspace.
        path: Folders that pytest is imported from.
        seconds: Limit of wall-clock time.
        processor_s: See `run_program`.
        read_only: Whether the repository cannot be written to.
    """
    root, mark = workspace.root, secrets.token_hex(20)
    request = {"root": root, "path": list(path), "sources": sources(workspace), "tests": list(tests), "mark": mark}
    limits = {"seconds": seconds, "processor_s": processor_s}
    outcome = run_program(workspace, "runner", request, python=python, read_only=read_only, **limits)
    if outcome.stopped_by:
        return Report(problem=f"the tests were stopped: they took too much {outcome.stopped_by}")
    *_, written, after = [b"", b"", *outcome.output.rsplit(mark.encode(), 2)]
    if not written or after.strip():
        return Report(problem=f"the tests ended without a report, exit status {outcome.code}: {said(outcome.output)}")
    return _read(written)


def ask_calls(
    workspace: Workspace,
    do: str,
    request: Mapping[str, Any],
    *,
    python: str,
    seconds: float,
    read_only: bool = True,
    output_chars: int = 32 * REPORT_BYTES,
) -> list[str]:
    """Run the program of `inside/calls.py`; returns the lines of its reply, or nothing if it did not reply.

    Args:
        workspace: The workspace.
        do: What the program should do.
        request: What it needs for that.
        python: The interpreter in the workspace.
        seconds: Limit of wall-clock time.
        read_only: Whether the repository cannot be written to.
        output_chars: Bytes of the reply to read.
    """
    mark = secrets.token_hex(20)
    request = {"do": do, "root": workspace.root, "sources": sources(workspace), "mark": mark, **request}
    limits = {"seconds": seconds, "read_only": read_only, "output_chars": output_chars}
    output = run_program(workspace, "calls", request, python=python, **limits).output
    *_, written, _ = [b"", b"", *output.rsplit(mark.encode(), 2)]
    return written.decode(errors="replace").strip("\n").split("\n", _MOST_LINES) if written.strip() else []


def sources(workspace: Workspace) -> list[str]:
    """Return the folders of the repository to import from."""
    return [f"{workspace.root}/src", workspace.root]


def _read(written: bytes) -> Report:
    """Read a report. Its size is limited, and its form is so plain that reading takes time linear in its size."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in "PXSFB"}
    seconds: dict[str, float] = {}
    for line in written.split(b"\n", _MOST_LINES)[:_MOST_LINES]:
        kind, took, name, reason = [*line.decode(errors="replace").split("\t", 3), "", "", "", ""][:4]
        if kind in found:
            found[kind][name] = reason
            seconds[name] = float(took[:9]) if took[:9].replace(".", "", 1).isdecimal() else 0.0
    passed, expected, skipped, failed, broken = found.values()
    failed |= dict.fromkeys(skipped, "it was skipped")
    return Report(frozenset(passed), frozenset(expected), failed, broken, seconds)


def said(output: bytes) -> str:
    """Shorten a command's output to one line."""
    return output[-2000:].decode(errors="replace").strip()[-300:].replace("\n", "; ")
