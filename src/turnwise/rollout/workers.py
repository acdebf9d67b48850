"""Worlds in worker processes, so that one that crashes, hangs or eats the memory takes no other with it, nor the run.

A worker hosts many worlds and answers one request after the other. When it is lost, because a world hung or killed it, the other worlds that
lived there are made anew elsewhere when they are next needed, and brought to where they were by playing their recorded responses.
See `worker_process` for the other end of the pipes.
"""

import asyncio
import dataclasses
import os
import pickle
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.environments.base import Environment, Step, Task
from turnwise.environments.suites import Suite, make_suite
from turnwise.errors import ConfigError, WorldFault
from turnwise.rollout.worker_process import HEAD, Limits, Played, Request, Starter, packed
from turnwise.rollout.worlds import InProcessWorlds, Worlds, cause_of

GRACE_S = 1.0
"""For the rest of an answer whose beginning has come."""


class WorkerWorlds:
    """Worlds in worker processes. Processes start when they are needed, and serve one collection after the other until `aclose`.

    Args:
        make_environment: Builds a fresh world for a task. It is pickled, as tasks and answers are. Worlds whose methods are coroutines
            are waited for one at a time in each worker.
        workers: Processes; None: as many as cores.
        step_timeout_s: Longest time for one answer (seconds), that of `start` with the making of the world.
        episode_timeout_s: Longest time that one world may compute in all (seconds); None: no limit.
        memory_mb: Address space that a worker may take beside what it begins with (MiB), shared by its worlds; None: no limit. Linux only.
        max_observation_chars: Longest observation.

    Raises:
        ConfigError: A limit makes no sense, or `make_environment` cannot be pickled.
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
    ):
        self.num_workers = workers if workers is not None else os.cpu_count() or 1
        self.step_timeout_s, self.episode_timeout_s = step_timeout_s, episode_timeout_s
        for name in ("workers", "step_timeout_s", "episode_timeout_s", "memory_mb", "max_observation_chars"):
            value = locals()[name]
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value}: expected more than 0")
        if memory_mb is not None and sys.platform != "linux":
            raise ConfigError(f"memory_mb={memory_mb} needs Linux, this is {sys.platform}; leave it out")
        try:
            program = pickle.dumps(make_environment, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise ConfigError(f"make_environment cannot be sent to a worker: {type(error).__name__}: {error}. Give a function or class of "
                              "a module, whose settings can be pickled") from error  # fmt: skip
        self._starter = Starter(program, Limits(memory_mb, max_observation_chars))
        weakref.finalize(self, self._starter.close)  # when nobody called aclose
        self._lives: dict[int, _Life] = {}
        self._workers: list[_Worker] = []

    async def start(self, key: int, task: Task) -> Step:
        """Make the world of a task and return what it says first; see `Worlds.start`."""
        try:
            self._lives[key] = life = _Life(key, pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            raise WorldFault(
                f"a task of type {type(task).__name__} cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error
        return await self._ask(life, None)

    async def step(self, key: int, response: str) -> Step:
        """Play one response; see `Worlds.step`."""
        return await self._ask(self._lives[key], response)

    def close(self, key: int) -> None:
        """Let go of a world."""
        if life := self._lives.pop(key, None):
            life.fail(WorldFault("its world was closed"))
            if life.home:
                life.home.forget(life)

    async def aclose(self) -> None:
        """Let go of everything."""
        for life in self._lives.values():
            life.fail(WorldFault("its world was closed"))
        self._lives.clear()
        for worker in list(self._workers):
            worker.abandon()
        self._starter.close()

    async def _ask(self, life: "_Life", response: str | None) -> Step:
        life.response, life.answer = response, asyncio.get_running_loop().create_future()
        self._send(life)
        try:
            seconds, step = await life.answer
        except asyncio.CancelledError:
            if life.home:
                life.home.settle()
            raise
        life.seconds += seconds
        if self.episode_timeout_s is not None and life.seconds > self.episode_timeout_s:
            raise WorldFault(self._late(life))
        life.past.append(Played(response, step.observation, step.reward))
        return step

    def _send(self, life: "_Life") -> None:
        """Hand a request to the world's worker, or to the one with the fewest worlds."""
        while life.home is None or life.home.has_died_idle():
            if life.home:
                life.home.end()
            life.home = min(self._workers, key=lambda worker: len(worker.lives), default=None)
            if life.home is None or (life.home.lives and len(self._workers) < self.num_workers):
                life.home = _Worker(self, self._starter.fork())
                self._workers.append(life.home)
        made = None if life in life.home.lives else (life.task, life.past)
        life.home.lives.add(life)
        life.home.ask(life, Request(life.key, made, life.response))

    def _patience(self, life: "_Life", *, anew: bool) -> float:
        """Seconds that an answer may take."""
        left = self.step_timeout_s
        if self.episode_timeout_s is not None:
            left = min(left, self.episode_timeout_s - life.seconds)
        return left + self.step_timeout_s * len(life.past) * anew  # each past answer took no longer

    def _late(self, life: "_Life", waited: float = 0.0) -> str:
        if self.episode_timeout_s is not None and life.seconds + waited >= self.episode_timeout_s:
            return f"its world took more than episode_timeout_s={self.episode_timeout_s:g} in all"
        return f"its world gave no answer within step_timeout_s={self.step_timeout_s:g}"

    def _lost(self, worker: "_Worker") -> None:
        """A worker is gone: whoever still waits is served elsewhere."""
        if worker in self._workers:
            self._workers.remove(worker)
        for life in worker.lives:
            life.home = None
        for life in worker.asked:
            if life.waits:
                self._send(life)


