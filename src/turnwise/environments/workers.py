"""Play environments in worker processes, so that one that crashes, hangs or exhausts memory affects no other.

A worker hosts many environments and answers requests one by one. If an environment hangs or kills its worker, the
worker's other environments are rebuilt elsewhere when next needed, by replaying their recorded responses.
`worker_process` holds the other end of the pipes.

A worker may run what a policy wrote, so its answers are read as data, and checked again. A worker that sends anything
else is ended, and the trajectories that it played fail.
"""

import asyncio
import dataclasses
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Environment, Step, Task
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Suite, SuiteEnvironments, refuse_agents_suite
from turnwise.environments.worker import Life, Worker, make_future
from turnwise.environments.worker_process import EnvironmentCall, Starter, WorkerAnswer, WorkerLimits

FEW_ANSWERS = 16
"""Number of answers that is too small to predict others."""
MOST_PER_CORE = 8
"""Maximum number of workers per core."""
_LIMITS = ("step_timeout_s", "episode_timeout_s", "memory_mb", "max_observation_chars")


class Load:
    """How many workers keep the cores busy: one per core, and more where environments wait rather than compute."""

    def __init__(self) -> None:
        self._answers, self._seconds, self._computed = 0, 0.0, 0.0

    def add(self, answer: WorkerAnswer) -> None:
        """Count an answer."""
        self._answers += 1
        self._seconds += answer.seconds
        self._computed += min(answer.computed, answer.seconds)

    @property
    def num_workers(self) -> int:
        """Number of workers: cores over the share of their time in which environments compute."""
        cores = os.cpu_count() or 1
        if self._answers < FEW_ANSWERS:
            return cores
        waits = self._seconds / max(self._computed, 1e-9)
        return round(cores * min(max(waits, 1.0), MOST_PER_CORE))


class WorkerEnvironments:
    """Play environments in worker processes, which start when needed and serve all collections until `aclose`.

    Args:
        make_environment: Builds a fresh environment for a task. It is pickled, as are tasks; answers are data. A worker
            awaits environments whose methods are coroutines one at a time.
        workers: Processes; None: as many as keep the cores busy, see `Load`.
        step_timeout_s: Time limit for one answer (seconds); for `start`, including construction.
        episode_timeout_s: Limit on the total computing time of one environment (seconds); None: no limit.
        memory_mb: Address space of a worker in addition to its initial size (MiB), shared by its environments; None: no
            limit. Linux only.
        max_observation_chars: Maximum observation length (characters).
        isolation: "worker" or a higher level; see `EnvironmentConfig.isolation`.
        image: Image of level "docker".
        pass_variables: Additional environment variables for the workers.

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
        self.num_workers, self.load = workers, Load()
        self.step_timeout_s, self.episode_timeout_s = step_timeout_s, episode_timeout_s
        given = locals()
        for name in ("workers", *_LIMITS):
            value = given[name]
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
        limits, wall = WorkerLimits(memory_mb, max_observation_chars), {"isolation": isolation, "image": image}
        self.limits = limits
        self.starter = Starter(program, limits, pass_variables=pass_variables, **wall)
        weakref.finalize(self, self.starter.close)  # if aclose was not called
        self._lives: dict[int, Life] = {}
        self._workers: list[Worker] = []

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step; see `Environments.start`."""
        try:
            self._lives[key] = life = Life(key, pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            raise EnvironmentFault(
                f"a task of type {type(task).__name__} cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error
        return await self._ask(life, None)

    async def step(self, key: int, response: str) -> Step:
        """Play one response; see `Environments.step`."""
        return await self._ask(self._life(key), response)

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment in its worker; see `CopyingEnvironments.copy`."""
        life = self._life(key)
        if life.broken:
            raise life.broken
        if life.home is None or life.home.has_died_idle():
            return False
        twin = self._lives[new] = dataclasses.replace(
            life, key=new, past=[*life.past], answer=make_future(), origin=key
        )
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
        self.starter.close()

    def _life(self, key: int) -> Life:
        if key not in self._lives:  # a run may end while what it has started ahead is played
            raise EnvironmentFault("its environment was closed")
        return self._lives[key]

    async def _ask(self, life: Life, response: str | None) -> Step:
        if life.broken:
            raise life.broken
        life.response, life.answer = response, make_future()
        self._send(life)
        seconds, step = await self._answer(life)
        life.seconds += seconds
        if self.episode_timeout_s is not None and life.seconds > self.episode_timeout_s:
            raise EnvironmentFault(self.late(life))
        life.past.append(EnvironmentCall(response, step.observation, step.reward))
        return step

    async def _answer(self, life: Life) -> tuple[float, Any]:
        assert life.answer
        try:
            return await life.answer
        except asyncio.CancelledError:
            if life.home:
                life.home.settle()
            raise

    def _send(self, life: Life) -> None:
        """Send a request to the environment's worker, or to the worker with the fewest environments."""
        while life.home is None or life.home.has_died_idle():
            if life.home:
                life.home.end()
            life.home = min(self._workers, key=lambda worker: len(worker.lives), default=None)
            if life.home is None or (
                life.home.lives and len(self._workers) < (self.num_workers or self.load.num_workers)
            ):
                life.home = Worker(self, *self.starter.fork())
                self._workers.append(life.home)
        made = None if life in life.home.lives else (life.task, life.past)
        life.home.lives.add(life)
        life.home.ask(life, made=made, response=life.response)

    def patience(self, life: Life, *, anew: bool) -> float:
        """Return the time limit for an answer (seconds)."""
        left = self.step_timeout_s
        if self.episode_timeout_s is not None:
            left = min(left, self.episode_timeout_s - life.seconds)
        return left + self.step_timeout_s * len(life.past) * anew  # each past answer took no longer

    def late(self, life: Life, waited: float = 0.0) -> str:
        """Name the time limit that an environment exceeded."""
        if self.episode_timeout_s is not None and life.seconds + waited >= self.episode_timeout_s:
            return f"its environment took more than episode_timeout_s={self.episode_timeout_s:g} in total"
        return f"its environment gave no answer within step_timeout_s={self.step_timeout_s:g}"

    def lost(self, worker: Worker) -> None:
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


def make_environments(suite: Suite, config: EnvironmentConfig) -> Environments:
    """Make the environments of a suite, at the level of isolation that the configuration asks for.

    Raises:
        ConfigError: It makes none, or this machine does not support the isolation.
    """
    refuse_agents_suite(suite, config.name)
    if config.level == "in-process":
        return InProcessEnvironments(suite.environment)
    return WorkerEnvironments(
        SuiteEnvironments(config, suite),
        workers=config.workers or None,
        **{name: getattr(config, name) for name in (*_LIMITS, "image", "pass_variables")},
        isolation=config.level,
    )
