"""Define the environment protocol: `start` and `step` play one trajectory.

    environment = factory(task)
    observation = environment.start()
    step = environment.step("open fridge 1")

An environment is single use: one object plays one trajectory. It must depend only on its task and the responses. If its
observations can differ in irrelevant details (how long a command took), it sets the attribute `repeats = False`.

`start` returns the first observation as a string, or a `Step` with more fields: a state key for anchor-state credit,
or the admissible actions. Both methods may be coroutines. `turnwise check-env module:factory` tests an environment; see
`turnwise.environments.check`.

An environment may have a method `copy`, plain or a coroutine, which returns an independent environment in the same
state. Forks of a trajectory begin in it instead of replaying.
"""

import dataclasses
import math
import reprlib
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.plain import plain_mapping, sound_text

MAX_REWARD = 1e6
"""Largest absolute reward. Squares of larger rewards would dominate sums, intervals and gradients."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An environment's answer to one response.

    Attributes:
        observation: The text that the policy reads next.
        reward: Reward of this response (outcome plus shaping, without the invalid-action penalty), at most `MAX_REWARD`
            in absolute value.
        rewards: Rewards of this response for several objectives, by name; None: there is only `reward`. See
            `turnwise.worlds.directions`, which combines them.
        terminated: The task ended (won or lost); no further step is allowed.
        truncated: A limit of the environment was hit; no further step is allowed.
        valid: False if the response was not an action that the environment understands or admits.
        state_key: Names the state reached, for credit that compares equal states (GiGPO); None: the observation. Text,
            numbers, bytes, or tuples or frozensets of them.
        admissible: The actions that the environment would accept now, if known.
        info: Other values by name, which become plain data (see `turnwise.environments.plain`; on names of the
            trainer's see `checked_info`). The last step's is recorded as JSON; evaluation counts its `success` (bool)
            and takes the mean of its `score` (a number). Methods that score the right answer read it as `gold` (text),
            and the response that contains it as `gold_form` (such as "answer[{gold}]"; default "{gold}"). The policy
            never reads them. An environment that always fills `gold` declares `gives = ("gold",)` on its class or
            suite.
    """

    observation: str
    reward: float = 0.0
    rewards: Mapping[str, float] | None = None
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    state_key: Hashable | None = None
    admissible: Sequence[str] | None = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether this was the last step, for any reason."""
        return self.terminated or self.truncated

    @property
    def key(self) -> Hashable:
        """Name of the state reached: `state_key`, or else the observation."""
        return self.observation if self.state_key is None else self.state_key


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeatStep(Step):
    """A step of a match, addressed to one seat.

    The reward is what this seat got since its last response. `valid` refers to the response just played, which may be
    another seat's.

    Attributes:
        seat: Number of the seat that reads the observation, and acts unless the match has ended.
        ends: Last step of every seat, once the match has ended.
    """

    seat: int
    ends: tuple[Step, ...] = ()


@runtime_checkable
class Environment(Protocol):
    """The environment of one trajectory; see the module docstring."""

    def start(self) -> str | Step | Awaitable[str | Step]:
        """Start the trajectory and return the first observation."""
        ...

    def step(self, response: str) -> Step | Awaitable[Step]:
        """Play one response (its whole text) and return the resulting step."""
        ...


Task = Any
"""A picklable description of one game; the same task always starts in the same state."""


class Demonstrated(NamedTuple):
    """One turn of a demonstration.

    Attributes:
        response: The response that was played.
        imitate: Whether it is the expert's choice, rather than noise.
        subgoal: What the expert wants to reach next, for a policy that plans (`prompt.plan`).
    """

    response: str
    imitate: bool
    subgoal: str = ""


EnvironmentFactory = Callable[[Task], Environment]


def as_step(answer: Any) -> Step:
    """Convert the result of `start` into a checked `Step`; see `checked_step`."""
    return checked_step(Step(observation=answer) if isinstance(answer, str) else answer)


def checked_step(step: Any) -> Step:
    """Validate a step of an environment, and return it with plain types.

    Returns:
        The step. Rewards are floats, flags and `info["success"]` are bools, `info` is a dict. In the observation, "?"
        replaces characters that UTF-8 cannot encode.

    Raises:
        EnvironmentFault: It is not a `Step`, or a field has an invalid value.
    """
    if not isinstance(step, Step):
        raise EnvironmentFault(f"the environment answered with {type(step).__name__}, expected a Step")
    if not isinstance(step.observation, str):
        raise EnvironmentFault(f"the environment answered with observation {shown(step.observation)}, expected a text")
    checked = {
        "observation": sound_text(step.observation),
        "reward": checked_reward(step.reward),
        "rewards": checked_rewards(step.rewards),
        **{name: checked_flag(getattr(step, name), name) for name in ("terminated", "truncated", "valid")},
        "state_key": checked_key(step.state_key),
        "admissible": checked_admissible(step.admissible),
        "info": checked_info(step.info),
    }
    if type(step) is Step:  # the other way takes longer
        return Step(**checked)
    if isinstance(step, SeatStep):
        checked["ends"] = checked_ends(step.ends)
    return dataclasses.replace(step, **checked)


def checked_ends(ends: Any) -> tuple[Step, ...]:
    """Validate the last steps of all seats; see `checked_step`.

    Raises:
        EnvironmentFault: They are not, or one is not valid.
    """
    if not isinstance(ends, tuple | list):
        raise EnvironmentFault(f"the environment answered with ends = {shown(ends)}, expected a step per seat")
    return tuple(map(checked_step, ends))


def checked_reward(reward: Any, name: str = "reward", where: str = "") -> float:
    """Validate a reward and return it as a float; `name` and `where` are for messages.

    Raises:
        EnvironmentFault: It is not a finite number, or exceeds `MAX_REWARD` in absolute value.
    """
    try:
        size = abs(float(reward)) if math.isfinite(reward) else math.inf
    except (TypeError, ValueError, OverflowError):
        size = math.inf
    if size > MAX_REWARD:
        raise EnvironmentFault(
            f"the environment returned a {name} of {shown(reward)}{where}, expected a finite number from "
            f"-{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}{'; scale its rewards' * _is_number(reward)}"
        )
    return reward if type(reward) is float else float(reward)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that is too large, not something else (None, NaN, a text)."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(value == value)


def checked_rewards(rewards: Any) -> Mapping[str, float] | None:
    """Validate the rewards of several objectives and return them as a dict of floats.

    Raises:
        EnvironmentFault: They are not finite numbers by name.
    """
    if rewards is None:
        return None
    if not isinstance(rewards, Mapping) or not all(isinstance(name, str) for name in rewards):
        raise EnvironmentFault(
            f"the environment answered with rewards = {shown(rewards)} ({type(rewards).__name__}), expected a dict "
            'such as {"goal": 1.0, "steps": 0.1}'
        )
    return {
        sound_text(name): checked_reward(reward, where=f" in rewards[{shown(name)}]")
        for name, reward in rewards.items()
    }


def checked_flag(value: Any, name: str) -> bool:
    """Validate a flag and return it as a bool.

    Raises:
        EnvironmentFault: It is not True, False, 0 or 1 (of Python or NumPy).
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, (Real, np.bool_)) and value in (0, 1):
        return bool(value)
    raise EnvironmentFault(
        f"the environment answered with {name} = {shown(value)} ({type(value).__name__}), expected True or False"
    )


