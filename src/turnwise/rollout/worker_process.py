"""The processes of `turnwise.rollout.workers`: a starter that forks workers, and what a worker does.

The starter is a fresh interpreter without torch and without threads. It loads what makes the worlds once; its forks have it at no cost, and
all hash texts alike. It alone knows which workers are its children, so it ends them, too: one by one when it is told to, all of them and
whatever they started when its pipe closes, because the trainer has let go of it or is dead.
"""

import asyncio
import contextlib
import gc
import inspect
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from os.path import commonprefix
from time import perf_counter
from typing import Any, NamedTuple

from turnwise.environments.base import Environment, Step, Task, as_step, checked_step
from turnwise.errors import EnvironmentFault
from turnwise.rollout.worlds import cause_of

HEAD = struct.Struct("<q")
"""Length of what follows in a pipe of a worker; number of a process in the starter's."""

FORK = HEAD.pack(0)
"""Asks the starter for a worker; comes with the worker's end of its pipe."""

PATIENCE_S = 10.0
"""Longest wait for the starter to end a process."""

MAX_CAUSE = 1000
"""Characters of a cause that are kept."""


class Limits(NamedTuple):
    """What a worker holds its worlds to; see `turnwise.rollout.workers.WorkerWorlds`."""

    memory_mb: int | None
    max_observation_chars: int

    @property
    def max_bytes(self) -> int:
        """Longest answer as a whole: a few texts as long as the observation, in any script, but never less than 1 MiB."""
        return max(1 << 20, 16 * self.max_observation_chars)


class Played(NamedTuple):
    """One call of a world and what it answered; without a response it was `start`."""

    response: str | None
    observation: str
    reward: float


class Request(NamedTuple):
    """What a worker is asked: to play a response, to start a world (no response), or to forget it (neither).

    `made` comes where the worker does not have the world: the pickled task, and what was played in it before.
    """

    key: int
    made: tuple[bytes, list[Played]] | None
    response: str | None


def packed(message: Any) -> bytes:
    """A message as it goes through a pipe."""
    body = pickle.dumps(tuple(message), pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


class Starter:
    """The trainer's end of the process that forks workers, which is started with the first one."""

    def __init__(self, program: bytes, limits: Limits):
        self._program = pickle.dumps((limits, program))
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> socket.socket:
        """Ask for a worker; returns its pipe at once, it is ready when it says so."""
        if self._process and self._process.poll() is not None:
            self.close()  # it was killed
        if self._control is None:
            self._control = self._started()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, contextlib.suppress(OSError):  # the pipe, which nobody holds then, says so
            socket.send_fds(self._control, [FORK], [theirs.fileno()])
        return ours

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_S)
        command = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({theirs.fileno()})"
        with theirs, tempfile.TemporaryFile() as program:
            program.write(self._program)
            program.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", command],
                stdin=program,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the trainer's to handle
            )
        return ours

    def end(self, pid: int) -> str:
        """Kill a worker, unless it is dead; says how it ended. Blocks for a moment, about a millisecond."""
        try:
            if self._control:
                self._control.sendall(HEAD.pack(pid))
                code = HEAD.unpack(self._control.recv(HEAD.size))[0]
                return f"with signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        except (OSError, struct.error):
            self.close()
        return "as did the process that had started it"

    def close(self) -> None:
        """End all workers, and itself."""
        if self._control:
            self._control.close()
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S)
            with contextlib.suppress(ProcessLookupError):  # it leaves nobody behind, unless it was killed
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._control = self._process = None


def main(control_fd: int) -> None:
    """Be the starter. What to load comes on the standard input, requests on the pipe."""
    control = socket.socket(fileno=control_fd)
    limits, program = pickle.load(sys.stdin.buffer)
    make_environment, error = None, None
    try:
        make_environment = pickle.loads(program)
    except BaseException as raised:
        error = cause_of(raised)
    gc.freeze()  # pages that are never written stay shared between forks
    children: set[int] = set()
    while True:
        message, fds, *_ = socket.recv_fds(control, HEAD.size, 1)
        if not message:
            break
        if message == FORK:
            if not (child := os.fork()):
                control.close()
                _be_worker(socket.socket(fileno=fds[0]), make_environment, error, limits)
            children.add(child)
            os.close(fds[0])
        else:
            child = HEAD.unpack(message)[0]
            control.sendall(
                HEAD.pack(_end(child) if child in children else -signal.SIGKILL)
            )  # else an earlier starter's
            children.discard(child)
    for child in children:
        _end(child)
    os.killpg(0, signal.SIGKILL)  # and what the worlds have started


