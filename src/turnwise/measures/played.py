"""Collect what the environment reported about each response."""

from collections.abc import Callable, Mapping

from turnwise.measures.base import Columns, Played, measure
from turnwise.rollout.trajectory import Trajectory, Turn

OF_TURN: Mapping[str, Callable[[Trajectory, Turn], object]] = {
    "state_key": lambda _, turn: turn.state_key,
    "state_text": lambda _, turn: turn.observation,
    "truncated": lambda _, turn: float(turn.truncated),
    "task": lambda trajectory, _: trajectory.task,
    "success": lambda trajectory, _: float(trajectory.success),
    "finished": lambda trajectory, _: float(trajectory.ended == "terminated"),
}


@measure(provides=("penalty", *OF_TURN), recorded=False)  # rollouts already record them
def played(step: Played, columns: Columns) -> Columns:
    """Collect state, task, outcome, and the penalty for an invalid response."""
    result: dict[str, object] = {
        name: [value(trajectory, turn) for trajectory in step.trajectories for turn in trajectory.turns]
        for name, value in OF_TURN.items()
    }
    result["penalty"] = [0.0 if turn.valid else -step.invalid_penalty for turn in step.turns]
    return result