def checked_key(key: Any) -> Any:
    """Validate a state key and return it as plain data that equals it.

    Raises:
        EnvironmentFault: It is not text, a number, bytes, or a tuple or frozenset of them; or it does not equal itself.
    """
    if type(key) is str or key is None:
        return key if key is None else sound_text(key)
    try:
        hash(key)
        plain, alike = _plain_key(key), not _holds_nan(key)
        str(plain)
    except Exception as error:  # a key may be of any class
        raise EnvironmentFault(
            f"the environment answered with a state_key that cannot name a state ({type(error).__name__}: {error}); "
            "use a string or a tuple of strings"
        ) from error
    if not alike:
        raise EnvironmentFault(
            f"the environment answered with state_key = {shown(key)}: nan does not equal itself; "
            "use a string, or None to compare observations"
        )
    return plain


def set_of(parts: Sequence[Hashable]) -> frozenset[Hashable]:
    """Return a set of parts of a state key.

    Raises:
        TypeError: They are more than `MAX_PARTS`.
    """
    if len(parts) > MAX_PARTS:
        raise TypeError(f"a frozenset of {len(parts)} parts, expected at most {MAX_PARTS}")
    return frozenset(parts)


def _plain_key(key: Any) -> Any:
    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    if isinstance(key, frozenset):
        return set_of([*map(_plain_key, key)])
    if isinstance(key, str):
        return sound_text(str(key))
    if key is None or isinstance(key, bool | int | float | bytes):
        return key
    raise TypeError(f"a {type(key).__name__}, expected text, numbers, bytes, or tuples or frozensets of them")


