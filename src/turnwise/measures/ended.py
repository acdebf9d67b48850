"""Collect where each trajectory ended."""

from collections.abc import Hashable

from turnwise.measures.base import Columns, Played, measure
from turnwise.rollout.trajectory import Trajectory


def end_key(trajectory: Trajectory) -> Hashable:
    """Return the key of the last state: its observation, where the observations are the keys; else one like no other.

    An environment that names states otherwise does not record the name of the last one.
    """
    named = all(turn.state_key == turn.observation for turn in trajectory.turns)
    return trajectory.last_observation if named and trajectory.last_observation else ("end of", id(trajectory))


@measure(provides=("end_key",), recorded=False)  # rollouts record no state after the last response
def ended(step: Played, columns: Columns) -> Columns:
    """Collect the state in which each trajectory ended, for its responses."""
    return {"end_key": [key for each in step.trajectories for key in [end_key(each)] * len(each.turns)]}
