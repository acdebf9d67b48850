"""Learn turn by turn."""

from turnwise.extensions.passes.passes import TurnPasses
from turnwise.train.extension import Extension


class ByTurns(Extension):
    """Update as `update.passes` says."""

    def learner(self) -> type[TurnPasses]:
        """Return what makes the learner."""
        return TurnPasses
