"""Sample the responses of a run at a temperature per token."""

from turnwise.extensions.token_temperature.tempering import Tempered
from turnwise.rollout.groups import Collector
from turnwise.train.extension import Extension


class PerToken(Extension):
    """Sample at the temperatures of `rollout.token_temperature`."""

    def collector(self, collector: Collector) -> Collector:
        """Return a collector whose engine follows the temperatures."""
        return Tempered(collector, self.settings)
