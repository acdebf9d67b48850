"""Play environments in worker processes, so that one that crashes, hangs or exhausts memory affects no other.

A worker hosts many environments and answers requests one by one. If an environment hangs or kills its worker, the
worker's other environments are rebuilt elsewhere when next needed, by replaying their recorded responses.
`worker_process` holds the other end of the pipes.

A worker may run what a policy wrote, so its answers are read as data, and checked again. One that sends anything else
is ended, and the trajectories that it played fail.
"""

import asyncio
import dataclasses
import os
import pickle
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.environments.base import Environment, Step, Task
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Suite, SuiteEnvironments
from turnwise.environments.wire import Frames, ProtocolError
from turnwise.errors import ConfigError, EnvironmentFault
from turnwise.rollout.environments import Environments, InProcessEnvironments
from turnwise.rollout.worker_process import MAX_CAUSE, Answer, Limits, Played, Ready, Request, Starter

GRACE_S = 1.0
"""Seconds for more of an answer that has begun to arrive, ten times at most."""


class WorkerEnvironments:
    """Play environments in worker processes, which start when needed and serve all collections until `aclose`.

    Args:
        make_environment: Builds a fresh environment for a task. It is pickled, as are tasks; answers are data. A worker
            awaits environments whose methods are coroutines one at a time.
        workers: Processes; None: as many as cores.
        step_timeout_s: Longest time for one answer (seconds); for `start`, construction included.
        episode_timeout_s: Longest computing time of one environment in total (seconds); None: no limit.
        memory_mb: Address space of a worker in addition to its initial size (MiB), shared by its environments; None: no
            limit. Linux only.
        max_observation_chars: Longest observation (characters).
        isolation: Level from "worker" on; see `EnvironmentConfig.isolation`.
        image: Image of level "docker".
        pass_variables: Further environment variables for the workers.

    Raises:
        ConfigError: A limit is not above 0, or `make_environment` cannot be pickled.
    """

    def __init__(
        self,
        make_environment: Callable[[Task], Environment],
        *,
        workers: int | None = None,
        step_timeout_s: float = 60.0,
        episode_timeout_s: float | None = None,
        memory_mb: int | None = None,
        max_observation_chars: int = 100_000,
        isolation: str = "worker",
        image: str = "",
        pass_variables: Sequence[str] = (),
    ):
        self.num_workers = workers if workers is not None else os.cpu_count() or 1
        self.step_timeout_s, self.episode_timeout_s = step_timeout_s, episode_timeout_s
        for name in ("workers", "step_timeout_s", "episode_timeout_s", "memory_mb", "max_observation_chars"):
            value = locals()[name]
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value}: expected more than 0")
        if memory_mb is not None and sys.platform != "linux":
            raise ConfigError(f"memory_mb={memory_mb} needs Linux, this is {sys.platform}; remove it")
        try:
            program = pickle.dumps(make_environment, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise ConfigError(
                f"make_environment cannot be sent to a worker: {type(error).__name__}: {error}. "
                "Pass a function or class of a module, with settings that can be pickled"
            ) from error
        limits, wall = Limits(memory_mb, max_observation_chars), {"isolation": isolation, "image": image}
        self.limits = limits
        self._starter = Starter(program, limits, pass_variables=pass_variables, **wall)
        weakref.finalize(self, self._starter.close)  # if nobody called aclose
        self._lives: dict[int, _Life] = {}
        self._workers: list[_Worker] = []

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step; see `Environments.start`."""
        try:
            self._lives[key] = life = _Life(key, pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            raise EnvironmentFault(
                f"a task of type {type(task).__name__} cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error
        return await self._ask(life, None)

    async def step(self, key: int, response: str) -> Step:
        """Play one response; see `Environments.step`."""
        return await self._ask(self._lives[key], response)

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment in its worker; see `CopyingEnvironments.copy`."""
        life = self._lives[key]
        if life.broken:
            raise life.broken
        if life.home is None or life.home.has_died_idle():
            return False
        twin = self._lives[new] = dataclasses.replace(life, key=new, past=[*life.past], answer=_future(), origin=key)
        life.home.lives.add(twin)
        life.home.ask(twin, origin=key)
        _, copied = await self._answer(twin)
        twin.origin = None
        if not copied:
            self.close(new)
        return copied

    def close(self, key: int) -> None:
        """Release an environment."""
        if life := self._lives.pop(key, None):
            life.fail(EnvironmentFault("its environment was closed"))
            if life.home:
                life.home.forget(life)

    async def aclose(self) -> None:
        """Release all environments and end all workers."""
        for life in self._lives.values():
            life.fail(EnvironmentFault("its environment was closed"))
        self._lives.clear()
        for worker in list(self._workers):
            worker.abandon()
        self._starter.close()

    async def _ask(self, life: "_Life", response: str | None) -> Step:
        if life.broken:
            raise life.broken
        life.response, life.answer = response, _future()
        self._send(life)
        seconds, step = await self._answer(life)
        life.seconds += seconds
        if self.episode_timeout_s is not None and life.seconds > self.episode_timeout_s:
            raise EnvironmentFault(self._late(life))
        life.past.append(Played(response, step.observation, step.reward))
        return step

    async def _answer(self, life: "_Life") -> tuple[float, Any]:
        assert life.answer
        try:
            return await life.answer
        except asyncio.CancelledError:
            if life.home:
                life.home.settle()
            raise

    def _send(self, life: "_Life") -> None:
        """Send a request to the environment's worker, or to the worker with the fewest environments."""
        while life.home is None or life.home.has_died_idle():
            if life.home:
                life.home.end()
            life.home = min(self._workers, key=lambda worker: len(worker.lives), default=None)
            if life.home is None or (life.home.lives and len(self._workers) < self.num_workers):
                life.home = _Worker(self, *self._starter.fork())
                self._workers.append(life.home)
        made = None if life in life.home.lives else (life.task, life.past)
        life.home.lives.add(life)
        life.home.ask(life, made=made, response=life.response)

    def _patience(self, life: "_Life", *, anew: bool) -> float:
        """Return the longest time for an answer (seconds)."""
        left = self.step_timeout_s
        if self.episode_timeout_s is not None:
            left = min(left, self.episode_timeout_s - life.seconds)
        return left + self.step_timeout_s * len(life.past) * anew  # each past answer took no longer

    def _late(self, life: "_Life", waited: float = 0.0) -> str:
        if self.episode_timeout_s is not None and life.seconds + waited >= self.episode_timeout_s:
            return f"its environment took more than episode_timeout_s={self.episode_timeout_s:g} in total"
        return f"its environment gave no answer within step_timeout_s={self.step_timeout_s:g}"

    def _lost(self, worker: "_Worker") -> None:
        """Move the waiting requests of a lost worker to other workers."""
        if worker in self._workers:
            self._workers.remove(worker)
        for life in worker.lives:
            life.home = None
        for life in worker.asked:
            if life.origin is not None:
                life.succeed(0.0, False)
            elif life.waits:
                self._send(life)


def _future() -> asyncio.Future[tuple[float, Any]]:
    return asyncio.get_running_loop().create_future()


@dataclasses.dataclass(eq=False, slots=True)
class _Life:
    """An environment with all that is needed to rebuild it."""

    key: int
    task: bytes
    past: list[Played] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    home: "_Worker | None" = None
    response: str | None = None
    answer: asyncio.Future[tuple[float, Any]] | None = None  # of a step, or of whether it was copied
    origin: int | None = None  # key of the environment that it is being copied from
    broken: EnvironmentFault | None = None  # its worker broke the protocol, so that nothing it said counts

    @property
    def waits(self) -> bool:
        return self.answer is not None and not self.answer.done()

    def succeed(self, seconds: float, answer: Any) -> None:
        if self.answer and self.waits:
            self.answer.set_result((seconds, answer))

    def fail(self, error: Exception) -> None:
        if self.answer and self.waits:
            self.answer.set_exception(error)


class _Worker:
    """A process and its pipe; bound to an event loop only while it has environments."""

    def __init__(self, owner: WorkerEnvironments, number: int, pipe: socket.socket):
        self.owner, self.number, self.pipe = owner, number, pipe
        self.pid = 0  # as it says, once it is ready
        self.lives: set[_Life] = set()
        self.asked: deque[_Life] = deque()  # answers arrive in this order
        self._anew: deque[bool] = deque()  # which of them play a past again
        self._sent, self._answered = 0, 0  # requests, and answers to them
        self._unsent, self._received = bytearray(), Frames(owner.limits.max_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False  # whether the loop watches for room to write
        self._alarm: asyncio.TimerHandle | None = None

    def ask(self, life: _Life, **request: Any) -> None:
        self.asked.append(life)
        self._anew.append(bool((request.get("made") or [0, 0])[1]))
        self._sent += 1
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._detach()
            self._loop = loop
            loop.add_reader(self.pipe, self._read)
        self._unsent += Request(self._sent, life.key, **request).framed()
        self._write()
        if len(self.asked) == 1:
            self._watch()

    def forget(self, life: _Life) -> None:
        """Release an environment in the process."""
        self.lives.discard(life)
        self._unsent += Request(0, life.key).framed()
        self._write()
        self.settle()
        if not self.lives:
            self._detach()

    def settle(self) -> None:
        """End the worker if nobody waits for its answers, because the event loop may close before it is done."""
        if self.asked and not any(life.waits for life in self.asked):
            self.end()

    def abandon(self) -> None:
        """End the worker, even if requests wait."""
        self.asked.clear()
        self.end()

    def has_died_idle(self) -> bool:
        """Return whether the process died without a pending request, which is no environment's fault."""
        if self.asked:
            return False
        try:
            return not self.pipe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def end(self) -> str:
        """Kill the process unless it is dead, and return how it ended."""
        self._detach()
        self.pipe.close()
        how = self.owner._starter.end(self.number) if self.pid else ""  # a process that is not ready ends with its pipe
        self.owner._lost(self)
        return how

    def _blame(self, cause: str | None) -> None:
        """End the worker because of its first request."""
        life = self.asked.popleft()
        life.home = None
        self.lives.discard(life)
        how = self.end()
        life.fail(EnvironmentFault(cause or f"its worker process ended, {how}"))

    def _break(self, what: str) -> None:
        """End the worker because it broke the protocol, and fail all that it played."""
        fault = EnvironmentFault(f"its worker sent what is not an answer ({what}), and was ended")
        lives = self.lives | set(self.asked)
        self.asked.clear()
        self.end()
        for life in lives:
            life.broken = fault
            life.fail(fault)

    def _fail(self, error: Exception) -> None:
        """End a worker that never became usable."""
        for life in self.asked:
            life.fail(error)
        self.abandon()

    def _write(self) -> None:
        try:
            del self._unsent[: self.pipe.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the process has ended; `_read` handles it
            self._unsent.clear()
        if self._loop and self._writing != bool(self._unsent):
            self._writing = bool(self._unsent)
            self._loop.add_writer(self.pipe, self._write) if self._writing else self._loop.remove_writer(self.pipe)

    def _read(self) -> bool:
        """Read from the pipe; returns whether anything arrived."""
        try:
            chunk = self.pipe.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            if not self.pid:
                self._fail(EnvironmentFault("no worker process could be started; see its messages above"))
            elif self.asked:
                self._blame(None)
            else:
                self.end()
            return False
        self._received.add(chunk)
        try:
            while self._loop and (message := self._received.next()) is not None:  # stops once the worker has ended
                self._take(message)
        except ProtocolError as error:
            self._break(str(error))
        return bool(self._loop)

    def _take(self, message: bytes) -> None:
        """Read one message.

        Raises:
            ProtocolError: It is not one that was asked for.
        """
        if not self.pid:
            ready = Ready.read(message)
            self.pid = ready.pid or -1
            self.owner._starter.loaded = True
            if ready.error is not None:
                self._fail(ConfigError(f"workers cannot load make_environment: {ready.error[:MAX_CAUSE]}"))
            else:
                self._watch()
            return
        answer = Answer.read(message)
        if not self.asked or answer.number != self._answered + 1:
            raise ProtocolError(f"an answer to request {answer.number}, which it was not asked now")
        if len(self.asked) == 1 and len(self._received):
            raise ProtocolError(f"more than the answer to request {answer.number}")
        life = self.asked[0]
        told = self._told(answer, copies=life.origin is not None)
        self.asked.popleft()
        self._anew.popleft()
        self._answered += 1
        if isinstance(told, str):
            life.fail(EnvironmentFault(told))
        else:
            life.succeed(answer.seconds, told)
        self._watch()

    def _told(self, answer: Answer, *, copies: bool) -> Step | bool | str:
        """Return what an answer holds: a step, whether it was copied, or the cause of a fault."""
        given = [each for each in (answer.step, answer.copied, answer.fault) if each is not None]
        if len(given) != 1 or (given[0] is answer.step and copies) or (given[0] is answer.copied and not copies):
            raise ProtocolError(f"an answer to request {answer.number} without what was asked for")
        if answer.step is not None:
            return answer.step.step(self.owner.limits.max_observation_chars)
        return answer.fault[:MAX_CAUSE] if answer.fault is not None else bool(answer.copied)

    def _watch(self) -> None:
        """Start the timer of the first request, once the process is ready."""
        if self._alarm:
            self._alarm.cancel()
        if self.pid and self._loop and self.asked:
            patience = self.owner._patience(self.asked[0], anew=self._anew[0])
            self._alarm = self._loop.call_later(patience, self._overdue, patience)

    def _overdue(self, waited: float, had: int = 0, left: int = 10) -> None:
        """Fail the first request, unless its answer arrived, or more of it than the `had` bytes before."""
        late = self.asked[0]
        while self._loop and self._read():  # this event loop may have been blocked meanwhile
            pass
        if self._loop and self.asked and self.asked[0] is late:
            if (has := len(self._received)) > had and left:
                self._alarm = self._loop.call_later(GRACE_S, self._overdue, waited, has, left - 1)
            else:
                self._blame(self.owner._late(late, 0.0 if self._anew[0] else waited))

    def _detach(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        if self._loop:
            self._loop.remove_reader(self.pipe)
            self._loop.remove_writer(self.pipe)
        self._alarm, self._loop, self._writing = None, None, False


def make_environments(suite: Suite, config: EnvironmentConfig) -> Environments:
    """Make the environments of a suite, at the level of isolation that the configuration asks for."""
    if config.level == "in-process":
        return InProcessEnvironments(suite.environment)
    return WorkerEnvironments(
        SuiteEnvironments(config, suite),
        workers=config.workers or None,
        step_timeout_s=config.step_timeout_s,
        episode_timeout_s=config.episode_timeout_s,
        memory_mb=config.memory_mb,
        max_observation_chars=config.max_observation_chars,
        isolation=config.level,
        image=config.image,
        pass_variables=config.pass_variables,
    )
