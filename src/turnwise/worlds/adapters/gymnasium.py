"""Play gymnasium environments with discrete or text actions: `environment.name = "gymnasium"`.

options = { id = "FrozenLake-v1", kwargs = { is_slippery = false }, actions = ["left", "down", "right", "up"], render =
"ansi" }
"""

import functools
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.base.imports import import_named
from turnwise.environments.base import Environment, Step, Task, checked_flag
from turnwise.environments.needs import needed
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import split_seeds

EXTRA = "gymnasium"
"""Extra of turnwise that has what is needed here."""

Render = Callable[[Any, Any], str]
"""Makes text from the unwrapped environment and its observation."""

_CODES = re.compile(r"\x1b\[([\d;]*)m")


def plain_ansi(text: str) -> str:
    """Replace the colors of terminal text with brackets.

    [x] is a character on a colored background (the agent's), (x) a colored one, {x} a bold colored one.
    """
    pieces = _CODES.split(text)  # alternating texts and codes
    shown, active = [pieces[0]], set[int]()
    for codes, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers = {int(code or 0) for code in codes.split(";")}
        active = set() if 0 in numbers else active | numbers  # a place may be colored twice, and reset twice
        if piece:
            ground = active & {*range(40, 48), *range(100, 108), 7}
            colored = active & {*range(30, 38), *range(90, 98)}
            piece = (f"{{{piece}}}" if 1 in active else f"({piece})") if colored else piece
            piece = f"[{piece}]" if ground else piece
        shown.append(piece)
    return "".join(shown).strip("\n")


def ansi(env: Any, observation: Any) -> str:
    """Render the environment as text."""
    return plain_ansi(env.render())


def plain(env: Any, observation: Any) -> str:
    """Convert the observation to text, whole: NumPy leaves out the middle of arrays with more than 1,000 numbers."""
    with np.printoptions(threshold=sys.maxsize):
        return str(observation)


RENDERS: dict[str, Render] = {"ansi": ansi, "observation": plain}
"""Renderers by the name that the option takes, in addition to "auto"."""


class GymnasiumEnvironment:
    """One trajectory in a gymnasium environment.

    A response is the name of an action, or the action itself for text actions; surrounding white space is ignored. An
    invalid response changes nothing, counts as a step and is marked invalid. The first observation also lists the
    actions. Rewards are the environment's own.

    Args:
        env: The environment before its reset.
        seed: Seed of the reset.
        actions: Names of the discrete actions, in order; empty for text actions.
        render: Makes the observation's text.
        key: Makes the state key from the observation; None: the text is the key.
        max_steps: The trajectory is truncated after this many steps; the environment's own limit also applies.
        success: What decides success: the last "reward", the "return" (sum of rewards), or a key of the last step's
            info.
        threshold: A success has a reward or return above it.
    """

    def __init__(
        self,
        env: Any,
        seed: int,
        *,
        actions: Sequence[str],
        render: Render = plain,
        key: Callable[[Any], str] | None = None,
        max_steps: int = 50,
        success: str = "reward",
        threshold: float = 0.0,
    ):
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1.")
        self.env, self.seed, self.actions, self.render, self.key = env, seed, tuple(actions), render, key
        self.max_steps, self.success, self.threshold = max_steps, success, threshold
        self._close = weakref.finalize(self, env.close)  # at the end, or when the object is released before
        self._shown: str | None = None  # None: not playing
        self._key = ""
        self._steps, self._return = 0, 0.0

    def start(self) -> Step:
        """Reset the environment; returns the first observation and the names of the actions."""
        observation, _ = self.env.reset(seed=self.seed)
        self._steps, self._return = 0, 0.0
        shown = self._show(observation)
        named = f"\nActions: {', '.join(self.actions)}" if self.actions else ""
        return Step(
            observation=shown + named,
            state_key=self._key,
            admissible=self.actions or None,
            info={"success": False},
        )

    def step(self, response: str) -> Step:
        """Play an action; before `start` and after the end, raise an `EnvironmentFault`."""
        if self._shown is None:
            raise EnvironmentFault(
                f"step() {'after the end' if self._steps else 'before start()'} of seed {self.seed}."
            )
        self._steps += 1
        action = self._action(response.strip())
        reward, terminated, truncated, info = 0.0, False, False, {}
        if action is not None:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self._show(observation)
            self._return += float(reward)
        shown, terminated = self._shown, bool(terminated)
        truncated = not terminated and (bool(truncated) or self._steps >= self.max_steps)
        if terminated or truncated:
            self._shown = None
            self._close()
        return Step(
            observation=shown,
            reward=float(reward),
            terminated=terminated,
            truncated=truncated,
            valid=action is not None,
            state_key=self._key,
            admissible=self.actions or None,
            info={"success": self._succeeded(float(reward), info), "return": self._return},
        )

    def _show(self, observation: Any) -> str:
        """Store the text and the key of an observation."""
        self._shown = self.render(self.env.unwrapped, observation)
        self._key = self._shown if self.key is None else self.key(observation)
        return self._shown

    def _action(self, text: str) -> Any:
        space = self.env.action_space
        if not self.actions:
            return text if space.contains(text) else None
        return int(space.start) + self.actions.index(text) if text in self.actions else None

    def _succeeded(self, reward: float, info: Mapping[str, Any]) -> bool:
        if self.success not in ("reward", "return"):
            return checked_flag(info.get(self.success, False), f"info[{self.success!r}]")
        return (reward if self.success == "reward" else self._return) > self.threshold


