"""Find the ids that were sampled for a response which comes back in an edited history."""

from collections.abc import Sequence

from turnwise.extensions.gateway.messages import Message, next_key


class Said:
    """What the policy has said, by its text, by the message before it, and by the agent that asked.

    Texts leave reasoning out, so that equal ones may have different ids. Then none of them is chosen: an agent must not
    read the reasoning of another.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, list[int] | None] = {}

    def add(self, actor: str, before: Message, message: Message, ids: list[int]) -> None:
        """Keep the ids of a response."""
        for key in _keys(actor, before, message):
            self._ids[key] = ids if self._ids.get(key, ids) == ids else None

    def sampled(self, actor: str, messages: Sequence[Message]) -> dict[int, list[int]]:
        """Return the ids of the responses among messages that are known, by their places."""
        found = {}
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                keys = _keys(actor, messages[place - 1] if place else None, message)
                ids = next((self._ids[key] for key in keys if key in self._ids), None)
                found |= {} if ids is None else {place: ids}
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._ids.clear()


def _keys(actor: str, before: Message | None, message: Message) -> list[bytes]:
    """Return the names of a response, the more exact one first."""
    own = actor.encode(errors="surrogatepass")
    after = [] if before is None else [next_key(next_key(own, before), message)]
    return [*after, next_key(own, message)]
