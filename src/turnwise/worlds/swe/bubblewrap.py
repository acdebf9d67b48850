"""Run a workspace in Linux namespaces: bubblewrap over a copy-on-write snapshot, without daemon or privileges.

Each workspace has a keeper: a process that owns a user, a mount and a process namespace. A tmpfs of fixed size holds
the written files; an overlay puts them over the snapshot. So a reset copies nothing, and the disk limit holds. The
keeper ends with this process at the latest, and leaves nothing behind. Each command runs in its own namespaces below
(processes, network, users, mounts). It sees neither the keeper nor the snapshot, and its processes end before the next
command.

A command must not be able to read anything of the trainer. It sees bubblewrap's first process as process 1, with its
environment and arguments; so that process gets an empty environment, and its arguments through a file.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from turnwise.base.cache import cache_folder
from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.base.terminal import say
from turnwise.worlds.swe.filters import filter_program
from turnwise.worlds.swe.system import System, python_system
from turnwise.worlds.swe.watch import descendants, run_watched
from turnwise.worlds.swe.workspace import CommandResult, Limits, Oversized, Workspace

ROOT, SCRATCH = "/repo", "/scratch"
USER_ID = "1000"
_KEEP = """
set -e
mount -t proc proc /proc
mount -t tmpfs -o "size=$2m,nr_inodes=$3,mode=0755" tmpfs "$1"
cd "$1"
mkdir upper work merged scratch
echo "agent:x:$4:$4::/scratch:/bin/sh" > passwd
mount -t overlay overlay -o "lowerdir=$5,upperdir=$1/upper,workdir=$1/work,userxattr" merged
if [ -n "$6" ]; then echo "$6" > /proc/sys/kernel/pid_max; fi
(echo ready; exec cat > /dev/null)
exit
"""
"""The shell stays the namespace's first process and reaps orphans while it waits for cat, which ends with its input."""
_KEEPERS = 2
"""Shell and cat."""
_INODES_PER_MB = 200
_RESERVED_PIDS = 300
"""Of each process namespace, by the kernel."""
AS_ROOT = (
    "turnwise: swe runs as root. Commands have no capabilities, and see /proc and the system's files read-only, but "
    "the kernel counts them as root's: it does not limit their number of processes before Linux 6.14, and a kernel bug "
    "in namespaces would give them the machine. Run as another user to rule that out."
)
_OPEN_FILES = 1024
"""Per process, because open files are memory of the kernel."""
_END_S = 30.0
"""Ending a fork bomb takes about one, on an idle machine."""


