"""Say where a trajectory failed, for a person who reads about one trajectory."""

from turnwise.rollout.trajectory import Trajectory


def placed_failure(trajectory: Trajectory) -> str | None:
    """Return the cause of a failure with the turn at which it happened, counted from 1; None if there is no failure.

    `Trajectory.failure` itself has no turn, so that equal causes can be counted. An imported log has none.
    """
    failure = trajectory.failure
    if failure is None or failure.startswith("log:") or len(trajectory.turns) == trajectory.shared > 0:
        return failure  # a replay names its own turns
    return f"{failure} ({reached(trajectory)})"


def reached(trajectory: Trajectory) -> str:
    """Say where a trajectory failed: in the last turn that began; a harness may fail after it."""
    after = "after" if (trajectory.failure or "").startswith("harness:") else "at"
    return f"{after} turn {len(trajectory.turns)}" if trajectory.turns else "at the start"
