"""Generate for the roles of a run, each with its own adapter."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from turnwise.base.errors import EngineFault
from turnwise.engines.base import Engine, Generation, Sampling


def check_role(actor: str, roles: Iterable[str]) -> None:
    """Raise an EngineFault if no role has this name."""
    if actor not in roles:
        raise EngineFault(
            f"a call names the actor {actor!r}, and model.adapters has {', '.join(roles)}; send its role in the header "
            "X-Turnwise-Actor"
        )


class RoleEngines:
    """Pass requests on to the engine of the role that asks; see `Engine` for the methods.

    Attributes:
        max_rows: Conversations that an engine holds at a time.
    """

    def __init__(self, engines: Mapping[str, Engine]):
        self._engines = engines
        self.max_rows: int | None = getattr(next(iter(engines.values())), "max_rows", None)
        self._role: dict[int, str] = {}  # of each conversation

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; another role starts it over, since its adapter computes other keys and values."""
        check_role(sampling.actor, self._engines)
        before = self._role.setdefault(conversation, sampling.actor)
        if before != sampling.actor:
            self._engines[before].close([conversation])
            self._role[conversation] = sampling.actor
        return await self._engines[sampling.actor].generate(conversation, prompt_ids, sampling)

    async def update_weights(self, version: int = 0) -> None:
        """Load the trainer's weights."""
        for engine in self._engines.values():
            await engine.update_weights(version)

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, by default all."""
        for engine in self._engines.values():
            engine.close(conversations)
        for conversation in [*self._role] if conversations is None else conversations:
            self._role.pop(conversation, None)

    async def aclose(self) -> None:
        """Forget all conversations, and release resources of the running event loop."""
        self._role.clear()
        await asyncio.gather(*(engine.aclose() for engine in self._engines.values()))