def checked_admissible(actions: Any) -> tuple[str, ...] | None:
    """Validate admissible actions and return them as a tuple.

    Raises:
        EnvironmentFault: They are neither a collection of strings nor None.
    """
    if actions is None:
        return None
    if isinstance(actions, (str, bytes)) or not isinstance(actions, Collection):
        raise EnvironmentFault(f"the environment answered with admissible = {shown(actions)}, expected a list of texts")
    for action in actions:
        if not isinstance(action, str):
            raise EnvironmentFault(
                f"the environment answered with admissible that holds {shown(action)} ({type(action).__name__}), "
                "expected texts only"
            )
    return tuple(map(sound_text, actions))


MAX_PARTS = 1000
"""Maximum size of a frozenset in a state key: making one takes quadratic time where somebody chose numbers whose hashes
are equal."""
OURS = frozenset({"advice", "predicted_success", "recalled", "replayed", "turn_budget"})
"""Names of `info` that the trainer writes."""


def checked_info(info: Any) -> dict[str, Any]:
    """Validate `info` and return it as a dict of plain data whose `success`, if present, is a bool.

    What an environment calls by a name of the trainer (`OURS`; `objectives` that are no numbers by name) is called
    "environment.NAME".

    Raises:
        EnvironmentFault: It is not a mapping, `success` is not a flag, `score` is not a number, or a value cannot be
            plain data; see `plain_mapping`.
    """
    if not isinstance(info, Mapping):
        raise EnvironmentFault(
            f"the environment answered with info = {shown(info)} ({type(info).__name__}), expected a dict such as "
            '{"success": True}'
        )
    try:
        given = {f"environment.{name}" if _is_ours(name, info) else name: info[name] for name in info}
        if "success" in given:
            given["success"] = checked_flag(given["success"], 'info["success"]')
        if "score" in given:
            given["score"] = checked_reward(given["score"], "score", ' in info["score"]')
        return plain_mapping(given, "info")
    except EnvironmentFault:
        raise
    except Exception as error:  # a mapping may be of any class
        raise EnvironmentFault(f"the environment's info cannot be read ({type(error).__name__}: {error})") from error


def _is_ours(name: Any, info: Mapping[Any, Any]) -> bool:
    """Return whether the trainer writes a name of `info`, or reads it as something else than the environment gives."""
    if name != "objectives":
        return name in OURS
    value = info[name]
    return not (isinstance(value, Mapping) and all(_is_number(v) and math.isfinite(v) for v in value.values()))


def _holds_nan(key: Any) -> bool:
    """Return whether a key, or a part of it, differs from itself."""
    if isinstance(key, (tuple, frozenset)):
        return any(map(_holds_nan, key))
    return type(key) is not str and bool(key != key)


def shown(value: Any) -> str:
    """Shorten any value to one line of text, for messages."""
    return " ".join(_SHORT.repr(value).split())
