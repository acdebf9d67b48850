"""Define agents: what plays a whole trajectory by itself, and asks the engine for each response."""

from typing import Protocol

from turnwise.engines.base import Engine, Sampling
from turnwise.models.format import Format
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory


class Agents(Protocol):
    """Plays trajectories in place of an environment that is asked step by step: the attribute `agents` of some."""

    async def play(
        self,
        start: Start,
        number: int,
        trajectory: Trajectory,
        *,
        engine: Engine,
        fmt: Format,
        sampling: Sampling,
        max_context: int,
        stride: int,
    ) -> None:
        """Play a trajectory to its end.

        The first turns may be given. Then the agent's first requests are answered from them, and checked.

        Args:
            start: Where the trajectory begins. Its task may be within something; see `ends_of`.
            number: Number of its first conversation; further ones add multiples of `stride`.
            trajectory: Gets the turns, and how they ended. A fault ends it; `failure` holds the cause.
            engine: Generates the responses.
            fmt: Turns messages into tokens.
            sampling: Sampling settings.
            max_context: Longest conversation (tokens).
            stride: Above the numbers of all trajectories.
        """
        ...