class BubblewrapWorkspace(Workspace):
    """A `Workspace` over a snapshot, for one command at a time. Files are written in memory.

    Args:
        snapshot: Folder of the repository; never written to.
        system: What else commands see.
        limits: What it may use.
        root: Where commands see the repository.
        aliases: Further places where they see the scratch folder.

    Raises:
        ConfigError: There is no bubblewrap, or the system forbids user namespaces.
    """

    scratch = SCRATCH

    def __init__(
        self, snapshot: Path, system: System, limits: Limits, *, root: str = ROOT, aliases: Sequence[str] = ()
    ):
        super().__init__(limits)
        self.root, self._aliases = root, tuple(aliases)
        self._place, self._snapshot = _mount_point(), snapshot.resolve()
        if set(",:\\") & set(f"{self._snapshot}{self._place}"):
            raise ConfigError(
                f"swe: {self._snapshot} has one of , : \\ in its path, which overlayfs cannot take; "
                "move the tasks, or set TURNWISE_CACHE"
            )
        sizes = [str(limits.disk_mb), str(limits.disk_mb * _INODES_PER_MB)]
        arguments = [self._place, *sizes, USER_ID, str(self._snapshot), _most_pids(limits.processes)]
        self._keeper = _keeper(arguments)
        self.close = weakref.finalize(self, _end, self._keeper)
        self._enter = [*_enter(self._keeper.pid), shutil.which("bwrap") or "bwrap"]
        self.show(system)

    def show(self, system: System) -> None:
        """Show later commands another system."""
        self._arguments = {
            read_only: _packed(_bubble(system, self._place, self.root, self._aliases, read_only))
            for read_only in (False, True)
        }

    def _run(self, command: str, stdin: bytes, seconds: float, output_chars: int, read_only: bool) -> CommandResult:
        self._check_alive()
        limits = self._limits
        bounds = ["prlimit", f"--as={limits.memory_mb * 2**20}", f"--fsize={limits.disk_mb * 2**20}"]
        bounds += [f"--nproc={limits.processes}", f"--nofile={_OPEN_FILES}", "--core=0"]
        with self._begin(read_only) as (begin, files):
            outcome = run_watched(
                [*begin, *bounds, "sh", "-c", command],
                stdin=stdin,
                seconds=seconds,
                output_chars=output_chars,
                memory_mb=limits.memory_mb,
                processes=limits.processes + 2,  # and bubblewrap's own
                variables={},
                pass_fds=files,
            )
        self._wait_until_empty()
        return outcome

    def _check_alive(self) -> None:
        if self._keeper.poll() is not None:
            raise EnvironmentFault("swe: the sandbox has ended, or was closed")

    @contextlib.contextmanager
    def _begin(self, read_only: bool = False) -> Iterator[tuple[list[str], list[int]]]:
        """Yield the start of a command line that runs in the sandbox, and the files that bubblewrap reads."""
        with contextlib.ExitStack() as stack:
            files = []
            for content in (self._arguments[read_only], filter_program()):
                if content is not None:
                    files.append(stack.enter_context(tempfile.TemporaryFile()))
                    files[-1].write(content)
                    files[-1].seek(0)
            arguments, *filters = [file.fileno() for file in files]
            options = [word for file in filters for word in ("--seccomp", str(file))]
            yield [*self._enter, "--args", str(arguments), *options, "--"], [arguments, *filters]

    def _wait_until_empty(self) -> None:
        """Wait until the kernel has killed a command's leftover processes, which can still write until then."""
        until = time.monotonic() + _END_S
        while len(self._processes()) > _KEEPERS:
            if time.monotonic() > until:
                raise EnvironmentFault(f"swe: processes of a command did not end within {_END_S:g} s of being killed")
            time.sleep(0.001)

    def _processes(self) -> list[str]:
        """List the process ids in the keeper's namespace and those below."""
        try:
            return [name for name in os.listdir(f"/proc/{self._keeper.pid}/root/proc") if name.isdigit()]
        except OSError as error:
            raise EnvironmentFault("swe: the sandbox has ended") from error

    def changes(self) -> dict[str, bytes | None]:
        """Return regular files that differ from the snapshot; see `Workspace.changes`."""
        self._check_alive()
        upper, most = Path(f"/proc/{self._keeper.pid}/root{self._place}/upper"), self._limits.disk_mb * 2**20
        return dict(_written(upper, self._snapshot, most))


