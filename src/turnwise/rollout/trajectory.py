"""Define trajectories and their turns, the result of a rollout."""

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from turnwise.engines.base import Generation


class Extras(dict[str, Any]):
    """What individual features keep with a turn. Comparisons of turns ignore arrays and `request`.

    `actor`: name of the agent that gave the response, if a harness has several. `request`: what an agent's request
    added to the conversation, see `added_to` of the gateway. `spreads`: how little the most likely tokens resembled
    each other at each place. `state`: hidden state that the first token was sampled from. `origin` and `begun`: see
    `Turn`. `learned`: an earlier step has learned from the response. `whole`: false for a piece that others follow.
    Recorded: `actor`, `request`, `origin` and `begun`.
    """

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and self._compared() == Extras(other)._compared()

    def _compared(self) -> dict[str, Any]:
        return {name: value for name, value in self.items() if name != "request" and not isinstance(value, np.ndarray)}


NO_EXTRAS = Extras()


@dataclasses.dataclass(slots=True)
class Turn:
    """One response with its prompt and the environment's answer.

    Attributes:
        observation: Text that the policy read last.
        state_key: Names the state in which the response was given.
        prompt_ids: Tokens that this turn appended before the response; the whole prompt if `fresh`.
        response_ids: Generated tokens.
        behavior_logprobs: Log-probabilities of the tokens when sampled (nats).
        response: The response as text.
        truncated: The response hit the length limit.
        reward: Reward of the response.
        valid: Whether the environment accepted the response.
        behavior_entropies: Entropies of the tokens' distributions when sampled (nats), if the engine measured them.
        fresh: The prompt does not continue the previous turn; a first turn counts as fresh in any case.
        version: Training steps behind the weights that sampled the response.
        extras: What individual features keep with the turn, by the names in `Extras`. Never changed in place: turns
            made from this one share it.
    """

    observation: str
    state_key: Hashable
    prompt_ids: list[int]
    response_ids: list[int]
    behavior_logprobs: list[float]
    response: str
    truncated: bool
    reward: float = 0.0
    valid: bool = True
    fresh: bool = False
    behavior_entropies: list[float] | None = None
    version: int = 0
    extras: "Extras" = dataclasses.field(default_factory=lambda: NO_EXTRAS)

    def put(self, **extras: Any) -> "Turn":
        """Keep what a feature knows about the turn; return the turn."""
        self.extras = Extras({**self.extras, **extras})
        return self

    @property
    def origin(self) -> "Turn | None":
        """Turn whose first tokens begin the response; None: all of it was generated."""
        return self.extras.get("origin")

    @property
    def begun(self) -> int:
        """Number of these first tokens."""
        return self.extras.get("begun", 0)

    @property
    def num_generated(self) -> int:
        """Tokens that were generated only for this response."""
        return len(self.response_ids) - self.begun

    def add(self, made: Generation) -> None:
        """Add what an engine generated to the response."""
        if made.state is not None and not self.response_ids:
            self.put(state=made.state)
        self.response_ids += made.token_ids
        self.behavior_logprobs += made.logprobs
        if made.entropies is not None:
            self.behavior_entropies = [*(self.behavior_entropies or ()), *made.entropies]
        if made.spreads is not None:
            self.put(spreads=[*self.extras.get("spreads", ()), *made.spreads])
        self.truncated, self.version = made.truncated, made.version


@dataclasses.dataclass(slots=True)
class Trajectory:
    """One episode.

    Attributes:
        group: Index of the task among those collected together.
        task: Name of the task.
        turns: Turns in order.
        success: Whether the environment declared success.
        ended: "terminated", "truncated" (by the environment), "context" (too long), "pruned", "failed", "unfinished".
        failure: Cause, for "failed"; a failed trajectory is recorded and counted, and never trained on.
        info: The environment's `info` at the end.
        shared: Number of first turns that another trajectory played; a fork replays them and holds the same `Turn`s.
        copied: Whether the fork began in a copy of the environment instead of a replay; not recorded.
        tree: Number of its tree within the group; None: it is a tree by itself.
        given, played: Turns before `turns`, and the task with its wrappers; neither is recorded.
        learns: Whether steps may learn from it; not if the responses are another player's.
        last_observation: What the environment answered to the last response; the policy did not read it.
        last_key: Key of the state after the last response; None: the task ended there, or it is not known.
    """

    group: int
    task: str
    turns: list[Turn] = dataclasses.field(default_factory=list)
    success: bool = False
    ended: str = ""
    failure: str | None = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    shared: int = 0
    copied: bool = False
    tree: int | None = None
    last_observation: str = ""
    last_key: Hashable = None
    learns: bool = True
    given: tuple[Turn, ...] = dataclasses.field(default=(), compare=False)
    played: Any = dataclasses.field(default=None, compare=False)

    @property
    def usable(self) -> bool:
        """Whether credit can be assigned to the trajectory."""
        return self.failure is None and bool(self.turns) and self.learns

    @property
    def reward(self) -> float:
        """Total reward."""
        return sum(turn.reward for turn in self.turns)


def distinct_turns(trajectories: Iterable[Trajectory]) -> list[Turn]:
    """List the turns of trajectories, shared turns once."""
    return list({id(turn): turn for trajectory in trajectories for turn in trajectory.turns}.values())
