"""Carry files and patches into a workspace, and read files of it."""

import io
import shlex
import tarfile
from collections.abc import Sequence

from turnwise.base.errors import EnvironmentFault
from turnwise.worlds.swe.patches import touched
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.testing import said
from turnwise.worlds.swe.workspace import Files, Workspace

_READ_BYTES = 32_000_000


class CommandFailed(EnvironmentFault):
    """One of our commands in a workspace failed."""


def begin(workspace: Workspace, task: SweTask, *, hide: bool = True) -> None:
    """Prepare a clean snapshot for the agent."""
    if task.bug_patch:
        apply(workspace, task.bug_patch)
    if hide and task.hidden_files:
        put(workspace, dict.fromkeys(task.hidden_files))


def test_paths(task: SweTask) -> list[str]:
    """Return the files for pytest: those of the named tests, and those of the task."""
    files = [name.partition("::")[0] for name in task.named_tests if "::" in name]
    brought = [path for path in touched(task.test_patch) if path.endswith(".py") and "test" in path.rpartition("/")[2]]
    return sorted({*files, *(brought if not files else ()), *(name for name, _ in task.test_files)})


def put(workspace: Workspace, files: Files) -> None:
    """Write and delete files of the repository.

    Raises:
        CommandFailed: A file cannot be written or deleted.
    """
    gone = "\0".join(name for name, content in files.items() if content is None).encode("utf-8", "surrogateescape")
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
        raise CommandFailed(f"swe: `{command}` failed with {outcome.code}: {said(outcome.output)}")


def read(workspace: Workspace, path: str) -> bytes | None:
    """Read a file of the repository; None if it does not exist."""
    outcome = workspace.run(f"cat -- {shlex.quote(path)}")
    return outcome.output if outcome.code == 0 else None


def read_all(workspace: Workspace, paths: Sequence[str]) -> dict[str, bytes]:
    """Read those files of the repository that exist."""
    listed = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
    there = 'xargs -0 sh -c \'for name; do [ ! -f "$name" ] || printf "%s\\0" "$name"; done\' sh'
    command = f"{there} | tar -c -h -f - --null --verbatim-files-from -T - 2> /dev/null"
    archive = workspace.run(command, stdin=listed, output_chars=_READ_BYTES).output if paths else b""
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {entry.name: tar.extractfile(entry) for entry in tar}
        return {name: file.read() for name, file in files.items() if file}