def check_bubblewrap() -> None:
    """Check that commands can be isolated on this machine.

    Raises:
        ConfigError: A program is missing, or the system forbids user namespaces.
    """
    for program, package in (("bwrap", "bubblewrap"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            raise ConfigError(
                f"isolating commands needs the program {program!r}, which is not on the PATH; install your system's "
                f"package {package!r}, or set environment.options.sandbox='docker'"
            )
    _try_once()


@functools.cache
def _try_once() -> None:
    if os.geteuid() == 0:
        say(AS_ROOT, file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(dir=Path(_mount_point()).parent) as folder,
        contextlib.closing(BubblewrapWorkspace(Path(folder), python_system(), Limits(disk_mb=8))) as workspace,
    ):
        outcome = workspace.run("echo works")
    if outcome.output != b"works\n":
        said = outcome.output.decode(errors="replace").strip().replace("\n", "; ")
        raise ConfigError(
            f"commands cannot be isolated here, bubblewrap says: {said}; it needs version 0.8 or newer, "
            "and user namespaces, which some systems and containers forbid"
        )


def _packed(arguments: Iterable[str]) -> bytes:
    """Join arguments as bwrap reads them; one with a zero character would be several."""
    listed = list(arguments)
    if bad := next((each for each in listed if "\0" in each), None):
        raise EnvironmentFault(f"{bad[:60]!r} has a zero character, which no argument of a program can have")
    return "\0".join(listed).encode()


def _mount_point() -> str:
    """Make an empty folder, on which each keeper mounts a private file system."""
    place = cache_folder() / "swe" / "mount"
    place.mkdir(parents=True, exist_ok=True)
    return str(place.resolve())


def _most_pids(processes: int) -> str:
    """Return the process limit of the keeper's namespace; empty before Linux 6.14, where the limit is machine-wide.

    It stops a fork bomb that is faster than the watch. Older kernels only limit a user's processes, which does not
    apply to root.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    own = release is not None and (int(release[1]), int(release[2])) >= (6, 14)
    return str(_RESERVED_PIDS + 2 * processes) if own else ""


def _keeper(arguments: list[str]) -> subprocess.Popen[bytes]:
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "--pid"]
    keeper = subprocess.Popen(
        [*namespaces, "--kill-child", "sh", "-c", _KEEP, "sh", *arguments],
        stdin=subprocess.PIPE,  # closed when this process ends, however it does
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    assert keeper.stdout
    if (said := keeper.stdout.readline()) != b"ready\n":
        _end(keeper)
        raise ConfigError(
            f"environment 'swe' cannot make a sandbox here: {said.decode(errors='replace').strip()}; it needs "
            "Linux 5.11 or newer and user namespaces, which some systems and containers forbid"
        )
    return keeper


def _end(keeper: subprocess.Popen[bytes]) -> None:
    for pid in descendants(keeper.pid, at_most=1)[:1]:  # unshare reaps it and ends, which leaves no zombie to others
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        keeper.wait(_END_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
    for pipe in (keeper.stdin, keeper.stdout):
        if pipe:
            pipe.close()


def _enter(pid: int) -> list[str]:
    spaces = {"user": "user", "mount": "mnt", "pid": "pid_for_children"}
    return [
        shutil.which("nsenter") or "nsenter",  # which has no PATH to look it up in
        *(f"--{kind}=/proc/{pid}/ns/{name}" for kind, name in spaces.items()),
        "--preserve-credentials",
        "--wd=/",
    ]


def _bubble(system: System, place: str, root: str, aliases: Sequence[str], read_only: bool) -> list[str]:
    """Make bubblewrap's arguments; all mounts except scratch folder and, unless told so, repository are read-only."""
    command = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", "--uid", USER_ID, "--gid", USER_ID, "--hostname", "sandbox", "--clearenv"]
    for name, value in system.variables.items():
        command += ["--setenv", name, value]
    for seen, path in system.mounts.items():
        command += ["--ro-bind", path, seen]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            command += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            command += ["--ro-bind", name, name]
    command += ["--ro-bind", f"{place}/passwd", "/etc/passwd", "--proc", "/proc", "--dev", "/dev"]
    command += ["--dev-bind", "/dev/full", "/dev/zero"]  # reads alike, and cannot be mapped as memory that none counts
    command += ["--ro-bind" if read_only else "--bind", f"{place}/merged", root]
    for name in (SCRATCH, "/tmp", "/dev/shm", *aliases):
        command += ["--bind", f"{place}/scratch", name]
    for name in system.covered:
        command += ["--size", "4096", "--tmpfs", name, "--remount-ro", name]
    # also /proc: the kernel lets a process that is root outside write most of /proc/sys, whatever its capabilities
    return [*command, "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", root]


def _written(upper: Path, snapshot: Path, most: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield the file changes in an overlay's upper folder, without following links."""
    folders, left = [""], most
    while folders:
        folder = folders.pop()
        below = Path(os.devnull) if _on_link(snapshot, folder) else snapshot
        try:
            entries = sorted(os.scandir(upper / folder), key=lambda entry: entry.name)
        except OSError:  # deeper than a path can be long
            continue
        if _opaque(upper / folder):
            there = {entry.name for entry in entries}
            for name in os.listdir(below / folder) if _is_folder(below / folder) else ():
                if name not in there:
                    yield from _gone(below, f"{folder}{name}")
        for entry in entries:
            path = f"{folder}{entry.name}"
            try:
                kind = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(kind.st_mode):
                folders.append(f"{path}/")
                if _is_file(below / path):
                    yield path, None
                continue
            if stat.S_ISREG(kind.st_mode):
                if (left := left - kind.st_size) < 0:
                    raise Oversized(f"the files hold more than {most >> 20} MiB")
                try:
                    content = Path(entry.path).read_bytes()
                except OSError:
                    continue
                if not _is_file(below / path) or (below / path).read_bytes() != content:
                    yield path, content
                if _is_folder(below / path):
                    yield from _gone(below, path)
            else:  # deleted, or something else in its place
                yield from _gone(below, path)


def _gone(snapshot: Path, path: str) -> Iterator[tuple[str, None]]:
    if _is_folder(snapshot / path):
        for name in sorted(os.listdir(snapshot / path)):
            yield from _gone(snapshot, f"{path}/{name}")
    elif _is_file(snapshot / path):
        yield path, None


def _opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _on_link(snapshot: Path, folder: str) -> bool:
    """Return whether a folder of the snapshot is reached through a link, which may lead to any file of this machine."""
    place = snapshot
    for part in filter(None, folder.split("/")):
        place /= part
        if stat.S_ISLNK(_mode(place)):
            return True
    return False


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:  # nothing is there, or its name is too long
        return 0
