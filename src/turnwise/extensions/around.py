"""Define what is put around a collector."""

from collections.abc import Sequence
from typing import Any

from turnwise.rollout.groups import Batch, Collector, Group
from turnwise.rollout.trajectory import Trajectory


class Around:
    """A collector that changes how another one plays; this one changes nothing.

    Args:
        collector: Plays.
    """

    def __init__(self, collector: Collector):
        self.collector = collector

    async def plan(self, batch: Batch) -> list[Group]:
        """Divide a batch into its groups; see `Collector.plan`."""
        return await self.collector.plan(batch)

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group; see `Collector.play`."""
        return await self.collector.play(group)

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Take in what a step has played; see `Collector.learn`."""
        self.collector.learn(played)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the collector; empty if it has none."""
        inner: Any = self.collector
        return inner.state_dict() if hasattr(inner, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        inner: Any = self.collector
        if hasattr(inner, "load_state_dict"):
            inner.load_state_dict(state)
