"""Gymnasium environments with discrete actions or texts as actions: `environment.name = "gymnasium"`.

options = { id = "FrozenLake-v1", kwargs = { is_slippery = false }, actions = ["left", "down", "right", "up"], render = "ansi" }
"""

import functools
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.environments.base import Environment, Step, Task
from turnwise.environments.needs import needed
from turnwise.environments.splits import split_seeds
from turnwise.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.imports import import_named

EXTRA = "turnwise[gymnasium]"
"""What pip calls it."""

Render = Callable[[Any, Any], str]
"""Says in words what an environment shows: of the environment without wrappers, and of its observation."""

_MARKED = re.compile(r"\x1b\[((?:\d+;)*\d+)m(.*?)\x1b\[0m", re.DOTALL)


def plain_ansi(text: str) -> str:
    """Say without colors what a terminal would show: [x] for a place on a colored ground (the agent's), (x) for a colored one."""

    def mark(found: re.Match[str]) -> str:
        codes = {int(code) for code in found[1].split(";")}
        return f"[{found[2]}]" if codes & {*range(40, 48), *range(100, 108), 7} else f"({found[2]})"

    return _MARKED.sub(mark, text).strip("\n")


def ansi(env: Any, observation: Any) -> str:
    """Render as text."""
    return plain_ansi(env.render())


def plain(env: Any, observation: Any) -> str:
    """The observation itself."""
    return str(observation)


RENDERS: dict[str, Render] = {"ansi": ansi, "observation": plain}


class GymnasiumEnvironment:
    """One trajectory in a gymnasium environment.

    A response is the name of an action, without its surrounding white space; where actions are texts, the action itself. Any other
    leaves the world as it is, counts as a step and is marked invalid. The first observation also names the actions. Rewards are
    the environment's own.

    Args:
        env: The environment, not yet reset.
        seed: Of its reset, and so of all that it draws.
        actions: Names of the discrete actions, in their order; none where actions are texts.
        render: Makes the observation's text, which is the state key, too.
        max_steps: The trajectory is truncated after this many steps; the environment's own limit counts as well.
        success: What says whether the trajectory was a success: the last "reward", the "return" (their sum), or else a key of
            the last step's info.
        threshold: The reward or return must be above it.
    """

    def __init__(
        self,
        env: Any,
        seed: int,
        *,
        actions: Sequence[str],
        render: Render = plain,
        max_steps: int = 50,
        success: str = "reward",
        threshold: float = 0.0,
    ):
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1.")
        self.env, self.seed, self.actions, self.render = env, seed, tuple(actions), render
        self.max_steps, self.success, self.threshold = max_steps, success, threshold
        self._close = weakref.finalize(self, env.close)  # at its end, or when it is let go before
        self._shown: str | None = None  # None: not playing
        self._steps, self._return = 0, 0.0

    def start(self) -> Step:
        """Begin with the environment's first observation and the names of the actions."""
        observation, _ = self.env.reset(seed=self.seed)
        self._shown, self._steps, self._return = self.render(self.env.unwrapped, observation), 0, 0.0
        named = f"\nActions: {', '.join(self.actions)}" if self.actions else ""
        return Step(
            observation=self._shown + named,
            state_key=self._shown,
            admissible=self.actions or None,
            info={"success": False},
        )

    def step(self, response: str) -> Step:
        """Play an action.

        Raises:
            EnvironmentFault: The play has not begun, or is over.
        """
        if self._shown is None:
            raise EnvironmentFault(
                f"step() {'after the end' if self._steps else 'before start()'} of seed {self.seed}."
            )
        self._steps += 1
        action = self._action(response.strip())
        reward, terminated, truncated, info = 0.0, False, False, {}
        if action is not None:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self._shown = self.render(self.env.unwrapped, observation)
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
            state_key=shown,
            admissible=self.actions or None,
            info={"success": self._succeeded(float(reward), info), "return": self._return},
        )

    def _action(self, text: str) -> Any:
        space = self.env.action_space
        if not self.actions:
            return text if space.contains(text) else None
        return int(space.start) + self.actions.index(text) if text in self.actions else None

    def _succeeded(self, reward: float, info: Mapping[str, Any]) -> bool:
        if self.success not in ("reward", "return"):
            return bool(info.get(self.success, False))
        return (reward if self.success == "reward" else self._return) > self.threshold


class Gymnasium:
    """Any gymnasium environment with discrete actions or texts; its tasks are seeds.

    Options:
        id: As in `gymnasium.make`; "module:id" imports the module that registers it.
        kwargs: Further arguments of `gymnasium.make`.
        actions: Names of the discrete actions; without, their numbers.
        render: "observation": its `str`; "ansi": the environment's own text, the agent's place marked; or "module:function", which
            gets the environment and the observation and returns a text.
        success, threshold: See `GymnasiumEnvironment`.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        id: str = "",
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] = (),
        render: str = "observation",
        success: str = "reward",
        threshold: float = 0.0,
    ):
        if not id:
            raise ConfigError(
                "environment.options.id is missing: name a gymnasium environment, such as id='FrozenLake-v1'"
            )
        self._make = functools.partial(
            make, id, **(kwargs or {}), **({"render_mode": "ansi"} if render == "ansi" else {})
        )
        env = self._make()  # what is wrong should fail before a run, not in it
        if render == "ansi" and "ansi" not in env.metadata.get("render_modes", ()):
            raise ConfigError(
                f"{id} does not render as 'ansi'; set environment.options.render to 'observation' or 'module:function'"
            )
        self._build = functools.partial(
            GymnasiumEnvironment,
            actions=action_names(id, env.action_space, actions),
            render=_render(render),
            max_steps=config.max_steps,
            success=success,
            threshold=threshold,
        )
        env.close()

    def tasks(self, split: str) -> Sequence[Task]:
        """The seeds of a split."""
        return split_seeds(split, of="a gymnasium environment")

    def environment(self, task: Task) -> Environment:
        """Build a fresh world."""
        return self._build(self._make(), task)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return str(task)


def make(id: str, **kwargs: Any) -> Any:
    """Make a gymnasium environment.

    Raises:
        ConfigError: gymnasium is not installed, or cannot make it.
    """
    gymnasium = needed("gymnasium", EXTRA, by=f"the environment {id!r}")
    try:
        return gymnasium.make(id, disable_env_checker=True, **kwargs)
    except Exception as error:  # the environment's own exception, of any kind
        what = " ".join(str(error).split())
        raise ConfigError(f"gymnasium cannot make {id!r} with {kwargs}: {type(error).__name__}: {what}") from error


def action_names(id: str, space: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Check names for a discrete space, or number its actions; none for a space of texts.

    Raises:
        ConfigError: The names do not fit, or the space is another one.
    """
    spaces = needed("gymnasium.spaces", EXTRA, by=f"the environment {id!r}")
    if isinstance(space, spaces.Text):
        if names:
            raise ConfigError(f"the actions of {id} are texts: leave environment.options.actions out")
        return ()
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"the actions of {id} are {space}, expected Discrete or Text: wrap it so that an action has a name"
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
            f"environment.options.render={name!r}.{did_you_mean(name, RENDERS)} Your own is 'module:function'"
        )
    return import_named(name)
