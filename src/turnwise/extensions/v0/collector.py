"""Give each task of a step as many trajectories as its group is predicted to teach."""

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.credit.options import check_names, check_value
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.stores.similarity import Similar, words_of
from turnwise.rollout.collectors import Independent
from turnwise.rollout.gate import OwnEnvironments
from turnwise.rollout.groups import Group, TaskBatch
from turnwise.rollout.metrics import PREDICTED
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory


def utility(size: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the expected utility of a group: `U(B, p) = B (1 - p) (1 - (1 - p)^(B - 1))`, 0 without trajectories.

    It is the expected number of failures that share the group with a success.

    Args:
        size: B, trajectories of the group.
        p: Probability that one succeeds.
    """
    return size * (1 - p) * (1 - (1 - p) ** np.maximum(size - 1, 0))


def allot(p_G: np.ndarray, budget: int, *, least: int, most: int) -> np.ndarray:
    """Divide trajectories among tasks, each to the task where it adds the most utility; returns `[tasks]` sizes.

    Ties go to the task with the fewest trajectories, then to the first.

    Args:
        p_G: `[tasks]` probability of success of each task.
        budget: Total number of trajectories.
        least: Minimum per task. With 0, a task may get none; its first gain is half that of two trajectories.
        most: Maximum per task.
    """
    size_G = np.full(len(p_G), least)
    while (left := budget - size_G.sum()) > 0:
        add_G = np.where(size_G == 0, 2, 1)
        gain_G = (utility(size_G + add_G, p_G) - utility(size_G, p_G)) / add_G
        gain_G[(size_G + add_G > most) | (add_G > left)] = -np.inf
        best_G = np.flatnonzero(gain_G == gain_G.max())
        if np.isneginf(gain_G.max()):
            break
        place = best_G[np.argmin(size_G[best_G])]
        size_G[place] += add_G[place]
    return size_G


class ValueModel:
    """Predict the current policy's success at tasks from their prompts and from its latest outcomes.

        p(q) = (1 + sum_i w_i s_i) / (2 + sum_i w_i)        over the last `context` pairs of prompt and success s_i
        w_i = likeness(q, prompt_i)^sharpness               likeness: share of common words; 1 for the same prompt

    A prompt is a first observation, or the name of a task that a harness plays. The published model
    predicts from such pairs in context too, with a transformer that was trained on outcomes of many policies. This
    stand-in is ours: a beta posterior weighted by likeness.

    Args:
        context: Pairs to remember.
        sharpness: Exponent of the likeness; the larger, the closer a prompt must be.
    """

    def __init__(self, context: int, sharpness: float):
        self._sharpness = sharpness
        self.pairs: deque[tuple[str, bool]] = deque(maxlen=context)

    def predict(self, prompts: Sequence[str]) -> np.ndarray:
        """Return the probability of success of each prompt, `[prompts]`."""
        if not self.pairs:
            return np.full(len(prompts), 0.5)
        known = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in self.pairs))}
        place = np.array([known[prompt] for prompt, _ in self.pairs])
        success = np.array([success for _, success in self.pairs], dtype=float)
        total, won = np.bincount(place, minlength=len(known)), np.bincount(place, success, minlength=len(known))
        similar = Similar(list(known))
        weight = np.array([similar.bounds(words_of(prompt)) for prompt in prompts]) ** self._sharpness
        return (1 + weight @ won) / (2 + weight @ total)

    def learn(self, pairs: Sequence[tuple[str, bool]]) -> None:
        """Add outcomes, which replace the oldest ones."""
        self.pairs.extend(pairs)


def make_allotted(
    environments: Environments, settings: RolloutConfig, task_name: Callable[[Task], str], **options: Any
) -> "Allotted":
    """Make the collector `v0`.

    Raises:
        ConfigError: An option is unknown, missing, or has an invalid value.
    """
    parameters = inspect.signature(Allotted).parameters.items()
    known = {name: each for name, each in parameters if each.kind is each.KEYWORD_ONLY}
    check_names("rollout.collector='v0'", options, known)
    for name, each in known.items():
        if name in options:
            check_value(f"rollout.collector.{name}", options[name], each.annotation)
        elif each.default is each.empty:
            raise ConfigError(f"rollout.collector='v0' needs {name} to be set")
    return Allotted(environments, settings, task_name, **options)


class Allotted(Independent):
    """V_0's use in training: divide a step's trajectories among its tasks by what each is predicted to teach.

    A value model reads the prompt of each task of the step and the latest outcomes, and predicts its success p. The
    `rollout.group_size` trajectories per task are then divided by the marginal utility of p (`allot`). Tasks that are
    always or never solved get few, with `least = 0` often none. Before the first outcome, all get the same.

    The utility is reconstructed from notes, and the value model is a stand-in (`ValueModel`). `least`, `most` and
    `sharpness` have no published values. The outcomes of evaluations are not learned from.

    Args:
        environments: Where trajectories are played, and asked for the prompts.
        settings: The `[rollout]` of a recipe.
        task_name: Names a task in records.
        least: Minimum number of trajectories per task: 0, or 2 and more.
        most: Maximum number of trajectories per task, at least `rollout.group_size`.
        sharpness: Exponent of the likeness of prompts.
        context: Outcomes that the value model remembers, 256 in the paper.

    Raises:
        ConfigError: An option has an invalid value.

    Reference: V_0, arXiv 2602.03584; code Now-Join-Us/V0.
    """

    def __init__(
        self,
        environments: Environments,
        settings: RolloutConfig,
        task_name: Callable[[Task], str],
        *,
        least: int,
        most: int,
        sharpness: float,
        context: int = 256,
    ):
        super().__init__(environments, settings, task_name)
        size = settings.group_size
        limits = {
            f"least={least}: expected 0, or 2 to rollout.group_size={size}": least == 0 or 2 <= least <= size,
            f"most={most}: expected rollout.group_size={size} or more": most >= max(size, 2),
            f"sharpness={sharpness}: expected a positive number": sharpness > 0,
            f"context={context}: expected 1 or more": context >= 1,
        }
        if wrong := next((what for what, holds in limits.items() if not holds), None):
            raise ConfigError(f"rollout.collector.{wrong}")
        self._least, self._most = least, most
        self._values = ValueModel(context, sharpness)
        self._prompts: dict[str, str] = {}

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch, and its trajectories among the groups, in evaluations evenly; see `Collector.plan`."""
        if not batch.training:
            return await super().plan(batch)
        names = [self._task_name(task) for task in batch.tasks]
        p_G = self._values.predict(await self._prompts_of(batch, names))
        sizes = np.full(len(batch.tasks), self._settings.group_size)
        if self._values.pairs:
            sizes = allot(p_G, int(sizes.sum()), least=self._least, most=self._most)
        return self._groups(batch, sizes.tolist(), p_G.tolist(), most=self._most)

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group, and report the prediction; see `Collector.play`."""
        played = await super().play(group)
        for each in played if group.plan is not None else ():
            each.info = {**each.info, PREDICTED: group.plan}
        return played

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Remember the outcomes; see `Collector.learn`."""
        self._values.learn(
            [(self._prompts[each.task], each.success) for _, own in played for each in own if each.usable]
        )

    async def _prompts_of(self, batch: TaskBatch, names: Sequence[str]) -> list[str]:
        """Return the first observation of each task; empty where the environment fails."""
        environments = OwnEnvironments(batch.environments or self._environments)
        if environments.agents:
            self._prompts |= {name: name for name in names}
        for task, name in zip(batch.tasks, names, strict=True):
            if name not in self._prompts:
                try:
                    self._prompts[name] = (await environments.start(0, task)).observation
                except EnvironmentFault:
                    self._prompts[name] = ""  # its trajectories will show the cause
                finally:
                    environments.close(0)
        return [self._prompts[name] for name in names]

    def state_dict(self) -> dict[str, Any]:
        """Return the outcomes that the value model remembers."""
        return {"pairs": [list(pair) for pair in self._values.pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the outcomes."""
        self._values.pairs.clear()
        self._values.learn([(str(prompt), bool(success)) for prompt, success in state["pairs"]])
