"""Run the processes of `turnwise.environments.workers`: a starter that forks workers, and the workers.

Requests are pickled, since the trainer is trusted. Answers are data (`turnwise.environments.wire`), since code in a
worker may obey a policy's text; the starter's are numbers.

The starter is a fresh interpreter without torch and without threads. It loads the environments' code once; its forks
share it at no cost and use the same hash seed. Between it and each worker is a keeper, which ends the worker with
everything that its environments started (`turnwise.environments.supervise`): on request, or when the starter dies or
its pipe closes.
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
from collections.abc import Callable, Sequence
from os.path import commonprefix
from time import perf_counter, process_time
from typing import Any, NamedTuple

from turnwise.base.errors import EnvironmentFault
from turnwise.environments import supervise
from turnwise.environments.base import Environment, Step, Task, as_step, checked_step
from turnwise.environments.containers import make_launcher
from turnwise.environments.hosts import cause_of
from turnwise.environments.isolation import clean_variables, hide_this_process, how_ended, leave_if_forked
from turnwise.environments.launchers import connected
from turnwise.environments.wire import HEAD, Message, PlainStep, Seconds, Text

NUMBER = struct.Struct("<q")
"""In the starter's pipe: number of a worker, to fork if its end of its pipe comes along, otherwise to end; exit code in
the answer."""

PATIENCE_S = 10.0
"""Time limit for the starter to end a process (seconds)."""

MAX_CAUSE = 1000
"""Maximum length of a fault's recorded cause (characters)."""


class WorkerLimits(NamedTuple):
    """Limits of a worker's environments; see `turnwise.environments.workers.WorkerEnvironments`."""

    memory_mb: int | None
    max_observation_chars: int

    @property
    def max_bytes(self) -> int:
        """Maximum answer size (bytes): several texts as long as the longest observation, at least 1 MiB."""
        return max(1 << 20, 16 * self.max_observation_chars)


class EnvironmentCall(NamedTuple):
    """One call of an environment with its answer; response None is the call of `start`."""

    response: str | None
    observation: str
    reward: float


class WorkerRequest(NamedTuple):
    """A request to a worker: play a response, start an environment (no response), or forget it (number 0).

    `number` counts the requests that are answered. `made` is set if the worker does not have the environment: the
    pickled task, and the calls to replay. `origin` is set to copy the environment of another key instead; the answer
    says whether it has a method `copy`.
    """

    number: int
    key: int
    made: tuple[bytes, list[EnvironmentCall]] | None = None
    response: str | None = None
    origin: int | None = None

    def framed(self) -> bytes:
        """Serialize the request, with its length in front."""
        body = pickle.dumps(tuple(self), pickle.HIGHEST_PROTOCOL)
        return HEAD.pack(len(body)) + body


class Ready(Message):
    """The first message of a worker."""

    pid: int  # its process, only for messages: nothing in the trainer depends on it
    error: Text | None  # why it cannot load the environments


class WorkerAnswer(Message):
    """The answer to one request: a step, whether it was copied, or the cause of a fault."""

    number: int  # number of the request
    seconds: Seconds  # time that the environment took
    # Processor time of the worker and of what it has started and ended since the answer before (seconds)
    computed: Seconds = 0.0
    step: PlainStep | None = None
    copied: bool | None = None
    fault: Text | None = None


