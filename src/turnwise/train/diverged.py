"""Keep the rollouts of a step whose gradient is not finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from turnwise.errors import RunError
from turnwise.objective.gradient import Diverged, abbreviate
from turnwise.rollout.experience import Experience
from turnwise.rollout.record import write_rollouts
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.folder import RunFolder


@contextmanager
def kept_for_inspection(folder: RunFolder, step: int, experience: Experience) -> Iterator[None]:
    """Keep rollouts whose gradient is not finite, and name them in the error."""
    try:
        yield
    except Diverged as error:
        path = folder.rollouts / f"diverged-{step:06d}.parquet"
        write_rollouts(path, experience.trajectories, {})
        used = np.flatnonzero(experience.used_N)
        numbers = [int(used[n]) for n in error.trajectories if n < len(used)]  # demonstrations of the step come after
        tasks = sorted({experience.trajectories[number].task for number in numbers})
        whose = f"trajectories {abbreviate(numbers)} (tasks {abbreviate(tasks)})" if numbers else "demonstrations"
        raise RunError(
            f"step {step}: the {'gradient' if error.finite else 'loss'} of {whose} is not finite. The step's "
            f"trajectories are kept in {path}. The update was not made, and "
            f"{latest_checkpoint(folder)} is intact. Start a new run with a lower update.learning_rate"
        ) from error
