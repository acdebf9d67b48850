"""Collect what the environment reported about each response."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from turnwise.measures.base import Columns, Played, measure
from turnwise.rollout.trajectory import Trajectory, Turn


def action_of(response: str) -> str:
    """Return what a response asks of the environment, with white space collapsed.

    That is its last `<action>...</action>` after its reasoning, or everything after the reasoning.
    """
    from turnwise.environments.tool_calls import last_tagged, without_reasoning

    said = without_reasoning(response)
    action = last_tagged(said, "action")
    return " ".join((said if action is None else action).split())


OF_TURN: Mapping[str, Callable[[Trajectory, Turn], object]] = {
    "state_key": lambda _, turn: turn.state_key,
    "end_key": lambda trajectory, _: ("end of", id(trajectory)) if trajectory.last_key is None else trajectory.last_key,
    "state_text": lambda _, turn: turn.observation,
    "action_key": lambda _, turn: action_of(turn.response),
    "truncated": lambda _, turn: float(turn.truncated),
    "task": lambda trajectory, _: trajectory.task,
    "success": lambda trajectory, _: float(trajectory.success),
    "finished": lambda trajectory, _: float(trajectory.ended == "terminated"),
    "replayed": lambda trajectory, _: float("replayed" in trajectory.info),
    "learned": lambda _, turn: float(turn.extras.get("learned", False)),
    "unfinished": lambda trajectory, _: float(trajectory.ended == "unfinished"),
    "prefix": lambda _, turn: id(turn),
    "tree": lambda trajectory, _: id(trajectory) if trajectory.tree is None else (trajectory.group, trajectory.tree),
}


def num_paths(prefix: Sequence[Hashable]) -> list[float]:
    """Count the trajectories that contain each response, by the responses' `prefix`."""
    count = Counter(prefix)
    return [float(count[each]) for each in prefix]


@measure(provides=("penalty", "num_paths", *OF_TURN), recorded=False)  # rollouts already record them
def played(step: Played, columns: Columns) -> Columns:
    """Collect state, task, outcome, the penalty for an invalid response, and which turns trajectories share."""
    result: dict[str, Any] = {
        name: [value(trajectory, turn) for trajectory in step.trajectories for turn in trajectory.turns]
        for name, value in OF_TURN.items()
    }
    result["penalty"] = [0.0 if turn.valid else -step.invalid_penalty for turn in step.turns]
    result["num_paths"] = num_paths(result["prefix"])
    return result
