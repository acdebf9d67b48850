"""Run commands in a docker container that is bounded, and cut off from the network."""

import functools
import shlex
import shutil
import subprocess
import weakref
from collections.abc import Sequence

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.worlds.swe.watch import run_watched
from turnwise.worlds.swe.workspace import CommandResult, Limits

FIRST = "while :; do sleep 3600; done"
"""The container's first process; it reaps orphans and survives `kill -9 -1`, unlike a child of an init."""
END = (
    "kill -9 -1 2> /dev/null; i=0; "
    "while set -- /proc/[0-9]*; [ $# -gt 3 ] && [ $((i += 1)) -lt 300 ]; do sleep 0.1; done; true"
)
"""Ends a command's leftover processes and waits; the first process, its sleep, and this shell remain."""
OFFLINE = ("--network=none",)


class Container:
    """A running container with the daemon's limits; disk is not limited, because few storage drivers support it.

    Args:
        image: Image with bash and the coreutils.
        limits: Resource limits.
        arguments: Further arguments of `docker run`.

    Raises:
        EnvironmentFault: The container does not start.
    """

    def __init__(self, image: str, limits: Limits, *, arguments: Sequence[str] = OFFLINE):
        most = f"{limits.memory_mb}m"
        bounds = [f"--memory={most}", f"--memory-swap={most}", f"--pids-limit={limits.processes}"]
        isolation = ["--cap-drop=ALL", "--security-opt=no-new-privileges", *arguments, "--entrypoint=bash"]
        self.name = docker("run", "--detach", "--rm", *bounds, *isolation, image, "-c", FIRST).decode().strip()
        self.close = weakref.finalize(self, _remove, self.name)

    def run(
        self, command: str, *, seconds: float, output_chars: int, stdin: bytes = b"", arguments: Sequence[str] = ()
    ) -> CommandResult:
        """Run a command of bash, and end its background processes.

        Args:
            command: The command.
            seconds: Limit of wall-clock time.
            output_chars: Bytes of its output to keep.
            stdin: What it reads.
            arguments: Further arguments of `docker exec`.
        """
        within = ["timeout", "--signal=KILL", f"{seconds:g}", "bash", "-c", command]
        called = ["docker", "exec", "--interactive", *arguments, self.name, *within]
        outcome = run_watched(called, stdin=stdin, seconds=seconds + 10, output_chars=output_chars)
        docker("exec", self.name, "sh", "-c", END)
        if outcome.code in (137, -9) and outcome.seconds >= seconds:
            return CommandResult(code=-9, output=outcome.output, stopped_by="time", seconds=outcome.seconds)
        return outcome

    def prepare(self, command: str) -> None:
        """Run a command of ours with all rights; without them, root cannot write where folders are not writable.

        Raises:
            EnvironmentFault: It fails.
        """
        docker("exec", "--privileged", "--user=0", self.name, "sh", "-c", command)


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


def docker(*arguments: str, seconds: float | None = None) -> bytes:
    """Call docker; returns what it prints.

    Raises:
        EnvironmentFault: It fails, or takes longer than `seconds`.
    """
    called = f"docker {shlex.join(arguments[:2])}"
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"{called} took more than {seconds:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise EnvironmentFault(f"{called} failed: {said}")
    return done.stdout


def _remove(name: str) -> None:
    subprocess.run(["docker", "kill", name], capture_output=True, check=False)  # podman's `rm` waits for 10 s
    subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, check=False)
