"""Collect rewards of single responses that the environment can verify, apart from the outcome."""

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.measures.base import Columns, Played, measure
from turnwise.measures.gold import at_every_step


@measure(provides=("step_reward",), reads=("step_rewards",))
def step_rewards(step: Played, columns: Columns) -> Columns:
    """Collect `info["step_rewards"]`: one number per response so far, in the `Step` that ends the trajectory."""
    found: list[float] = []
    for trajectory in step.trajectories:
        told = trajectory.info.get("step_rewards")
        try:
            rewards = np.asarray(told, dtype=np.float64)
        except (TypeError, ValueError):
            rewards = np.zeros(0)
        if rewards.shape != (len(trajectory.turns),) or not np.isfinite(rewards).all():
            raise ConfigError(
                f"task {trajectory.task!r} ended with info['step_rewards'] = {repr(told)[:200]}; expected "
                f"{len(trajectory.turns)} finite numbers, one per response{at_every_step(trajectory)}"
            )
        found += rewards.tolist()
    return {"step_reward": found}