class Starter:
    """Control the process that forks workers; it starts with the first worker.

    Args:
        program: Pickled function that builds environments.
        limits: Limits of a worker.
        isolation: Setting `environment.isolation`.
        image: Setting `environment.image`.
        pass_variables: Setting `environment.pass_variables`.

    Attributes:
        loaded: Whether a worker was ready; until then, the process loads code and cannot react to a request to end.

    Raises:
        ConfigError: The isolation is not available on this machine.
    """

    def __init__(
        self,
        program: bytes,
        limits: WorkerLimits,
        *,
        isolation: str = "worker",
        image: str = "",
        pass_variables: Sequence[str] = (),
    ):
        self._program = pickle.dumps((limits, program))
        self._launcher = make_launcher(isolation, clean_variables(pass_variables), image)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._workers = 0
        self.loaded = False

    def fork(self) -> tuple[int, socket.socket]:
        """Request a worker; return its number and its pipe at once. The worker sends a message when ready."""
        if self._process and self._process.poll() is not None:
            self.close()  # the starter was killed
        if self._control is None:
            self._control = self._started()
        self._workers += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, contextlib.suppress(OSError):  # the pipe is closed then, which reports the error
            socket.send_fds(self._control, [NUMBER.pack(self._workers)], [theirs.fileno()])
        return self._workers, ours

    def _started(self) -> socket.socket:
        hide_this_process()
        self.loaded = False
        with tempfile.TemporaryFile() as program:
            program.write(self._program)
            program.seek(0)
            self._process, control = self._launcher.launch(__name__, program)
        control.settimeout(PATIENCE_S)
        return control

    def end(self, number: int) -> str:
        """Kill a worker unless it is dead, and return how it ended. Blocks for about a millisecond."""
        try:
            if self._control:
                self._control.sendall(NUMBER.pack(number))
                return f"with {how_ended(NUMBER.unpack(self._control.recv(NUMBER.size))[0])}"
        except (OSError, struct.error):
            self.close()
        return "as did the process that had started it"

    def close(self) -> None:
        """End all workers and the starter."""
        if self._control:
            self._control.close()
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S if self.loaded else 0)
            with contextlib.suppress(ProcessLookupError):  # the starter ends its workers, unless it was killed
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._launcher.close()
        self._control = self._process = None


def main(place: str = "") -> None:
    """Run the starter. Standard input holds the code to load; requests come through the socket; see `connected`."""
    hide_this_process()  # and its forks, so that no worker takes the pipe of another
    control = connected(place)
    limits, program = pickle.load(sys.stdin.buffer)
    make_environment, error, mend = None, None, ". Define it in a module that they can import"
    try:
        make_environment = pickle.loads(program)
        mend = ""
        getattr(make_environment, "preload_suite", lambda: None)()  # of `SuiteEnvironments`
    except BaseException as raised:
        error = cause_of(raised) + mend * isinstance(raised, ImportError | AttributeError)
    gc.freeze()  # unwritten pages stay shared between forks
    supervise.adopt_orphans()
    keepers: dict[int, _Keeper] = {}
    while True:
        message, fds, *_ = socket.recv_fds(control, NUMBER.size, 1)
        if not message:
            break
        number = NUMBER.unpack(message)[0]
        if fds:
            pipe = socket.socket(fileno=fds[0])
            keepers[number] = _fork_keeper(pipe, [control, *keepers.values()], make_environment, error, limits)
            pipe.close()
        else:  # an unknown number is of an earlier starter's worker
            code = keepers.pop(number).end() if number in keepers else -signal.SIGKILL
            supervise.kill_strays([keeper.pid for keeper in keepers.values()])
            control.sendall(NUMBER.pack(code))
    for keeper in keepers.values():
        keeper.close()
    for keeper in keepers.values():
        keeper.end()
    supervise.sweep()
    os.killpg(0, signal.SIGKILL)


