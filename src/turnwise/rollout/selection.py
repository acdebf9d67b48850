"""Select the tasks that a step plays, and the groups that it learns from.

Imports NumPy only: configurations are checked with it before heavy imports.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, Self

import numpy as np

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.register import SELECTORS
from turnwise.base.streams import Stream
from turnwise.credit.options import check_names

GroupFilter = Literal["none", "mixed", "not-all-correct"]


class TaskSelector(Protocol):
    """Choose tasks, and optionally learn from their outcomes.

    Attributes:
        state: Plain values and arrays, saved in checkpoints; setting it resumes.
    """

    state: dict[str, Any]

    def choose(self, step: int) -> Iterator[int]:
        """Yield task numbers endlessly, in the order in which a step should play them."""
        ...

    def observe(self, task_G: np.ndarray, successes_G: np.ndarray, failures_G: np.ndarray) -> None:
        """Learn from all groups of a step; called once per step.

        Args:
            task_G: `[groups]` int, the task of each group; a task may have several.
            successes_G: `[groups]` int, successful trajectories.
            failures_G: `[groups]` int, unsuccessful trajectories; failed trajectories count as neither.
        """
        ...


class TaskOrder:
    """The tasks that a selector chooses for a step, which a resumed run goes on to take.

    Attributes:
        state: State of the selector when it was asked, and how many tasks have been taken.
    """

    def __init__(self, selector: TaskSelector, step: int):
        self.state = {"selector": copy.deepcopy(selector.state), "taken": 0}
        self._tasks = selector.choose(step)

    def take(self, count: int) -> list[int]:
        """Take the next tasks."""
        self.state["taken"] += count
        return list(itertools.islice(self._tasks, count))

    @classmethod
    def restore(cls, selector: TaskSelector, step: int, state: Mapping[str, Any]) -> Self:
        """Make the order with this state; the selector's own stays as it is."""
        now, selector.state = selector.state, copy.deepcopy(state["selector"])
        order = cls(selector, step)
        order.take(state["taken"])
        selector.state = now
        return order


class Epochs:
    """Play all tasks in a new random order each epoch; each step continues where the last one stopped."""

    def __init__(self, *, num_tasks: int, seed: int):
        self._num_tasks, self._seed = num_tasks, seed
        self._order = functools.lru_cache(maxsize=1)(self._shuffled)
        self.state: dict[str, Any] = {"cursor": 0}

    def choose(self, step: int) -> Iterator[int]:
        """Yield tasks from the cursor on, and advance it."""
        while True:
            epoch, place = divmod(self.state["cursor"], self._num_tasks)
            self.state["cursor"] += 1
            yield int(self._order(epoch)[place])

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, Stream.EPOCHS, epoch]).permutation(self._num_tasks)

    def observe(self, task_G: np.ndarray, successes_G: np.ndarray, failures_G: np.ndarray) -> None:
        """Learn nothing."""


def build_selector(name: str, options: Mapping[str, Any], *, num_tasks: int, seed: int) -> TaskSelector:
    """Build `SELECTORS[name]`.

    Raises:
        ConfigError: The name or an option is unknown, or an option is missing.
    """
    if name not in SELECTORS:
        raise ConfigError(f"unknown rollout.select {name!r}.{did_you_mean(name, SELECTORS)}")
    make = SELECTORS[name]
    known = {k: p for k, p in inspect.signature(make).parameters.items() if k not in ("num_tasks", "seed")}
    check_names(f"rollout.select.name={name!r}", options, known)
    missing = [option for option, p in known.items() if p.default is p.empty and option not in options]
    if missing:
        raise ConfigError(f"rollout.select.name={name!r} needs {' and '.join(missing)} to be set")
    return make(num_tasks=num_tasks, seed=seed, **options)


def kept(group_filter: GroupFilter, successes_G: np.ndarray, failures_G: np.ndarray) -> np.ndarray:
    """Return which groups pass the filter, `[groups]` bool. Success decides, never a shaped reward.

        none: any trajectory    mixed: successes > 0 and failures > 0    not-all-correct: failures > 0

    Reference: "mixed" is the dynamic sampling of DAPO, Yu et al., arXiv 2503.14476; "not-all-correct" suits NGRPO,
    Nan et al., arXiv 2509.18851, which also learns from all-failure groups.
    """
    if group_filter == "none":
        return successes_G + failures_G > 0
    return (failures_G > 0) & ((successes_G > 0) | (group_filter == "not-all-correct"))


def widest(spread_G: np.ndarray, share: float, *, slack: float = 0.01) -> np.ndarray:
    """Return which groups make up a share of the spread of all groups' rewards, `[groups]` bool.

    Groups are taken by decreasing spread, earlier ones first if equal, until their sum reaches `share * total - slack`;
    a share of 1 takes every group with spread. Groups without spread are never taken. At least one with spread is
    always taken, where the released code skips the step.

    Args:
        spread_G: `[groups]` sample deviation of the rewards of a group's trajectories; 0 for a group that is not
            learned from.
        share: Share of the total to reach; 0.9 in the paper.
        slack: Slack of the sum, in units of the reward; the paper's.

    Reference: the reward-variance filter of RAGEN-2 (top-p, linear), arXiv 2604.06268; official code mll-lab-nu/RAGEN.
    """
    if share == 1:
        return spread_G > 0
    order = np.argsort(-spread_G, kind="stable")
    before = np.cumsum(spread_G[order]) - spread_G[order]
    taken_G = np.zeros(len(spread_G), dtype=bool)
    taken_G[order] = before < max(share * spread_G.sum() - slack, np.finfo(float).tiny)  # one at least
    return taken_G & (spread_G > 0)
