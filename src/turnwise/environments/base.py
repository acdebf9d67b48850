"""The environment protocol: a world in which one trajectory is played, with `start` and `step`.

    environment = factory(task)
    observation = environment.start()
    step = environment.step("open fridge 1")

An environment is single use: one object, one trajectory. It must depend on its task and the responses alone; one whose observations
may yet differ in what does not matter (how long a command took) says so by an attribute `repeats = False`. A plain string is an
observation; a world that can say more (a state key for anchor-state credit, the actions that are admissible now) returns a `Step`,
from `start` too. Both methods may be coroutines. See `turnwise.environments.check` for the conformance test, and `turnwise check-env module:factory`.
"""

import dataclasses
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from turnwise.errors import EnvironmentFault


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the world answers to one response.

    Attributes:
        observation: The text that the policy reads next.
        reward: Reward of this response (outcome and shaping together, without the invalid-action penalty).
        terminated: The task ended (won or lost): no further step is allowed.
        truncated: A limit of the world was hit; no further step is allowed.
        valid: False when the response was no action that the world understands or admits.
        state_key: Names the state reached, for credit that compares equal states (GiGPO); None: the observation is the key.
        admissible: The actions that the world would accept now, when it can tell.
        info: Anything else. The last step's is recorded as JSON; its `success` (bool) is what evaluation counts.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    state_key: Hashable | None = None
    admissible: Sequence[str] | None = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether this was the last step, for whichever reason."""
        return self.terminated or self.truncated


@runtime_checkable
class Environment(Protocol):
    """One trajectory's world. See the module docstring."""

    def start(self) -> str | Step | Awaitable[str | Step]:
        """Begin; returns the first observation."""
        ...

    def step(self, response: str) -> Step | Awaitable[Step]:
        """Play one response (its whole text) and return what it led to."""
        ...


Task = Any
"""A picklable description of one game; the same task always starts in the same state."""


class Demonstrated(NamedTuple):
    """One turn of a demonstration.

    Attributes:
        response: What was played.
        imitate: Whether it is the expert's choice, rather than noise.
    """

    response: str
    imitate: bool


EnvironmentFactory = Callable[[Task], Environment]


def as_step(answer: Any) -> Step:
    """Turn what `start` returned into a `Step`; see `checked_step`."""
    return checked_step(Step(observation=answer) if isinstance(answer, str) else answer)


def checked_step(step: Any) -> Step:
    """Return the step; what UTF-8 cannot hold in its observation is replaced by "?".

    Raises:
        EnvironmentFault: It is none, or holds what no run can use.
    """
    if not isinstance(step, Step):
        raise EnvironmentFault(f"the world answered with {type(step).__name__}, expected a Step")
    if not isinstance(step.observation, str):
        raise EnvironmentFault(f"the world answered with observation {step.observation!r}, expected a text")
    if not math.isfinite(step.reward):
        raise EnvironmentFault(f"the world paid a reward of {step.reward}, expected a finite number")
    hash(step.state_key)  # Python's own error says what is not hashable
    if (observation := sound_text(step.observation)) is not step.observation:
        step = dataclasses.replace(step, observation=observation)
    return step


def sound_text(text: str) -> str:
    """The text itself; where it holds what UTF-8 cannot (half a surrogate pair, as JSON may spell it), a copy with "?" in its place."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
