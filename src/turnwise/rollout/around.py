"""Define wrappers of a collector."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.rollout.groups import Collector, Group, TaskBatch
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory


class Around:
    """A collector that changes how another one plays; this one changes nothing."""

    def __init__(self, collector: Collector):
        self.collector = collector

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups, and wrap their trajectories; see `Collector.plan`."""
        groups, put = await self.collector.plan(batch), self.put(batch)
        return groups if put is None else [dataclasses.replace(each, around=(*each.around, put)) for each in groups]

    def put(self, batch: TaskBatch) -> Callable[[Start], Start] | None:
        """Return the wrapper of a batch's trajectories; None if there is none."""

    def put_given(self, start: Start) -> Start:
        """Wrap a trajectory that begins with given turns, if the wrapper applies to it too."""
        inner = self.collector
        return inner.put_given(start) if isinstance(inner, Around) else start

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group; see `Collector.play`."""
        return await self.collector.play(group)

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Learn from what a step has played; see `Collector.learn`."""
        self.collector.learn(played)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the collector; empty if it has none."""
        inner: Any = self.collector
        return inner.state_dict() if hasattr(inner, "state_dict") else {}

    def plan_state(self) -> dict[str, Any]:
        """Return what a plan depends on, if that is more than the state."""
        inner = self.collector
        return {**(inner.plan_state() if isinstance(inner, Around) else {}), **self.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        inner: Any = self.collector
        if hasattr(inner, "load_state_dict"):
            inner.load_state_dict(state)
