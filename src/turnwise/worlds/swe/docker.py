"""Run a workspace in a docker container, for tasks with an image (SWE-bench, R2E-Gym).

Its commands are tested against a stand-in, and by hand against podman's containers (4.3, runc), not docker's.
"""

import io
import tarfile

from turnwise.base.errors import DataError, EnvironmentFault
from turnwise.worlds.swe import forms
from turnwise.worlds.swe.container import Container
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.watch import run_watched
from turnwise.worlds.swe.workspace import CommandResult, Limits, Oversized, Workspace

ROOT, SCRATCH = "/testbed", "/tmp/scratch"
_IMAGE = "swebench/sweb.eval.x86_64.{}:latest"
_LIST_BYTES, _TAR_BYTES = 64_000_000, 4096
"""Longest list of files, and what tar adds to a file (bytes)."""
_LIST_S = 60.0
"""Time limit to list or to pack files (seconds)."""
_ACTIVATE = "/opt/miniconda3/bin/activate"
# History holds the fix, and R2E-Gym's images the tests that grade.
_PREPARE = (
    f"rm -rf {ROOT}/.git /r2e_tests {ROOT}/r2e_tests /run_tests.sh {ROOT}/run_tests.sh && "
    f"mkdir -p {SCRATCH} && chmod 1777 {SCRATCH} && touch {SCRATCH}/begun"
)


class DockerWorkspace(Workspace):
    """A `Workspace` in a container without network, with the daemon's limits.

    Args:
        image: Image with the repository in /testbed.
        limits: Resource limits; disk is not limited, because few storage drivers support it.

    Raises:
        EnvironmentFault: The container does not start.
    """

    root, scratch = ROOT, SCRATCH

    def __init__(self, image: str, limits: Limits):
        super().__init__(limits)
        self._container = Container(image, limits)
        self.close = self._container.close
        self._container.prepare(_PREPARE)
        self._given = self._listed()

    def _run(self, command: str, stdin: bytes, seconds: float, output_chars: int, read_only: bool) -> CommandResult:
        """Run a shell command and end its background processes; `read_only` does nothing."""
        command = f"test -e {_ACTIVATE} && . {_ACTIVATE} testbed; {command}"
        limits = {"seconds": seconds, "output_chars": output_chars}
        return self._container.run(command, stdin=stdin, arguments=["--workdir", ROOT], **limits)

    def changes(self) -> dict[str, bytes | None]:
        """Return regular files that differ from the image; see `Workspace.changes`."""
        now = self._listed()
        found: dict[str, bytes | None] = {path: None for path in self._given if path not in now}
        changed = [path for path, mark in now.items() if self._given.get(path) != mark]
        left = self._limits.disk_mb * 2**20
        if changed:
            names = "".join(f"{path}\0" for path in changed).encode("utf-8", "surrogateescape")
            most = left + len(changed) * _TAR_BYTES
            archive = self._exec(f"tar -C {ROOT} --null --verbatim-files-from -T - -c -f -", names, most)
            try:
                with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
                    for entry in tar:
                        path = entry.name.removeprefix("./")
                        if path not in now or not entry.isreg():
                            continue
                        left -= entry.size  # also of a sparse file, which takes no space in the archive
                        if left < 0:
                            raise Oversized(f"the files hold more than {self._limits.disk_mb} MiB")
                        if file := tar.extractfile(entry):
                            found[path] = file.read()
            except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
                raise Oversized(f"what the container's tar wrote cannot be read: {error}") from None
        return found

    def _listed(self) -> dict[str, str]:
        """List regular files with a mark that changes with their content."""
        command = f"find {ROOT} -type f -printf '%P\\t%s %T@ %C@\\0'"
        written = self._exec(command, b"", _LIST_BYTES).decode("utf-8", "surrogateescape")
        marks = (line.rpartition("\t") for line in written.split("\0") if line)
        return {path: mark for path, _, mark in marks}

    def _exec(self, command: str, stdin: bytes, most: int) -> bytes:
        """Run a command of the container, whose programs the agent may have replaced: it may write without end."""
        outcome = run_watched(
            ["docker", "exec", "--interactive", self._container.name, "sh", "-c", f"{command} 2> /dev/null"],
            stdin=stdin,
            seconds=_LIST_S,
            output_chars=most + 1,
        )
        if len(outcome.output) > most:
            raise Oversized(f"`{command.split()[0]}` in the container wrote more than {most} bytes")
        if outcome.stopped_by:
            raise Oversized(f"`{command.split()[0]}` in the container took more than {_LIST_S:g} s")
        if outcome.code:
            said = outcome.output[-300:].decode(errors="replace").strip()
            raise EnvironmentFault(f"docker exec {self._container.name} failed: {said}")
        return outcome.output


def image_of(task: SweTask) -> str:
    """Return the image of a task: its own, or the one that SWE-bench publishes for it."""
    if task.docker_image:
        return task.docker_image
    if "__" not in task.instance_id:
        raise DataError(f"swe: task {task.instance_id!r} has no docker_image, and its name is not SWE-bench's")
    return forms.image("instance_id", _IMAGE.format(task.instance_id.lower().replace("__", "_1776_")))
