"""Use turnwise's environments as TRL's `environment_factory`. The policy acts by calling the tool `play`.

    config = EnvironmentConfig(name="household", options={"size": "tiny"}, max_steps=20)
    trainer = TurnwiseGRPOTrainer(
        model, args=args, method=tw.empg(tw.gigpo()),
        environment_factory=environment_factory(config), train_dataset=Dataset.from_list(rows(config)),
    )

Each response gets the environment's reward for it. If an environment fails, its trajectory gets no reward and no
advantage; other trajectories are unaffected.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Environment, Step, as_step, checked_step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Suite, make_suite

PROMPT = "Play the game by calling the tool `play` with one command at a time.\n\n"
"""Text before the first observation."""
OVER = "The game is over."
log = logging.getLogger(__name__)


def rows(
    config: EnvironmentConfig, *, split: str | None = None, limit: int = 1000, prompt: str = PROMPT
) -> list[dict[str, Any]]:
    """Make rows of a data set for TRL, one per task.

    Args:
        config: Environment to play, with its `max_steps`, `success_reward` and `options`.
        split: Split of the tasks; default: `config.train_split`.
        limit: Largest number of rows.
        prompt: Text before the first observation.
    """
    split = split or config.train_split
    message = [{"role": "user", "content": prompt}]
    return [
        {"prompt": message, "split": split, "task": n} for n in range(min(limit, len(make_suite(config).tasks(split))))
    ]


def environment_factory(config: EnvironmentConfig) -> Callable[[], "PlayedEnvironment"]:
    """Build the factory of environments that TRL needs, for the rows of `rows`.

    Raises:
        ConfigError: Environments should be kept apart from the trainer.
    """
    config.check_in_process("TRL")
    suite = make_suite(config)
    return lambda: PlayedEnvironment(suite)


class PlayedEnvironment:
    """Play trajectories of a suite with TRL's interface: `reset`, tools, `get_reward`."""

    _columns = ("state_key",)  # columns of `_record`; TRL treats public names as tools

    def __init__(self, suite: Suite):
        self._suite = suite
        self._environment: Environment | None = None
        self._steps: list[Step] = []  # the first step, and one per command
        self._fault = False

    def reset(self, task: int = 0, split: str = "train", **_: Any) -> str:
        """Start a task by its index in a split. Other keys of the row are ignored."""
        self._steps, self._fault = [], False
        tasks = self._suite.tasks(split)
        if not 0 <= task < len(tasks):
            raise ConfigError(f"task {task}: split {split!r} has {len(tasks)} tasks, counted from 0; see rows()")
        try:
            self._environment = self._suite.environment(tasks[task])
            self._steps.append(as_step(_wait(self._environment.start())))
        except Exception as error:
            return self._broke(error)
        return self._steps[0].observation

    def play(self, command: str) -> str:
        """Play one command.

        Args:
            command: What to do, such as "go to fridge 1".

        Returns:
            What happens.
        """
        if self._fault or self._environment is None or self._steps[-1].ended:
            return OVER
        if not isinstance(command, str):  # a policy may write any value; TRL shows it the error
            raise TypeError(f"command is {type(command).__name__}, expected a text")
        try:
            self._steps.append(checked_step(_wait(self._environment.step(command))))
        except Exception as error:
            return self._broke(error)
        return self._steps[-1].observation

    def get_reward(self) -> float | None:
        """Return the sum of the rewards; None if the environment failed."""
        return None if self._fault else sum(step.reward for step in self._steps)

    def _record(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Return the reward of each response, and its state.

        A response may call `play` several times, not at all, or with wrong arguments. The tool's answers tell which
        command belongs to which response. TRL drops answers that exceed the length; these belong to the last response.
        """
        keys, rewards, at = [], [], 0
        for message in messages:
            if message["role"] == "assistant":
                keys.append(self._key(at))
                rewards.append(0.0)
            elif at + 1 < len(self._steps) and message["content"] == self._steps[at + 1].observation:
                at += 1
                rewards[-1] += self._steps[at].reward
        rewards[-1] += sum(step.reward for step in self._steps[at + 1 :])
        return {"reward": rewards, "state_key": keys}

    def _key(self, at: int) -> Any:
        step = self._steps[at] if at < len(self._steps) else None
        return None if step is None else step.key

    def _broke(self, error: Exception) -> str:
        self._fault = True
        log.warning(
            "an environment failed, so its trajectory is left out of training: %s: %s", type(error).__name__, error
        )
        return OVER


def _wait(answer: Any) -> Any:
    """Wait for the result of an environment's method."""
    if not inspect.isawaitable(answer):
        return answer

    async def wait() -> Any:
        return await answer

    return asyncio.run(wait())
