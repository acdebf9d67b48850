"""Runs a command of the operating system under a watch: its output, its time, and the processes and memory of all that it starts.

The kernel's own limits do not reach everywhere (that on processes does not bind root, that on memory binds each process alone), and control groups
are there for few. So the watch looks every few milliseconds, and kills the first process of the command's own process namespace: all die with it.
"""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from time import monotonic

from turnwise.environments.swe.workspace import Ending, Outcome

LOOK_S = 0.025
"""Time between two looks."""
_REAPED_S = 5.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


def run_watched(
    command: Sequence[str],
    *,
    stdin: bytes,
    seconds: float,
    output_chars: int,
    memory_mb: int | None = None,
    processes: int | None = None,
) -> Outcome:
    """Run a command to its end or to a limit.

    Args:
        command: Program and arguments.
        stdin: What it reads.
        seconds: It may take.
        output_chars: Bytes of its output that are kept.
        memory_mb: Of all its descendants together (MiB); None: no limit.
        processes: Descendants at one time; None: no limit.
    """
    begun = monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdin
    assert process.stdout
    kept, unsent, stopped = bytearray(), memoryview(stdin), ""
    os.set_blocking(process.stdin.fileno(), False)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            looked = begun
            while selector.get_map() and process.stdout in {key.fileobj for key in selector.get_map().values()}:
                for key, _ in selector.select(LOOK_S):
                    if key.fileobj is process.stdin:
                        unsent = _send(process.stdin.fileno(), unsent)
                        if not unsent:
                            selector.unregister(process.stdin)
                            with contextlib.suppress(BrokenPipeError):
                                process.stdin.close()
                    elif chunk := os.read(process.stdout.fileno(), 1 << 16):
                        kept += chunk[: max(0, output_chars - len(kept))]
                    else:
                        selector.unregister(process.stdout)
                if monotonic() - begun > seconds:
                    stopped = "time"
                    break
                if monotonic() - looked >= LOOK_S:
                    looked = monotonic()
                    if stopped := _excess(process.pid, memory_mb, processes):
                        break
        if not stopped:  # who closes its output may still run
            stopped = _wait(process, begun + seconds)
    finally:
        _kill(process)
    code = process.returncode if not stopped else -signal.SIGKILL
    return Outcome(code=code, output=bytes(kept), stopped_by=stopped, seconds=monotonic() - begun)


def _send(fd: int, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(fd, unsent[: 1 << 16]) :] if unsent else unsent
    except BlockingIOError:
        return unsent
    except OSError:  # it reads no more
        return unsent[:0]


def _wait(process: subprocess.Popen[bytes], until: float) -> Ending:
    try:
        process.wait(max(0.0, until - monotonic()))
    except subprocess.TimeoutExpired:
        return "time"
    return ""


def _excess(pid: int, memory_mb: int | None, processes: int | None) -> Ending:
    """Which limit the descendants of a process are beyond."""
    found = descendants(pid, at_most=10 * (processes or 10_000))
    if processes is not None and len(found) > processes:
        return "processes"
    if memory_mb is not None and sum(map(_resident, found)) > memory_mb * 2**20:
        return "memory"
    return ""


def descendants(pid: int, *, at_most: int = 100_000) -> list[int]:
    """Processes that a process started, and those that they did, in the order of their depth; no longer list than `at_most` wants."""
    found, place = [pid], 0
    while place < len(found) <= at_most:
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{found[place]}/task"):
                with open(f"/proc/{found[place]}/task/{thread}/children") as children:
                    found += map(int, children.read().split())
        place += 1
    return found[1:]


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as numbers:
            return int(numbers.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and all that it started: what is in a process namespace ends with the namespace's first process."""
    if process.poll() is None:
        found = descendants(process.pid, at_most=8)
        for pid in found:  # the first ones are ours: wrappers, then the namespace's first
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:  # the first wrapper ends when it has reaped the next one, which nobody else may do: a container's first process often does not
            process.wait(_REAPED_S if found else 0.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
