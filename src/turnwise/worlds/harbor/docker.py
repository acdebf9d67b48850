"""Play a task in docker: a container for the agent, and another one for the tests.

It is tested against podman's containers (4.3, runc), not docker's.
"""

import contextlib
import io
import re
import sys
import tarfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from turnwise.base.errors import EnvironmentFault
from turnwise.base.terminal import say
from turnwise.worlds.harbor.sandbox import REWARD_BYTES, REWARDS, VERDICT, digest_of
from turnwise.worlds.harbor.tasks import HarborTask, Network, is_taken, working_directory
from turnwise.worlds.swe.container import OFFLINE, Container, docker
from turnwise.worlds.swe.watch import run_watched
from turnwise.worlds.swe.workspace import CommandResult, Limits

RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""Capabilities in a container, for tasks that change owners or serve; all are docker's defaults."""
HOMES = re.compile(r"/root|/home/[^/]+")
_COPY_S = 60.0
_MAKING = threading.Lock()
"""One image is made at a time, and once."""


class DockerSandbox:
    """A container of a task's image, with the working directory on a volume.

    Tests run in another container of the image with that volume: nothing else that the agent changed reaches them.

    Args:
        task: The task.
        image: Its image; see `image_of`.
        limits: What a command may use; disk is not limited.
        network: Whose container has a network.

    Raises:
        EnvironmentFault: The image cannot be had, or works in a folder of the system.
    """

    def __init__(self, task: HarborTask, image: str, limits: Limits, network: Network):
        self._task, self._image, self._limits, self._network = task, image, limits, network
        asked = _working_directory(task, image)
        try:
            self._root = working_directory(task.root or asked or "/")
        except ValueError as error:
            raise EnvironmentFault(f"{task.name}: {error}") from None
        if is_taken(self._root):
            raise EnvironmentFault(
                f"{task.name}: its working directory is {self._root}, which its tests need as it was"
            )
        self._volume = docker("volume", "create").decode().strip()
        self._containers = list[Container]()  # the newest is in use
        self.close = weakref.finalize(self, _end, self._containers, self._volume)
        self._begin(online=network == "all")
        if not (task.folder / "environment" / "Dockerfile").exists():
            _copy(task.folder / "environment", self._containers[-1], self._root)

    def _begin(self, *, online: bool) -> Container:
        kept = f"type=volume,source={self._volume},destination={self._root}"
        rights = [f"--cap-add={name}" for name in RIGHTS]
        arguments = [*(() if online else OFFLINE), *rights, "--mount", kept]
        self._containers.append(Container(self._image, self._limits, arguments=arguments))
        return self._containers[-1]

    def run(self, command: str, *, output_chars: int) -> CommandResult:
        """See `TaskSandbox`."""
        return self._run(command, self._limits.seconds, output_chars, self._task.variables)

    def _run(
        self, command: str, seconds: float, output_chars: int, variables: Sequence[tuple[str, str]]
    ) -> CommandResult:
        given = [f"--env={name}={value}" for name, value in variables]
        arguments = ["--workdir", self._root, *given]
        return self._containers[-1].run(command, seconds=seconds, output_chars=output_chars, arguments=arguments)

    def test(self, *, output_chars: int) -> tuple[CommandResult, dict[str, bytes]]:
        """See `TaskSandbox`."""
        self._containers[-1].close()
        container = self._begin(online=self._network != "none")
        container.prepare(f"rm -rf /tests {VERDICT} && mkdir -p /tests {VERDICT} && chmod 777 {VERDICT}")
        _copy(self._task.folder / "tests", container, "/tests")
        home = [("HOME", "/tmp")] if HOMES.fullmatch(self._root) else []  # programs load files of it
        variables = (*home, *self._task.variables, *self._task.test_variables)
        outcome = self._run("bash /tests/test.sh", self._task.test_s, output_chars, variables)
        found = {name: _copied(container, f"{VERDICT}/{name}") for name in REWARDS}
        return outcome, {name: content for name, content in found.items() if content is not None}


def _copy(folder: Path, container: Container, place: str) -> None:
    docker("cp", f"{folder.resolve()}/.", f"{container.name}:{place}")


def _copied(container: Container, place: str) -> bytes | None:
    """Read a file without a program of the container, which the agent's files may have replaced."""
    called = ["docker", "cp", f"{container.name}:{place}", "-"]
    outcome = run_watched(called, stdin=b"", seconds=_COPY_S, output_chars=REWARD_BYTES + 2 * tarfile.RECORDSIZE)
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(outcome.output)) as tar:
        entry = tar.next()
        if outcome.code == 0 and entry and entry.isreg() and entry.size <= REWARD_BYTES:
            file = tar.extractfile(entry)
            return file.read() if file else None
    return None


def _end(containers: Sequence[Container], volume: str) -> None:
    for container in containers:
        container.close()
    with contextlib.suppress(EnvironmentFault):
        docker("volume", "rm", "--force", volume)


def image_of(task: HarborTask) -> str:
    """Return the name of a task's image; one that is built is named by the files that it is made of."""
    return task.image or f"turnwise-harbor:{digest_of([((task.folder / 'environment').resolve(), '')])}"


def _working_directory(task: HarborTask, image: str) -> str:
    """Ask an image for its working directory; one that is not there is fetched or built."""
    asked = ("image", "inspect", "--format", "{{.Config.WorkingDir}}", image)
    with _MAKING:
        try:
            return docker(*asked).decode().strip()
        except EnvironmentFault:
            say(f"{'fetching' if task.image else 'building'} the image of {task.name}", file=sys.stderr)
            context = str((task.folder / "environment").resolve())
            docker(*(["pull", image] if task.image else ["build", "--tag", image, context]), seconds=task.build_s)
        return docker(*asked).decode().strip()
