"""Launch processes of environments at a level of isolation: a process, bubblewrap, gVisor, docker.

A launched Python is connected to the trainer by a socket, over which other sockets are passed.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import IO

from turnwise.base.errors import ConfigError
from turnwise.environments.isolation import PASSED_ENDS

HIDDEN = ("/tmp", "/var/tmp", "/run", "/home", "/root", "/mnt", "/media", "/srv")
"""Folders that are empty in bubblewrap and gVisor, like HOME."""
Process = subprocess.Popen[bytes]


class Launcher:
    """Launch a separate process without further isolation: level "worker".

    Raises:
        ConfigError: The level is not available on this machine.
    """

    def __init__(self, variables: Mapping[str, str]):
        self.variables = dict(variables)

    def line(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command at this level."""
        return list(command)

    def launch(self, module: str, given: IO[bytes]) -> tuple[Process, socket.socket]:
        """Start `module.main()` in Python with `given` on standard input; returns the process and its socket.

        The module finds the other end of the socket with `connected`.
        """
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
        line = self.line([sys.executable, "-u", "-c", code])
        with theirs:
            process = subprocess.Popen(
                line,
                stdin=given,
                stdout=theirs.fileno(),
                env=self.variables,
                start_new_session=True,  # only the trainer handles Ctrl-C
            )
        return process, ours

    def close(self) -> None:
        """Remove what the level left on the machine."""


class Bubblewrap(Launcher):
    """Launch in bubblewrap: files read-only, hidden folders empty, own processes only.

    Args:
        variables: Environment variables of the process.
        offline: Whether there is no network.
    """

    def __init__(self, variables: Mapping[str, str], *, offline: bool = False):
        super().__init__(variables)
        program = installed("bwrap", "bubblewrap", "install your system's package 'bubblewrap'")
        line = [program, "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        line += ["--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        line += ["--unshare-net"] if offline else []
        for place, shown in mounted_folders(variables):
            line += ["--ro-bind-try", place, place] if shown else ["--tmpfs", place]
        # the kernel lets a process that is root outside write to most of /proc/sys, whatever its capabilities
        self._start = [*line, "--remount-ro", "/proc", "--"]
        tried("bubblewrap", self.line(["true"]), "allow user namespaces")

    def line(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in bubblewrap."""
        return [*self._start, *command]


def connected(place: str = "") -> socket.socket:
    """Return the launched process's end of the socket. What it prints goes to standard error from then on.

    Args:
        place: Socket to connect to; default: standard output is the socket.
    """
    if place:
        control = socket.socket(socket.AF_UNIX)
        control.connect(place)
    else:
        control = socket.socket(fileno=os.dup(1))
    os.dup2(2, 1)
    return control


def hidden_folders() -> set[Path]:
    """Return the folders of this machine that a process must not see, by their real paths."""
    return {Path(place).resolve() for place in (*HIDDEN, Path.home()) if os.path.isdir(place)} - {Path("/")}


def mounted_folders(variables: Mapping[str, str]) -> list[tuple[str, bool]]:
    """List the folders that a process sees differently from the rest of the machine, and whether it sees their files.

    The hidden ones are without files; the others are what Python and the environments read. Outer folders come first,
    so that mounting them in this order uncovers no hidden one.
    """
    hidden = hidden_folders()
    python = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path]
    data = [value for name, value in variables.items() if name.endswith(PASSED_ENDS)]
    needed = {Path(os.path.abspath(place)) for place in (*python, *data, os.getcwd()) if place and os.path.isdir(place)}
    # never a hidden folder as a whole
    shown = {_place(folder, hidden) for folder in needed if folder.resolve() not in {*hidden, Path("/")}}
    return [(str(folder), folder in shown) for folder in sorted(hidden | shown)]


def _place(folder: Path, hidden: Set[Path]) -> Path:
    """Resolve links in a path, except below a hidden folder, where a process does not see them."""
    for above in reversed(folder.parents):
        real = above.resolve()
        if not hidden.isdisjoint((real, *real.parents)):
            return real / folder.relative_to(above)
    return folder.resolve()


def installed(program: str, level: str, how: str) -> str:
    """Return the path of a program, or raise a `ConfigError` that says how to get it."""
    if found := shutil.which(program):
        return found
    raise ConfigError(
        f"isolation {level!r} needs the program {program!r}, which is not on the PATH; {how}, or choose another level "
        "of isolation"
    )


def tried(level: str, line: Sequence[str], how: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a command line and return its output, or raise a `ConfigError` with its message."""
    given = {"PATH": os.defpath} if variables is None else variables
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=given, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = " ".join(done.stderr.split())[-200:] or f"exit code {done.returncode}"
        raise ConfigError(
            f"isolation {level!r} does not work here, it says: {said}; {how}, or choose another level of isolation"
        )
    return done.stdout
