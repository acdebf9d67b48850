"""Define `Environments`: how `collect` plays environments, in this process or in others."""

import asyncio
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from turnwise.base.errors import EnvironmentFault, own_frame, text_of
from turnwise.environments.base import Environment, Step, Task, as_step, checked_step
from turnwise.environments.isolation import leave_if_forked

T = TypeVar("T")


class Environments(Protocol):
    """One environment per trajectory, under an unused key. Different keys run concurrently.

    The environments may serve many collections, each in its own event loop. Resources of a loop must not outlive the
    keys that were started in it.
    """

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step.

        Raises:
            EnvironmentFault: It could not be made, raised, took too long, or did not answer with a valid `Step`. The
                key must still be closed.
        """
        ...

    async def step(self, key: int, response: str) -> Step:
        """Play one response.

        Raises:
            EnvironmentFault: As for `start`. No further step of this key may follow.
        """
        ...

    def close(self, key: int) -> None:
        """Release an environment, whether ended, broken or still computing. Ignores unknown keys and never raises."""
        ...

    async def aclose(self) -> None:
        """Release all environments, unfinished ones too. The owner calls it; `collect` does not."""
        ...


@runtime_checkable
class CopyingEnvironments(Environments, Protocol):
    """Environments that can be copied, if their class has a method `copy`."""

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment that waits for a response to an unused key.

        Returns:
            Whether there is a copy; not if the environment has no method `copy`, or its process was lost.

        Raises:
            EnvironmentFault: `copy` raised. The new key must still be closed.
        """
        ...


@runtime_checkable
class ForkingEnvironments(Environments, Protocol):
    """Environments that keep copies of themselves before each response."""

    async def fork(self, key: int, origin: int, turn: int) -> list[Step] | None:
        """Start an environment in the state where another one got its response number `turn`, from 0.

        Returns:
            The steps before each response up to that one; None if there is no copy of this state.
        """
        ...


def agents_of(environments: Environments) -> Any:
    """Return the `Agents` that play whole trajectories; None if environments are asked step by step."""
    return getattr(environments, "agents", None)


class InProcessEnvironments:
    """Play environments in this process. Environments whose methods are coroutines run concurrently."""

    def __init__(self, make_environment: Callable[[Task], Environment]):
        self.make_environment = make_environment
        self._environments: dict[int, Environment] = {}

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step; see `Environments.start`."""

        def start() -> Any:
            self._environments[key] = self.make_environment(task)
            return self._environments[key].start()

        return await _answer(start, as_step)

    async def step(self, key: int, response: str) -> Step:
        """Play one response; see `Environments.step`."""
        return await _answer(lambda: self._environments[key].step(response), checked_step)

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment; see `CopyingEnvironments.copy`."""
        copy = getattr(self._environments[key], "copy", None)
        if copy is None:
            return False
        self._environments[new] = await _answer(copy, lambda made: made)
        return True

    def close(self, key: int) -> None:
        """Release an environment."""
        self._environments.pop(key, None)

    async def aclose(self) -> None:
        """Release all environments."""
        self._environments.clear()


async def _answer(call: Callable[[], Any], check: Callable[[Any], T]) -> T:
    pid = os.getpid()
    try:
        answer = call()
        answer = await answer if inspect.isawaitable(answer) else answer
        leave_if_forked(pid)
        return check(answer)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the collection is cancelled, not the environment
            raise
        raise EnvironmentFault(cause_of(error)) from error
    except (KeyboardInterrupt, GeneratorExit):  # the user interrupts, or the collection closes this coroutine
        raise
    except BaseException as error:  # an environment may raise anything, even SystemExit; the run must survive it
        leave_if_forked(pid, error)
        raise EnvironmentFault(cause_of(error)) from error


def cause_of(error: BaseException) -> str:
    """Describe in one line what an environment raised, and where."""
    what, where = f"{type(error).__name__}: {' '.join(text_of(error).split())}", own_frame(error)
    return what if where is None else f"{what} at {where.name} ({Path(where.filename).name}:{where.lineno})"
