"""Define how trajectories are played, and agents, which play whole trajectories by themselves."""

import dataclasses
from typing import Protocol

from turnwise.engines.base import Engine, Sampling
from turnwise.environments.hosts import Environments
from turnwise.models.format import Format
from turnwise.rollout.groups import OnTurn
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """How trajectories are played."""

    engine: Engine  # generates the responses; all its conversations are closed at the end
    environments: Environments  # where they are played; the key is the number of the conversation
    fmt: Format  # turns observations into tokens
    sampling: Sampling  # sampling settings of all responses
    max_context: int  # tokens; a trajectory ends ("context") when its conversation could exceed them
    window: int | None = None  # observations and responses that a prompt repeats; None: the whole conversation
    on_turn: OnTurn = None  # progress callback, also called at the start and at every end of a trajectory
    stride: int | None = None  # A number above those of all conversations; default: the number of starts
    close: bool = True  # whether this is the engine's last use in this event loop. Otherwise it keeps its prefixes.


class Agents(Protocol):
    """Plays trajectories instead of an environment that is asked step by step: the attribute `agents` of some."""

    async def play(self, start: Start, number: int, trajectory: Trajectory, request: Request) -> None:
        """Play a trajectory to its end.

        The first turns may be given. Then the agent's first requests are answered from them, and checked.

        Args:
            start: Where the trajectory begins. Its task may be wrapped; see `ends_of`.
            number: Number of its first conversation; the others add multiples of `request.stride`.
            trajectory: Gets the turns, and how they ended. A fault ends it; `failure` has the cause.
            request: How it is played; it has a stride.
        """
        ...
