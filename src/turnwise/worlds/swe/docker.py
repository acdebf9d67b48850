"""Run a workspace in a docker container, for tasks with an image (SWE-bench, R2E-Gym).

Its commands are tested against a stand-in, and by hand against podman's containers (4.3, runc), not docker's.
"""

import functools
import io
import shlex
import shutil
import subprocess
import tarfile
import weakref

from turnwise.base.errors import ConfigError, DataError, EnvironmentFault
from turnwise.worlds.swe import forms
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.watch import run_watched
from turnwise.worlds.swe.workspace import CommandResult, Limits, Oversized, Workspace

ROOT, SCRATCH = "/testbed", "/tmp/scratch"
FIRST = "while :; do sleep 3600; done"
"""The container's first process; it reaps orphans and survives `kill -9 -1`, unlike a child of an init."""
END = (
    "kill -9 -1 2> /dev/null; i=0; "
    "while set -- /proc/[0-9]*; [ $# -gt 3 ] && [ $((i += 1)) -lt 300 ]; do sleep 0.1; done; true"
)
"""Ends a command's leftover processes and waits; the first process, its sleep, and this shell remain."""
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
        most = f"{limits.memory_mb}m"
        bounds = [f"--memory={most}", f"--memory-swap={most}", f"--pids-limit={limits.processes}"]
        isolation = ["--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        started = _docker("run", "--detach", "--rm", *isolation, *bounds, image, "bash", "-c", FIRST)
        self._name = started.decode().strip()
        self.close = weakref.finalize(self, _remove, self._name)
        # with all rights: without capabilities, root cannot remove what lies in a folder that is not writable
        _docker("exec", "--privileged", "--user=0", self._name, "sh", "-c", _PREPARE)
        self._given = self._listed()

    def _run(self, command: str, stdin: bytes, seconds: float, output_chars: int, read_only: bool) -> CommandResult:
        """Run a shell command and end its background processes; `read_only` does nothing."""
        command = f"test -e {_ACTIVATE} && . {_ACTIVATE} testbed; {command}"
        within = ["timeout", "--signal=KILL", f"{seconds:g}", "bash", "-c", command]
        outcome = run_watched(
            ["docker", "exec", "--interactive", "--workdir", ROOT, self._name, *within],
            stdin=stdin,
            seconds=seconds + 10,
            output_chars=output_chars,
        )
        _docker("exec", self._name, "sh", "-c", END)
        if outcome.code in (137, -9) and outcome.seconds >= seconds:
            return CommandResult(code=-9, output=outcome.output, stopped_by="time", seconds=outcome.seconds)
        return outcome

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
            ["docker", "exec", "--interactive", self._name, "sh", "-c", f"{command} 2> /dev/null"],
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
            raise EnvironmentFault(f"swe: docker exec {self._name} failed: {said}")
        return outcome.output


def image_of(task: SweTask) -> str:
    """Return the image of a task: its own, or the one that SWE-bench publishes for it."""
    if task.docker_image:
        return task.docker_image
    if "__" not in task.instance_id:
        raise DataError(f"swe: task {task.instance_id!r} has no docker_image, and its name is not SWE-bench's")
    return forms.image("instance_id", _IMAGE.format(task.instance_id.lower().replace("__", "_1776_")))


@functools.cache
def check_docker() -> None:
    """Check that a docker daemon answers.

    Raises:
        ConfigError: No daemon answers, or docker is not installed.
    """
    if shutil.which("docker") is None:
        raise ConfigError("environment.options.sandbox='docker' needs the program 'docker', which is not on the PATH")
    asked = subprocess.run(["docker", "info"], capture_output=True, check=False)
    if asked.returncode:
        said = asked.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(
            f"environment.options.sandbox='docker': no daemon answers "
            f"({said[-1] if said else 'no reason given'}); start one, or set sandbox='bubblewrap'"
        )


def _docker(*arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise EnvironmentFault(f"swe: docker {shlex.join(arguments[:2])} failed: {said}")
    return done.stdout


def _remove(name: str) -> None:
    subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
