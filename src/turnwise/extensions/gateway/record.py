"""Answer an agent from the turns that its trajectory begins with, and check that it asks as before."""

import itertools

from turnwise.engines.base import Generation
from turnwise.environments.base import shown
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.rollout.starts import Start, begin_response
from turnwise.rollout.trajectory import Trajectory, Turn


class Record:
    """The given turns of a trajectory.

    Args:
        start: Where the trajectory begins.
        trajectory: The trajectory, which has these turns.

    Attributes:
        left: How many turns have not been asked for.
        diverged: How the agent asked otherwise than before; empty if it did not.
    """

    def __init__(self, start: Start, trajectory: Trajectory):
        self._start, self._trajectory = start, trajectory
        self.left, self.diverged = len(start.turns), ""
        self._ids: list[int] = []  # the conversation after the last turn that was asked for
        self._begun = start.begun is not None

    def next(self, ids: list[int], message: str) -> Turn:
        """Return the turn that answers a request.

        Args:
            ids: The whole prompt.
            message: The last message before the response.

        Raises:
            BadRequest: The agent asks otherwise than before, or for more responses at once.
        """
        if not self.left:
            raise self._refused("it asks for several responses at once, of which the record has some")
        number = len(self._start.turns) - self.left
        turn = self._start.turns[number]
        expected = [*([] if turn.fresh else self._ids), *turn.prompt_ids]
        if ids != expected:
            if message != turn.observation:
                raise self._refused(f"its last message is {shown(message)}, before it was {shown(turn.observation)}")
            pairs = enumerate(itertools.zip_longest(ids, expected))
            place = next(place for place, (one, other) in pairs if one != other)
            was = f"it has {len(ids)} tokens, and had {len(expected)} before"
            raise self._refused(f"its prompt differs from token {place} on; {was}")
        self._ids = [*ids, *turn.response_ids]
        self.left -= 1
        return turn

    @property
    def origin(self) -> Turn | None:
        """The response whose first tokens begin the first one that is generated."""
        return self._start.begun

    @staticmethod
    def generation(turn: Turn) -> Generation:
        """Return a turn's response as the engine gave it."""
        return Generation(
            turn.response_ids, turn.behavior_logprobs, turn.truncated, turn.behavior_entropies, turn.version
        )

    def begun(self, message: str) -> Generation | None:
        """Return the first tokens of the first response that is generated, if they are given too.

        Args:
            message: The last message before the response.

        Raises:
            BadRequest: The record had another message here.
        """
        expected = self._start.observation
        if len(self._trajectory.turns) == len(self._start.turns) and expected not in (None, message):
            raise self._refused(f"its last message is {shown(message)}, before it was {shown(str(expected))}")
        if not self._begun:
            return None
        self._begun = False
        turn = Turn("", None, [], [], [], "", True)
        begin_response(self._start, turn)
        return self.generation(turn)

    def lost(self, trajectory: Trajectory) -> str:
        """Say why the trajectory does not continue the record; empty if it does."""
        if self.diverged:
            return self.diverged
        if self.left:
            number = len(self._start.turns) - self.left + 1
            return f"the replay diverged before turn {number}: it ended, where it had gone on before"
        return ""

    def _refused(self, what: str) -> BadRequest:
        number = len(self._start.turns) - self.left + 1
        self.diverged = self.diverged or f"the replay diverged before turn {number}: {what}"
        return BadRequest(self.diverged, status=409, code="replay_diverged")