def _end(child: int) -> int:
    os.kill(child, signal.SIGKILL)  # a process that has died by itself keeps the status of that
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_worker(pipe: socket.socket, make_environment: Any, error: str | None, limits: Limits) -> None:
    """Serve until the pipe closes; does not return."""
    try:
        pipe.sendall(packed((os.getpid(), error)))
        if error:
            return
        if limits.memory_mb is not None:
            _limit_memory(limits.memory_mb)
        _serve(pipe, make_environment, limits)
    except (BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)


def _limit_memory(memory_mb: int) -> None:
    """Bound the address space to what the process has now and so much more."""
    import resource

    with open("/proc/self/statm") as numbers:
        now = int(numbers.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + memory_mb * 2**20, hard))


def _serve(pipe: socket.socket, make_environment: Callable[[Task], Environment], limits: Limits) -> None:
    worlds: dict[int, Environment] = {}
    runner = asyncio.Runner()

    def call(world: Environment, response: str | None) -> Step:
        answer: Any = world.start() if response is None else world.step(response)
        if inspect.isawaitable(answer):
            answer = runner.run(_awaited(answer))
        return as_step(answer) if response is None else checked_step(answer)

    def play(request: Request) -> tuple[float, Step]:
        begun = perf_counter()
        if request.made is not None:
            task, past = request.made
            worlds[request.key] = make_environment(pickle.loads(task))
            for turn, old in enumerate(past):
                again = call(worlds[request.key], old.response)
                same = again.observation == old.observation or not getattr(worlds[request.key], "repeats", True)
                if not same or again.reward != old.reward:
                    raise EnvironmentFault(_difference(turn, old, again))
            if past:
                begun = perf_counter()  # to be played again is no fault of its own
        step = call(worlds[request.key], request.response)
        if len(step.observation) > limits.max_observation_chars:
            raise EnvironmentFault(f"the world answered with an observation of {len(step.observation)} characters, "
                                   f"expected at most max_observation_chars={limits.max_observation_chars}")  # fmt: skip
        return perf_counter() - begun, step

    def answered(request: Request) -> bytes:
        try:
            answer = packed(play(request))
            if len(answer) > limits.max_bytes:
                raise EnvironmentFault(f"the world's answer takes {len(answer)} bytes, expected at most {limits.max_bytes} "
                                       f"with max_observation_chars={limits.max_observation_chars}")  # fmt: skip
            return answer
        except BaseException as error:  # a world that calls sys.exit must not end the others
            worlds.pop(request.key, None)
            return packed((0.0, _cause(error)))

    with pipe.makefile("rb", buffering=1 << 16) as stream:
        while head := stream.read(HEAD.size):
            request = Request(*pickle.loads(stream.read(HEAD.unpack(head)[0])))
            if request.made is None and request.response is None:
                worlds.pop(request.key, None)
            else:
                pipe.sendall(answered(request))


async def _awaited(answer: Any) -> Any:
    return await answer


def _cause(error: BaseException) -> str:
    try:
        return cause_of(error)[:MAX_CAUSE]
    except Exception:  # an error whose text raises, too
        return type(error).__name__


def _difference(turn: int, old: Played, again: Step) -> str:
    """Say where a replay went another way."""
    if again.observation == old.observation:
        what = f"paid {again.reward:g}, not {old.reward:g}"
    else:
        same = len(commonprefix([again.observation, old.observation]))  # noqa: RUF071 (no paths)
        what = f"said {again.observation[same : same + 40]!r}, not {old.observation[same : same + 40]!r} (character {same})"
    return (f"the world was played again after its worker was lost, and at turn {turn} {what}: "
            "it must depend on its task and the responses alone")  # fmt: skip
