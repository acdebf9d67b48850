"""Learn from pairs of a group."""

from collections.abc import Sequence

from turnwise.extensions.preference.term import PreferenceTerm
from turnwise.objective.terms import Term
from turnwise.train.extension import Extension


class Preferring(Extension):
    """Add the loss of `update.preference`."""

    def terms(self) -> Sequence[Term]:
        """Return the loss on pairs."""
        return [PreferenceTerm(self.settings)]
