"""Count the memory that the sockets of a network namespace may hold: no process has it mapped."""

import contextlib
import os
from collections.abc import Sequence

_QUEUES = ("tcp", "tcp6", "udp", "udp6")
_OVERHEAD = 2
"""Memory of a queued byte of TCP (bytes)."""


def held_by(pids: Sequence[int]) -> int:
    """Bound the bytes in the sockets of processes in a network namespace of their own; 0 if they have none.

    Each socket counts as a full buffer, since the kernel does not say how much of it is full; one of TCP or UDP, whose
    buffers grow, as what waits in it besides.

    Args:
        pids: Processes, the deepest last; all that have a namespace of their own have the same.
    """
    for pid in reversed(pids):
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                number, growing = _in_use(pid)
                tables = _QUEUES if growing else ()  # which take the kernel milliseconds each
                held = sum(_queued(f"/proc/{pid}/net/{name}") for name in tables)
                return _OVERHEAD * held + _buffer() * number
    return 0


def _in_use(pid: int) -> tuple[int, bool]:
    """Number of sockets of a process's namespace, and whether some of them are of TCP or UDP."""
    number, growing = 0, False
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/net/{name}") as lines:
            for line in lines:
                kind, _, used, *_ = line.split()
                number += int(used) if kind == "sockets:" else 0
                growing |= kind in ("TCP:", "UDP:", "TCP6:", "UDP6:") and used != "0"
    return number, growing


def _queued(table: str) -> int:
    """Sum what waits to be sent and to be read in a table of sockets."""
    total = 0
    with contextlib.suppress(FileNotFoundError), open(table) as lines:
        next(lines)
        for line in lines:
            sent, _, received = line.split(None, 5)[4].partition(":")
            total += int(sent, 16) + int(received, 16)
    return total


def _buffer() -> int:
    with open("/proc/sys/net/core/wmem_default") as number:
        return int(number.read())
