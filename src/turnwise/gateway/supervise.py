"""Run a program, and end all that it started, also what left its session: `python supervise.py SOCKET PROGRAM ...`.

Linux gives orphans to this process (PR_SET_CHILD_SUBREAPER), so that all that the program started are its descendants.
They are killed when the program ends, or when the other end of the socket closes: the trainer has had enough, or died.
Then this process ends as the program did. Runs before each trajectory, without turnwise: it must start fast.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
SWEEP_S = 5.0
"""Longest time for killed processes to end (seconds); those of another user cannot be killed."""


def main(number: str, *command: str) -> None:
    """Run a program, and end with its exit code or signal."""
    trainer = socket.socket(fileno=int(number))
    trainer.set_inheritable(False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        # a group of its own: what it sends to its group must not reach this process
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        program = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=defaults)
    except OSError as error:
        trainer.sendall(str(error.errno).encode())
        return
    for stream in range(3):  # only the program and its children hold the pipes
        os.close(stream)
    status = None
    while status is None:
        ready, _, _ = select.select([woken, trainer], [], [])
        if woken in ready:
            os.read(woken, 4096)
            status = _reap(program)
        if trainer in ready:
            break
    status = _sweep(program, status)
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _reap(program: int) -> int | None:
    """Reap children that have ended; returns the status of the program if it is one of them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found = status if pid == program else found
    return found


def _sweep(program: int, status: int | None) -> int | None:
    """Kill descendants until none is left; returns the status of the program."""
    until = time.monotonic() + SWEEP_S
    while time.monotonic() < until:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while True:
                pid, ended = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                status = ended if pid == program else status
        except ChildProcessError:
            break
        time.sleep(0.005)
    return status


def descendants(root: int) -> list[int]:
    """Return the processes that a process and its children started."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])  # a name may hold brackets and spaces
                children.setdefault(parent, []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