class Gymnasium:
    """Any gymnasium environment with discrete or text actions; tasks are seeds.

    Options:
        id: As in `gymnasium.make`; "module:id" imports the module that registers it.
        kwargs: Further arguments of `gymnasium.make`.
        actions: Names of the discrete actions; default: their numbers.
        render: "observation": its `str`; "ansi": the environment's own text, with the agent's place marked; "auto":
            "ansi" if the observation is a bare number and the environment can render text, otherwise "observation"; or
            "module:function", which gets the environment and the observation and returns a text. The number stays the
            state key.
        success, threshold: See `GymnasiumEnvironment`.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        id: str = "",
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] = (),
        render: str = "auto",
        success: str = "reward",
        threshold: float = 0.0,
    ):
        if not id:
            raise ConfigError(
                "environment.options.id is missing: name a gymnasium environment, such as id='FrozenLake-v1'"
            )
        kwargs = dict(kwargs or {})
        env = make(id, **kwargs)  # errors should occur before a run, not during it
        try:
            space, modes = env.observation_space, env.metadata.get("render_modes", ())
            actions = action_names(id, env.action_space, actions)
        finally:
            env.close()
        number = is_discrete(id, space)
        if render == "auto":
            free = kwargs.get("render_mode") in (None, "ansi")
            render = "ansi" if number and free and "ansi" in modes else "observation"
        elif render == "ansi" and "ansi" not in modes:
            raise ConfigError(
                f"{id} does not render as 'ansi'; set environment.options.render to 'observation' or 'module:function'"
            )
        if render == "ansi":
            kwargs["render_mode"] = "ansi"
            make(id, **kwargs).close()
        self._make = functools.partial(make, id, **kwargs)
        self._build = functools.partial(
            GymnasiumEnvironment,
            actions=actions,
            render=_render(render),
            key=str if number and render in RENDERS else None,
            max_steps=config.max_steps,
            success=success,
            threshold=threshold,
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the seeds of a split."""
        return split_seeds(split, of="a gymnasium environment")

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return self._build(self._make(), task)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return str(task)


def make(id: str, **kwargs: Any) -> Any:
    """Make a gymnasium environment.

    Raises:
        ConfigError: gymnasium is not installed, or cannot make the environment.
    """
    gymnasium = needed("gymnasium", extra=EXTRA, by=f"the environment {id!r}")
    try:
        return gymnasium.make(id, disable_env_checker=True, **kwargs)
    except Exception as error:  # the environment's own exception, of any kind
        what = " ".join(str(error).split())
        raise ConfigError(f"gymnasium cannot make {id!r} with {kwargs}: {type(error).__name__}: {what}") from error


def is_discrete(id: str, space: Any) -> bool:
    """Return whether observations are bare numbers that only name states."""
    return isinstance(space, needed("gymnasium.spaces", extra=EXTRA, by=f"the environment {id!r}").Discrete)


def action_names(id: str, space: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Validate the names of discrete actions, or number them; text actions have no names.

    Raises:
        ConfigError: The names do not fit, or the space is neither discrete nor text.
    """
    spaces = needed("gymnasium.spaces", extra=EXTRA, by=f"the environment {id!r}")
    if isinstance(space, spaces.Text):
        if names:
            raise ConfigError(f"the actions of {id} are texts: remove environment.options.actions")
        return ()
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"the actions of {id} are {space}, expected Discrete or Text: wrap it so that each action has a name"
        )
    if isinstance(names, str) or any(
        not isinstance(name, str) or not name.strip() or name != name.strip() for name in names
    ):
        raise ConfigError(f"environment.options.actions={names!r}: expected a list of names")
    names = tuple(names) or tuple(str(int(space.start) + number) for number in range(int(space.n)))
    if len(names) != space.n or len(set(names)) != space.n:
        raise ConfigError(
            f"environment.options.actions={list(names)}: {id} has {space.n} actions, expected as many different names"
        )
    return names


def _render(name: str) -> Render:
    if name in RENDERS:
        return RENDERS[name]
    if ":" not in name:
        raise ConfigError(
            f"environment.options.render={name!r}.{did_you_mean(name, ['auto', *RENDERS])} "
            "Your own is 'module:function'"
        )
    return import_named(name)