@dataclasses.dataclass(eq=False, slots=True)
class _Life:
    """A world as its owner knows it: enough to make it anew."""

    key: int
    task: bytes
    past: list[Played] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    home: "_Worker | None" = None
    response: str | None = None
    answer: asyncio.Future[tuple[float, Step]] | None = None

    @property
    def waits(self) -> bool:
        return self.answer is not None and not self.answer.done()

    def fail(self, error: Exception) -> None:
        if self.waits:
            assert self.answer
            self.answer.set_exception(error)


class _Worker:
    """A process and its pipe. It is tied to an event loop only while it has worlds."""

    def __init__(self, owner: WorkerWorlds, pipe: socket.socket):
        self.owner, self.pipe, self.pid = owner, pipe, 0
        self.lives: set[_Life] = set()
        self.asked: deque[_Life] = deque()  # answers come in this order
        self._anew: deque[bool] = deque()  # which of them made their world anew
        self._unsent, self._received = bytearray(), bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False  # whether the loop says when there is room to write
        self._alarm: asyncio.TimerHandle | None = None

    def ask(self, life: _Life, request: Request) -> None:
        self.asked.append(life)
        self._anew.append(request.made is not None)
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._detach()
            self._loop = loop
            loop.add_reader(self.pipe, self._read)
        self._unsent += packed(request)
        self._write()
        if len(self.asked) == 1:
            self._watch()

    def forget(self, life: _Life) -> None:
        """A world is no longer needed."""
        self.lives.discard(life)
        self._unsent += packed(Request(life.key, None, None))
        self._write()
        self.settle()
        if not self.lives:
            self._detach()

    def settle(self) -> None:
        """End a worker that computes what nobody waits for: the event loop may be gone before it is done."""
        if self.asked and not any(life.waits for life in self.asked):
            self.end()

    def abandon(self) -> None:
        """End it, whoever waits."""
        self.asked.clear()
        self.end()

    def has_died_idle(self) -> bool:
        """Whether it died when it was not asked anything: no world's fault."""
        if self.asked:
            return False
        try:
            return not self.pipe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def end(self) -> str:
        """Kill the process, unless it is dead already; says how it ended."""
        self._detach()
        self.pipe.close()
        how = self.owner._starter.end(self.pid) if self.pid else ""  # one that is not ready ends with its pipe
        self.owner._lost(self)
        return how

    def _blame(self, cause: str | None) -> None:
        """End it for the sake of the first request."""
        life = self.asked.popleft()
        life.home = None
        self.lives.discard(life)
        how = self.end()
        life.fail(WorldFault(cause or f"its worker process ended, {how}"))

    def _fail(self, error: Exception) -> None:
        """End it when it could do nothing at all."""
        for life in self.asked:
            life.fail(error)
        self.abandon()

    def _write(self) -> None:
        try:
            del self._unsent[: self.pipe.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the process is gone, as `_read` will see
            self._unsent.clear()
        if self._loop and self._writing != bool(self._unsent):
            self._writing = bool(self._unsent)
            self._loop.add_writer(self.pipe, self._write) if self._writing else self._loop.remove_writer(self.pipe)

    def _read(self) -> bool:
        """Take what has come; says whether anything has, so that there may be more."""
        try:
            chunk = self.pipe.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            if not self.pid:
                self._fail(WorldFault("no worker process could be started; its messages say why"))
            elif self.asked:
                self._blame(None)
            else:
                self.end()
            return False
        self._received += chunk
        place = 0
        while self._loop and len(self._received) >= place + HEAD.size:  # no longer once it has ended
            body = place + HEAD.size
            place_after = body + HEAD.unpack_from(self._received, place)[0]
            if len(self._received) < place_after:
                break
            self._take(bytes(self._received[body:place_after]))
            place = place_after
        del self._received[:place]
        if place:
            self._watch()
        return True

    def _take(self, message: bytes) -> None:
        if not self.pid:
            self.pid, error = pickle.loads(message)
            if error:
                cause = (
                    f"workers cannot load make_environment: {error}. It must come from a module that they can import"
                )
                self._fail(ConfigError(cause))
            return
        life = self.asked.popleft()
        self._anew.popleft()
        if life.waits:
            assert life.answer
            try:
                seconds, answer = pickle.loads(message)
            except Exception as error:  # a class that only the worker could import
                life.fail(WorldFault(f"its answer cannot be read: {cause_of(error)}"))
                return
            if isinstance(answer, str):
                life.fail(WorldFault(answer))
            else:
                life.answer.set_result((seconds, answer))

    def _watch(self) -> None:
        """Give the first request its time; the clock does not run before the process is ready."""
        if self._alarm:
            self._alarm.cancel()
        if self.pid and self._loop and self.asked:
            patience = self.owner._patience(self.asked[0], anew=self._anew[0])
            self._alarm = self._loop.call_later(patience, self._overdue, patience)

    def _overdue(self, waited: float, had: int = 0) -> None:
        """Blame the first request, unless its answer is here, or more of it than the bytes that it `had`."""
        late = self.asked[0]
        while self._loop and self._read():  # this loop itself may have been busy for so long
            pass
        if self._loop and self.asked and self.asked[0] is late:
            if (has := len(self._received)) > had:
                self._alarm = self._loop.call_later(GRACE_S, self._overdue, waited, has)
            else:
                self._blame(self.owner._late(late, 0.0 if self._anew[0] else waited))

    def _detach(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        if self._loop:
            self._loop.remove_reader(self.pipe)
            self._loop.remove_writer(self.pipe)
        self._alarm, self._loop, self._writing = None, None, False


class SuiteEnvironments:
    """Builds the worlds of a configured suite. Only the configuration is pickled; the starter loads the suite anew, once for all workers."""

    def __init__(self, config: EnvironmentConfig, suite: Suite | None = None):
        self.config, self.suite = config, suite or make_suite(config)

    def __call__(self, task: Task) -> Environment:
        """Build a fresh world."""
        return self.suite.environment(task)

    def __reduce__(self) -> tuple[Any, ...]:
        return SuiteEnvironments, (self.config,)


def make_worlds(suite: Suite, config: EnvironmentConfig) -> Worlds:
    """Where a suite is played: in this process, or in `environment.workers` others."""
    if not config.workers:
        return InProcessWorlds(suite.environment)
    return WorkerWorlds(
        SuiteEnvironments(config, suite),
        workers=config.workers,
        step_timeout_s=config.step_timeout_s,
        episode_timeout_s=config.episode_timeout_s,
        memory_mb=config.memory_mb,
        max_observation_chars=config.max_observation_chars,
    )
