"""Run a program, then end all that it started, even outside its session: `python supervise.py SOCKET PROGRAM ...`.

Linux gives orphans to this process (PR_SET_CHILD_SUBREAPER), so everything that the program started is its descendant.
Descendants are killed when the program ends, or when the other end of the socket closes because the trainer is done or
dead. If this process may make a control group, the kernel ends the group at once, however fast it forks. Then this
process ends the way the program did. It runs before each trajectory, without turnwise, so it must start fast.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator

SUPERVISED = sys.platform == "linux"
"""Whether descendants that left a session are found; elsewhere only the session ends with its program."""
SWEEP_S = 5.0
"""Time limit for killed processes to end (seconds); those of another user cannot be killed."""
_PR_SET_CHILD_SUBREAPER = 36


def main(number: str, *command: str) -> None:
    """Run a program, and end with its exit code or signal."""
    trainer = socket.socket(fileno=int(number))
    trainer.set_inheritable(False)
    # a separate group: signals to its group must not reach this process
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    supervisor = Supervisor()
    try:
        supervisor.start(lambda: os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=defaults))
    except OSError as error:
        trainer.sendall(str(error.errno).encode())
        return
    for stream in range(3):  # only the program and its children hold the pipes
        os.close(stream)
    supervisor.keep(trainer.fileno())


class Supervisor:
    """Start one program, and end it with everything that it started. Adopts orphans from the moment it is made."""

    def __init__(self) -> None:
        adopt_orphans()
        self._group = ControlGroup.make()
        self._program = 0

    def start(self, spawn: Callable[[], int]) -> int:
        """Start the program in its own control group, if there is one; returns what `spawn` returns.

        Args:
            spawn: Starts the program and returns its process id; 0 in the program itself, if it is forked.
        """
        if self._group:
            self._group.join()
        try:
            self._program = spawn()
        except OSError:
            if self._group:
                self._group.leave()
                self._group.kill()
            raise
        if self._program and self._group and not self._group.leave():
            self._group = None  # it holds this process too
        return self._program

    def keep(self, until: int) -> None:
        """Wait for the end of the program, or of a pipe or socket; kill all descendants; end as the program did.

        Args:
            until: File descriptor that becomes readable when the other end closes.
        """
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        status = self._reap()  # it may have ended before the signal was watched
        while status is None:
            ready, _, _ = select.select([woken, until], [], [])
            if woken in ready:
                os.read(woken, 4096)
                status = self._reap()
            if until in ready:
                break
        if self._group:
            self._group.kill()
        ended = sweep(self._program)
        status = ended.get(self._program, status)
        if self._group:
            self._group.remove()
        code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
        os._exit(code)

    def _reap(self) -> int | None:
        return reap().get(self._program)


def kill_strays(known: Collection[int]) -> None:
    """Kill descendants of this process that belong to no known child: those of a supervisor that died."""
    if SUPERVISED:
        _kill(descendants(os.getpid(), without=known))


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Adopt processes whose parent has ended, if the system can."""
    if SUPERVISED:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> dict[int, int]:
    """Reap children that have ended; returns their statuses by process id."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def sweep(*children: int) -> dict[int, int]:
    """Kill descendants of this process until none is left; returns the statuses of its children by process id.

    Args:
        children: Leaders of the process groups to kill on systems that do not list descendants.
    """
    until, found = time.monotonic() + SWEEP_S, {}
    while time.monotonic() < until:
        if SUPERVISED:
            _kill(_children())
            _kill(descendants(os.getpid()))
        for child in () if SUPERVISED else children:
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
        found |= reap()
        if not _has_children():
            break
        time.sleep(0.005)
    return found


def _children() -> Iterator[int]:
    """Yield the children of this process, the newest first and each at once.

    In a whole list, each process of a chain, which starts the next one and ends, has ended.
    """
    for pid in sorted(map(int, filter(str.isdecimal, os.listdir("/proc"))), reverse=True):
        if _parent(pid) == os.getpid():
            yield pid


def _parent(pid: int) -> int | None:
    """Return the parent of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])  # a name may hold brackets and spaces
    except (OSError, ValueError):
        return None


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def descendants(root: int, *, without: Collection[int] = ()) -> list[int]:
    """Return the descendants of a process, except some processes and their descendants."""
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        if (parent := _parent(pid)) is not None:
            children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), ()) if pid not in without]
        found += below
        waiting += below
    return found


class ControlGroup:
    """A control group (version 2) below this process's own."""

    def __init__(self, own: str):
        self._own, self._folder = own, f"{own}/turnwise-{os.getpid()}"
        with contextlib.suppress(FileExistsError):  # of a killed process with the same number
            os.mkdir(self._folder)

    @classmethod
    def make(cls) -> "ControlGroup | None":
        """Make a group that can be killed as a whole; None if this process may not or the kernel cannot."""
        with contextlib.suppress(OSError, ValueError):
            own = _own_group()
            group = cls(own) if own else None
            if group and not os.access(f"{group._folder}/cgroup.kill", os.W_OK):
                group.remove()
                return None
            return group
        return None

    def join(self) -> bool:
        """Enter the group, so that what this process starts is in it; returns whether it could."""
        return self._enter(self._folder)

    def leave(self) -> bool:
        """Go back to this process's own group; returns whether it could."""
        return self._enter(self._own)

    def kill(self) -> None:
        """Kill all processes of the group."""
        with contextlib.suppress(OSError):
            _write(f"{self._folder}/cgroup.kill", "1")

    def remove(self) -> None:
        """Remove the group, once its processes have been reaped."""
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)

    def _enter(self, folder: str) -> bool:
        try:
            _write(f"{folder}/cgroup.procs", str(os.getpid()))
        except OSError:
            return False
        return True


def _own_group() -> str | None:
    """Return the folder of this process's control group."""
    with open("/proc/self/cgroup") as lines:
        own = next((line[3:].rstrip("\n") for line in lines if line.startswith("0::")), None)
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            if own and after.startswith("cgroup2 "):
                root, place = before.split(" ")[3:5]
                if own == root or own.startswith(root.rstrip("/") + "/"):
                    return place + own[len(root.rstrip("/")) :].rstrip("/")
    return None


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
