"""Let several policies play: an engine that sends each conversation to the engine of its player."""

from collections.abc import Mapping, Sequence

from turnwise.engines.base import Engine, Generation, Sampling, give_back


class Cast:
    """An engine made of several; see `Engine` for the methods.

    Args:
        engines: Engines of the players.
        player: Index of the engine that plays each trajectory, by its number.
        stride: Above these numbers; conversation c belongs to trajectory `c % stride`.
    """

    def __init__(self, engines: Sequence[Engine], player: Mapping[int, int], stride: int):
        self._engines, self._player, self._stride = engines, player, stride

    def _engine(self, conversation: int) -> Engine:
        return self._engines[self._player[conversation % self._stride]]

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation with its player's weights. The next turn may be another player's."""
        engine = self._engine(conversation)
        try:
            return await engine.generate(conversation, prompt_ids, sampling)
        finally:
            give_back(engine, conversation)

    async def update_weights(self, version: int = 0) -> None:
        """Do nothing: the owners of the engines load their weights."""

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, by default all."""
        for engine in self._engines:
            own = conversations and [each for each in conversations if self._engine(each) is engine]
            engine.close(None if conversations is None else own)

    async def aclose(self) -> None:
        """Forget all conversations of all engines."""
        for engine in self._engines:
            await engine.aclose()
