"""Answer an agent from the turns that its trajectory begins with, and check that it asks as before."""

import itertools

from turnwise.engines.base import Generation
from turnwise.environments.base import shown
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.rollout.starts import Start, begin_response
from turnwise.rollout.trajectory import Turn


class Record:
    """The given turns of a trajectory, each of which answers the request that it answered before.

    Agents with several conversations at a time may ask in another order.

    Args:
        start: Where the trajectory begins.
        exact: Whether a request must match a recorded one; else the next turn answers any other request.

    Attributes:
        diverged: How a request differed from the recorded one; empty if none did.
        goes_on: Whether the agent has asked for the first response beyond the given ones.
    """

    def __init__(self, start: Start, *, exact: bool = True):
        self._start, self._exact = start, exact
        self.diverged, self.goes_on = "", False
        self._ends: list[list[int]] = []  # the conversation up to the end of each turn
        prompts = []
        for turn in start.turns:
            prompts.append([*(self._ends[-1] if self._ends and not turn.fresh else ()), *turn.prompt_ids])
            self._ends.append([*prompts[-1], *turn.response_ids])
        self._waiting = [*enumerate(prompts)]  # the turns that have not been asked for
        self._following: list[int] | None = None
        if (turn := start.following) is not None:
            self._following = [*(self._ends[-1] if self._ends and not turn.fresh else ()), *turn.prompt_ids]

    def next(self, ids: list[int]) -> Turn | None:
        """Return the turn that answers a request; None if no remaining turn does.

        Args:
            ids: The whole prompt.
        """
        found = next((place for place, (_, prompt) in enumerate(self._waiting) if prompt == ids), None)
        if found is None and not self._exact and self._waiting:
            found = 0
        return None if found is None else self._start.turns[self._waiting.pop(found)[0]]

    @property
    def origin(self) -> Turn | None:
        """The response whose first tokens begin the first one that is generated."""
        return self._start.begun

    @staticmethod
    def generation(turn: Turn) -> Generation:
        """Return a turn's response as the engine returned it."""
        return Generation(
            turn.response_ids,
            turn.behavior_logprobs,
            turn.truncated,
            turn.behavior_entropies,
            turn.version,
            turn.extras.get("spreads"),
            turn.extras.get("state"),
        )

    def go_on(self, ids: list[int], message: str) -> Generation | None:
        """Check a request that no given turn answers, and return the first tokens of its response if they are given.

        Args:
            ids: The whole prompt.
            message: The last message before the response.

        Raises:
            BadRequest: The request differs from the recorded one.
        """
        if self.goes_on or self._is_beside(ids):
            return None
        if self._exact and ids != self._following:
            if self._waiting:
                number, prompt = self._waiting[0]
                raise self._refused(self._start.turns[number], prompt, ids, message)
            if self._start.following is not None and self._following is not None:
                raise self._refused(self._start.following, self._following, ids, message)
            if self._start.observation not in (None, message):
                self.diverged = f"{self._where}: {_other_message(message, str(self._start.observation))}"
                raise self._refusal()
        self.goes_on = True
        if self._start.begun is None:
            return None
        turn = Turn("", None, [], [], [], "", True)
        begin_response(self._start, turn)
        return self.generation(turn)

    def _is_beside(self, ids: list[int]) -> bool:
        """Return whether a request continues another conversation than that of the first new response."""
        following = self._following
        if following is None or ids == following:
            return False
        return any(ids[: len(end)] == end != following[: len(end)] for end in self._ends)

    def lost(self, new: int) -> str:
        """Explain why the trajectory does not continue the record; empty if it does.

        Args:
            new: Number of responses beyond the given ones.
        """
        if self.diverged or not self._exact:
            return self.diverged
        if self._waiting or (self._start.observation is not None and not (self.goes_on and new)):
            return f"{self._where}: it ended, where it had gone on before"
        return ""

    @property
    def _where(self) -> str:
        number = self._waiting[0][0] if self._waiting else len(self._start.turns)
        return f"the replay diverged before turn {number + 1}"

    def _refused(self, turn: Turn, expected: list[int], ids: list[int], message: str) -> BadRequest:
        """Return the refusal of a request that should have matched a recorded one."""
        what = _other_message(message, turn.observation)
        if message == turn.observation:
            pairs = enumerate(itertools.zip_longest(ids, expected))
            place = next((place for place, (one, other) in pairs if one != other), None)
            what = f"its prompt differs from token {place} on; it has {len(ids)} tokens, and had {len(expected)} before"
        self.diverged = self.diverged or f"{self._where}: {what}"
        return self._refusal()

    def _refusal(self) -> BadRequest:
        return BadRequest(self.diverged, status=409, code="replay_diverged")


def _other_message(message: str, expected: str) -> str:
    return f"its last message is {shown(message)}, before it was {shown(expected)}"
