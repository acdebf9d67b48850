"""Remember the states and outcomes of each task over steps, and compare with them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.transform import Credit, State, Transform
from turnwise.credit.transforms.outcomes import is_new, success_of_trajectories, task_of_groups

GOAL = True
"""Stands for success among the states that edges lead to. Every text is a state, also an empty one."""


def reward_remembered_nearness(*, omega: float) -> Transform:
    """Reward a response by how close to success it leads in the graph of all steps so far; keeps state.

        omega^d        d: fewest responses from the state after it to success, by edges of this and earlier steps

    A task's graph joins states of equal `state_text`; a response is an edge, and a success ends in one common node with
    d = 0. A failure's last response leads to a separate node. From a state without a path to success, d is one more
    than the largest; a task that never saw a success has 0 everywhere.

    Args:
        omega: Factor per response of distance, above 0 and at most 1.

    Raises:
        ConfigError: `omega` is out of range.
    """
    if not 0.0 < omega <= 1.0:
        raise ConfigError(f"reward_remembered_nearness: omega={omega} must be above 0 and at most 1")
    name = f"reward_remembered_nearness(omega={omega!r})"

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        earlier = state or {}
        after = {task: dict.fromkeys(map(tuple, edges)) for task, edges in earlier.items()}
        text_R = batch.column("state_text", needed_by=name).tolist()
        won_R = batch.trajectories.broadcast(success_of_trajectories(batch, needed_by=name) > 0)
        last_R, result_R = batch.trajectories.at_last(1.0) > 0, np.zeros(batch.num_responses)
        to_R = [
            won if last else text_R[row + 1]  # True is GOAL, and False a failure
            for row, (won, last) in enumerate(zip(won_R.tolist(), last_R.tolist(), strict=True))
        ]
        offsets = batch.group_responses.offsets.tolist()
        for group, task in enumerate(task_of_groups(batch, needed_by=name)):
            rows = range(offsets[group], offsets[group + 1])
            edges = dict.fromkeys((text_R[row], to_R[row]) for row in rows if to_R[row] is not False)
            known = _distances(dict.fromkeys(map(tuple, earlier.get(task, ()))) | edges)
            if len(known) > 1:  # a success was seen
                result_R[rows] = [omega ** known.get(to_R[row], max(known.values()) + 1) for row in rows]
            after[task] = after.get(task, {}) | edges
        return result_R, {task: [list(edge) for edge in edges] for task, edges in after.items()}

    return Transform(name, update, init=dict, needs=("state_text", "success", "task"))


def _distances(edges: Iterable[tuple[Any, ...]]) -> dict[str | bool, int]:
    """Return the fewest edges from each state to success, for states with a path."""
    before: dict[str | bool, list[str]] = {}
    for source, target in edges:
        before.setdefault(target, []).append(source)
    found: dict[str | bool, int] = {GOAL: 0}
    reached: list[str | bool] = [GOAL]
    for state in reached:  # grows while it is read: breadth first
        new = [source for source in before.get(state, ()) if source not in found]
        found |= dict.fromkeys(new, found[state] + 1)
        reached += dict.fromkeys(new)
    return found


def standardize_with_earlier(*, eps: float = 1e-6) -> Transform:
    """Standardise outcomes with those of the task's last visit; keeps state.

        A_i = (R_i - mean) / (std + eps)        over the group's returns and those of the same task's last step, sample

    Args:
        eps: Added to the deviation.
    """
    name = f"standardize_with_earlier(eps={eps!r})"

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        earlier, after = state or {}, dict(state or {})
        return_N, new_N = batch.trajectories.sum(credit_R), is_new(batch) > 0
        result_N, now = np.zeros(batch.num_trajectories), {}
        for group, task in enumerate(task_of_groups(batch, needed_by=name)):
            mine = batch.groups.ids == group
            every = np.concatenate([earlier.get(task, []), return_N[mine]])
            if new := return_N[mine & new_N].tolist():
                now[task] = [*now.get(task, []), *new]
            if np.ptp(every) > 0:
                result_N[mine] = (return_N[mine] - every.mean()) / (every.std(ddof=1) + eps)
        return batch.trajectories.broadcast(result_N), after | now

    return Transform(name, update, init=dict, needs=("task",))
