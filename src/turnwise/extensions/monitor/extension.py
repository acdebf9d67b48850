"""Watch what responses depend on."""

from typing import Any

from turnwise.extensions.monitor.monitor import Monitor
from turnwise.measures.base import Played
from turnwise.train.extension import Context, Extension


class Monitored(Extension):
    """Measure the mutual information of responses and contexts as `[monitor]` says."""

    def __init__(self, key: str, settings: Any, context: Context):
        super().__init__(key, settings, context)
        self._monitor = Monitor(settings, context.config.run.seed)

    def watch(self, played: Played, step: int) -> dict[str, float]:
        """Return the metrics of a step; none if it is not due."""
        return self._monitor.watch(played, step)
