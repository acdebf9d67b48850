"""Pass responses through to an engine that many groups share, and hold them while its weights change."""

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence

from turnwise.base.blocking import Loop
from turnwise.engines.base import Engine, Generation, Sampling, give_back
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import CopyingEnvironments, Environments, agents_of

_NUMBERS = itertools.count()
"""Numbers of conversations and environments, unique in this process."""


class Gate:
    """An engine that many groups share. Weights change between responses, never within one.

    An update lets the responses in progress finish and holds new ones back. So each response comes from one version of
    the weights, and a trajectory continues with the next version. See `Engine` for the methods.

    Args:
        engine: Generates. It must not sample from weights that the trainer is changing.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.max_rows: int | None = getattr(engine, "max_rows", None)
        self._in_progress = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation."""
        while not self._open.is_set():
            give_back(self.engine, conversation)
            await self._open.wait()
        self._in_progress += 1
        try:
            return await self.engine.generate(conversation, prompt_ids, sampling)
        finally:
            self._in_progress -= 1
            self._idle.set()

    async def update_weights(self, version: int = 0) -> None:
        """Load the trainer's weights, once the responses in progress have ended."""
        self._open.clear()
        try:
            while self._in_progress:
                self._idle.clear()
                await self._idle.wait()
            await self.engine.update_weights(version)
        finally:
            self._open.set()

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations."""
        self.engine.close(conversations)

    async def aclose(self) -> None:
        """Forget all conversations, and release resources of the running event loop."""
        await self.engine.aclose()


class OwnNumbers:
    """One user's numbers for its conversations or environments, and their numbers among all users."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def __getitem__(self, own: int) -> int:
        if own not in self._of:
            self._of[own] = next(_NUMBERS)
        return self._of[own]

    def pop(self, own: Sequence[int] | None) -> list[int]:
        """Forget numbers, by default all, and return their numbers among all users."""
        given = list(self._of) if own is None else own
        return [self._of.pop(each) for each in given if each in self._of]


class OwnConversations:
    """One user's view of an engine, with its own numbers; see `Engine` for the methods.

    Draws depend only on these numbers. Closing the engine forgets only this user's conversations.

    Attributes:
        engine: The engine.
    """

    def __init__(self, engine: Engine):
        self.engine, self._numbers = engine, OwnNumbers()
        self.max_rows: int | None = getattr(engine, "max_rows", None)

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation."""
        draws = conversation if sampling.draws is None else sampling.draws
        sampling = dataclasses.replace(sampling, draws=draws)
        return await self.engine.generate(self._numbers[conversation], prompt_ids, sampling)

    async def update_weights(self, version: int = 0) -> None:
        """Do nothing: the owner of the engine loads its weights."""

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget own conversations, by default all."""
        if closed := self._numbers.pop(conversations):
            self.engine.close(closed)

    async def aclose(self) -> None:
        """Forget all own conversations."""
        self.close()


class OwnEnvironments:
    """One user's view of environments, with its own keys; see `Environments` for the methods."""

    def __init__(self, environments: Environments):
        self._environments, self._numbers = environments, OwnNumbers()
        self.agents, self.tally = agents_of(environments), getattr(environments, "tally", None)

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step."""
        return await self._environments.start(self._numbers[key], task)

    async def step(self, key: int, response: str) -> Step:
        """Play one response."""
        return await self._environments.step(self._numbers[key], response)

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment."""
        if not isinstance(self._environments, CopyingEnvironments):
            return False
        return await self._environments.copy(self._numbers[key], self._numbers[new])

    def close(self, key: int) -> None:
        """Release an environment."""
        for number in self._numbers.pop([key]):
            self._environments.close(number)

    async def aclose(self) -> None:
        """Do nothing: the environments belong to others."""


class VisitedEngine(OwnConversations):
    """A gate for use outside the event loop of the rollouts; see `Engine` for the methods."""

    def __init__(self, gate: Gate, loop: Loop):
        super().__init__(gate)
        self._gate, self._loop = gate, loop

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation."""
        return await self._loop.visit(super().generate(conversation, prompt_ids, sampling))

    async def update_weights(self, version: int = 0) -> None:
        """Load the trainer's weights, once the responses in progress have ended."""
        await self._loop.visit(self._gate.update_weights(version))

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget own conversations, by default all."""
        self._loop.soon(super().close, conversations)

    async def aclose(self) -> None:
        """Forget all own conversations, and release resources of the running event loop."""
        self.close()
        if not self._loop.apart:
            await self._gate.aclose()

    async def release(self) -> None:
        """Release the engine's resources in the loop of the rollouts, at the end of a run."""
        await self._loop.visit(self._gate.aclose())


class VisitedEnvironments(OwnEnvironments):
    """Environments for use outside the event loop of the rollouts; see `Environments` for the methods."""

    def __init__(self, environments: Environments, loop: Loop):
        super().__init__(environments)
        self._loop = loop

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step."""
        return await self._loop.visit(super().start(key, task))

    async def step(self, key: int, response: str) -> Step:
        """Play one response."""
        return await self._loop.visit(super().step(key, response))

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment."""
        return await self._loop.visit(super().copy(key, new))

    def close(self, key: int) -> None:
        """Release an environment."""
        self._loop.soon(super().close, key)

    async def aclose(self) -> None:
        """Release all environments."""
        await self._loop.visit(self._environments.aclose())