class _Keeper(NamedTuple):
    """A process that ends a worker, with everything that it started, when this end of a pipe closes."""

    pid: int
    pipe: socket.socket

    def close(self) -> None:
        """Make it end the worker."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)  # the process it keeps may have stopped it

    def end(self) -> int:
        """Make it end the worker, and return how the worker ended; one that died before keeps its own status."""
        self.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _fork_keeper(
    pipe: socket.socket,
    closed: Sequence[socket.socket | _Keeper],
    make_environment: Any,
    error: str | None,
    limits: WorkerLimits,
) -> _Keeper:
    """Fork a keeper and its worker."""
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        return _Keeper(pid, ours)
    try:
        os.setpgid(0, 0)  # a signal to the starter's group must not stop it
        for each in (ours, *closed):
            (each.pipe if isinstance(each, _Keeper) else each).close()
        keeper = supervise.Supervisor()
        if not keeper.start(os.fork):
            os.setpgid(0, 0)
            theirs.close()
            _be_worker(pipe, make_environment, error, limits)
        pipe.close()
        keeper.keep(theirs.fileno())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _be_worker(pipe: socket.socket, make_environment: Any, error: str | None, limits: WorkerLimits) -> None:
    """Serve until the pipe closes; does not return."""
    os.register_at_fork(after_in_child=lambda: os.close(pipe.fileno()))  # a child of an environment cannot answer
    try:
        pipe.sendall(Ready(pid=os.getpid(), error=error).framed())
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
    """Limit the address space to the current size plus `memory_mb` MiB."""
    import resource

    with open("/proc/self/statm") as numbers:
        now = int(numbers.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + memory_mb * 2**20, hard))


def _serve(pipe: socket.socket, make_environment: Callable[[Task], Environment], limits: WorkerLimits) -> None:
    environments: dict[int | None, Any] = {}
    runner = asyncio.Runner()

    def call(environment: Environment, response: str | None) -> Step:
        answer: Any = environment.start() if response is None else environment.step(response)
        if inspect.isawaitable(answer):
            answer = runner.run(_awaited(answer))
        return as_step(answer) if response is None else checked_step(answer)

    def copied(request: WorkerRequest) -> WorkerAnswer:
        begun = perf_counter()
        copy = getattr(environments[request.origin], "copy", None)
        if copy is None:
            return WorkerAnswer(number=request.number, seconds=0.0, copied=False)
        made = copy()
        environments[request.key] = runner.run(_awaited(made)) if inspect.isawaitable(made) else made
        return WorkerAnswer(number=request.number, seconds=perf_counter() - begun, copied=True)

    def play(request: WorkerRequest) -> WorkerAnswer:
        begun = perf_counter()
        if request.made is not None:
            task, past = request.made
            environments[request.key] = make_environment(pickle.loads(task))
            for turn, old in enumerate(past):
                again = call(environments[request.key], old.response)
                same = again.observation == old.observation or not getattr(environments[request.key], "repeats", True)
                if not same or again.reward != old.reward:
                    raise EnvironmentFault(_difference(turn, old, again))
            if past:
                begun = perf_counter()  # the replay does not count as its time
        step = call(environments[request.key], request.response)
        if len(step.observation) > limits.max_observation_chars:
            raise EnvironmentFault(
                f"the environment answered with an observation of {len(step.observation)} characters, "
                f"expected at most max_observation_chars={limits.max_observation_chars}"
            )
        seconds, answer = perf_counter() - begun, PlainStep.of(step)
        return WorkerAnswer(number=request.number, seconds=seconds, computed=computed(), step=answer)

    def computed() -> float:
        nonlocal spent
        before, spent = spent, process_time() + sum(os.times()[2:4])  # including ended children
        return spent - before

    def answered(request: WorkerRequest) -> bytes:
        raised = None
        try:
            answer = (play(request) if request.origin is None else copied(request)).framed()
            if len(answer) > limits.max_bytes:
                raise EnvironmentFault(
                    f"the environment's answer takes {len(answer)} bytes, expected at most {limits.max_bytes} "
                    f"with max_observation_chars={limits.max_observation_chars}"
                )
        except BaseException as error:  # an environment that calls sys.exit must not end the worker
            raised = error
            environments.pop(request.key, None)
            answer = WorkerAnswer(number=request.number, seconds=0.0, fault=cause_of(error)[:MAX_CAUSE]).framed()
        leave_if_forked(pid, raised)
        return answer

    pid, spent = os.getpid(), 0.0
    with pipe.makefile("rb", buffering=1 << 16) as stream:
        while head := stream.read(HEAD.size):
            request = WorkerRequest(*pickle.loads(stream.read(HEAD.unpack(head)[0])))
            if not request.number:
                environments.pop(request.key, None)
            else:
                pipe.sendall(answered(request))


async def _awaited(answer: Any) -> Any:
    return await answer


def _difference(turn: int, old: EnvironmentCall, again: Step) -> str:
    """Describe where a replay differs from the recorded call."""
    if again.observation == old.observation:
        what = f"returned reward {again.reward:g}, expected {old.reward:g}"
    else:
        same = len(commonprefix([again.observation, old.observation]))  # noqa: RUF071 (no paths)
        got, expected = again.observation[same : same + 40], old.observation[same : same + 40]
        what = f"answered {got!r}, expected {expected!r} (character {same})"
    return (
        f"the environment was replayed after its worker was lost, and at turn {turn} {what}: "
        "make it depend only on its task and the responses"
    )
