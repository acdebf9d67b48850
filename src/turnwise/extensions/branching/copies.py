"""Keep a copy of each environment before each response, from which forks begin without a replay."""

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator

from turnwise.base.errors import EnvironmentFault
from turnwise.engines.base import Engine
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import CopyingEnvironments, Environments, agents_of

FIRST_COPY = 2**33
"""Key of the first copy; keys of trajectories are smaller."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """What was observed before a response, and the key of the environment's copy in this state."""

    step: Step
    copy: int | None


class Copies:
    """Environments that can be forked; see `Environments` for the other methods.

    Each environment with a method `copy` is copied before each response. Copies stay until `release`.

    Args:
        environments: Where trajectories and copies live.
    """

    keeping = True  # whether further copies are made

    def __init__(self, environments: CopyingEnvironments):
        self._environments, self.tally = environments, getattr(environments, "tally", None)
        self._kept: dict[int, list[_Kept]] = {}
        self._keys = itertools.count(FIRST_COPY)

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step."""
        step = await self._environments.start(key, task)
        self._kept[key] = []
        await self._keep(key, step)
        return step

    async def step(self, key: int, response: str) -> Step:
        """Play one response."""
        step = await self._environments.step(key, response)
        await self._keep(key, step)
        return step

    async def _keep(self, key: int, step: Step) -> None:
        kept = self._kept[key]
        if not self.keeping or step.ended or (kept and kept[-1].copy is None):  # nothing to fork, or no method `copy`
            return
        copy = next(self._keys)
        try:
            kept.append(_Kept(step, copy if await self._environments.copy(key, copy) else None))
        except EnvironmentFault:
            self._environments.close(copy)
            raise

    def has(self, key: int, turn: int) -> bool:
        """Return whether there is a copy of an environment as it was before its response number `turn`, from 0."""
        kept = self._kept.get(key, [])
        return turn < len(kept) and kept[turn].copy is not None

    async def fork(self, key: int, origin: int, turn: int) -> list[Step] | None:
        """Start an environment from a copy; see `ForkingEnvironments.fork`."""
        kept = self._kept.get(origin, [])[: turn + 1]
        if len(kept) <= turn or (copy := kept[turn].copy) is None or not await self._environments.copy(copy, key):
            return None
        self._kept[key] = kept
        return [each.step for each in kept]

    def close(self, key: int) -> None:
        """Release an environment, not its copies."""
        self._environments.close(key)

    def release(self) -> None:
        """Release the copies."""
        for copy in {each.copy for kept in self._kept.values() for each in kept} - {None}:
            assert copy is not None
            self._environments.close(copy)
        self._kept.clear()

    async def aclose(self) -> None:
        """Release all environments."""
        await self._environments.aclose()


@contextlib.asynccontextmanager
async def forkable(environments: Environments, engine: Engine) -> AsyncIterator[Environments]:
    """Yield environments, as `Copies` where they can be copied; at the end, release the copies and close the engine."""
    forked = environments
    if isinstance(environments, CopyingEnvironments) and not agents_of(environments):
        forked = Copies(environments)
    try:
        yield forked
    finally:
        if isinstance(forked, Copies):
            forked.release()
        await engine.aclose()
