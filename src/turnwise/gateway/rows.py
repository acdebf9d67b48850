"""Share the rows of an engine among sessions."""

from collections.abc import Sequence

from turnwise.rollout.engine import Engine, Generation, Sampling


class SharedRows:
    """Keep conversations of idle sessions in the engine as long as no request needs their rows.

    When the engine has no row left (`engine.max_rows`), the conversation that has been idle longest is closed. The next
    request of its session feeds the whole prompt again.

    Args:
        engine: Generates the responses.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._most: int | None = getattr(engine, "max_rows", None)
        self._running = 0
        self._idle: dict[int, None] = {}  # conversations, the longest idle first

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; see `Engine.generate`."""
        self._idle.pop(conversation, None)
        self._running += 1
        self._make_room()
        try:
            generation = await self._engine.generate(conversation, prompt_ids, sampling)
        finally:
            self._running -= 1
        self._idle[conversation] = None
        self._make_room()
        return generation

    def close(self, conversations: Sequence[int]) -> None:
        """Forget conversations."""
        for conversation in conversations:
            self._idle.pop(conversation, None)
        self._engine.close(conversations)

    def _make_room(self) -> None:
        while self._most is not None and self._idle and self._running + len(self._idle) > self._most:
            self.close([next(iter(self._idle))])
