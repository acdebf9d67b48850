"""Count the replays that diverge, and stop what needs replays where most of them do."""

from collections.abc import Iterable

from turnwise.base.errors import RunError
from turnwise.rollout.failures import placed_failure
from turnwise.rollout.starts import REPLAY
from turnwise.rollout.trajectory import Trajectory

LEAST = 16
"""Replays before which no rate is judged."""
MOST = 0.5
"""Share of replays that may diverge. Those that do are lost, which may prefer some outcomes to others."""


def is_diverged(trajectory: Trajectory) -> bool:
    """Return whether a trajectory failed because its given turns were not answered as before."""
    return REPLAY in (trajectory.failure or "")


class Replays:
    """Count replays.

    Attributes:
        played: Trajectories that began with given turns, or where another one had begun.
        diverged: Those of them that were not answered as before.
    """

    def __init__(self) -> None:
        self.played = self.diverged = 0
        self._last = ""

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Count trajectories.

        Raises:
            RunError: Most replays diverge; the message has the rate and the first difference of the last one.
        """
        for trajectory in trajectories:
            self.played += 1
            if is_diverged(trajectory):
                self.diverged, self._last = self.diverged + 1, placed_failure(trajectory) or ""
        if self.played >= LEAST and self.diverged > MOST * self.played:
            raise RunError(
                f"{self.diverged} of {self.played} replays diverged ({self.diverged / self.played:.0%}), and at most "
                f"{MOST:.0%} may; `turnwise check-harness` (for an agent) or `turnwise check-env` says what varies; "
                f"the last one: {self._last}"
            )
