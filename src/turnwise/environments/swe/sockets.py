"""Count the memory that the sockets of a network namespace may hold: no process has it mapped."""

import contextlib
import os
from collections.abc import Sequence

_QUEUES = ("tcp", "tcp6", "udp", "udp6")
_OVERHEAD = 2
"""Memory of a queued byte of TCP (bytes)."""


def held_by(pids: Sequence[int]) -> int:
    """Bound the bytes in the sockets of processes in a network namespace of their own; 0 if they have none.

    A Unix socket counts as its whole buffer, since the kernel does not say how much of it is full.

    Args:
        pids: Processes, the deepest last; all that have a namespace of their own have the same.
    """
    for pid in reversed(pids):
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                held = sum(_queued(f"/proc/{pid}/net/{name}") for name in _QUEUES)
                return _OVERHEAD * held + _unix_buffer() * (_num_lines(f"/proc/{pid}/net/unix") - 1)
    return 0


def _queued(table: str) -> int:
    """Sum what waits to be sent and to be read in a table of sockets."""
    total = 0
    with contextlib.suppress(FileNotFoundError), open(table) as lines:
        next(lines)
        for line in lines:
            sent, _, received = line.split(None, 5)[4].partition(":")
            total += int(sent, 16) + int(received, 16)
    return total


def _num_lines(path: str) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def _unix_buffer() -> int:
    with open("/proc/sys/net/core/wmem_default") as number:
        return int(number.read())
