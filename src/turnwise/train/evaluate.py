"""Held-out evaluation on a fixed panel of tasks."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from turnwise.config import Config
from turnwise.environments.base import Task
from turnwise.environments.suites import Suite
from turnwise.policy import Policy
from turnwise.rollout.collect import blocking, collect
from turnwise.rollout.engine import Engine, Sampling
from turnwise.rollout.record import Trajectory
from turnwise.rollout.worlds import InProcessWorlds, Worlds


def panel(tasks: Sequence[Task], episodes: int) -> list[Task]:
    """Choose `episodes` tasks, evenly spaced over all; when there are fewer tasks, they are repeated."""
    if episodes >= len(tasks):
        return [tasks[index % len(tasks)] for index in range(episodes)]
    return [tasks[index * len(tasks) // episodes] for index in range(episodes)]


def evaluate(
    engine: Engine,
    policy: Policy,
    suite: Suite,
    config: Config,
    *,
    episodes: int,
    seed: int = 0,
    worlds: Worlds | None = None,
    on_turn: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, float], list[Trajectory]]:
    """Play a panel of the held-out split once and report; without `worlds`, in this process.

    Args:
        engine: Generates the responses.
        policy: Its format and the length of its context.
        suite: Where the tasks are.
        config: Which split, and how it is played.
        episodes: Tasks of the panel.
        seed: Of the sampling.
        worlds: Where they are played.
        on_turn: Told after every turn how many episodes are live, of how many.

    Returns:
        Metrics and the trajectories. Metrics: `success` with `success_low` and `success_high` (95 % Wilson interval), `turns`,
        `invalid_frac` (of responses), `failed` (trajectories lost to faults, left out of the rest), `episodes`, `success/TYPE`
        for every task type that the world names, and where rewards take more than two values their mean, `reward`, with
        `reward_low` and `reward_high` (95 % normal interval).
    """
    settings = config.rollout
    played = collect(
        engine,
        panel(suite.tasks(config.environment.eval_split), episodes),
        worlds or InProcessWorlds(suite.environment),
        policy.format,
        group_size=1,
        sampling=Sampling(
            max_new_tokens=settings.max_new_tokens,
            stop_ids=(policy.format.stop_id,),
            stop=settings.stop,
            temperature=config.evaluate.temperature,
            seed=seed,
        ),
        max_context=policy.max_context,
        window=settings.remembered,
        task_name=suite.task_name,
        on_turn=on_turn,
    )
    trajectories = blocking(played)
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    wins = [trajectory.success for trajectory in usable]
    low, high = wilson_interval(sum(wins), len(wins))
    metrics = {
        "success": float(np.mean(wins)) if wins else 0.0,
        "success_low": low,
        "success_high": high,
        "turns": float(np.mean([len(trajectory.turns) for trajectory in usable])) if usable else 0.0,
        "invalid_frac": invalid_frac(usable),
        "failed": float(len(trajectories) - len(usable)),
        "episodes": float(len(usable)),
    }
    rewards = [trajectory.reward for trajectory in usable]
    if len(set(rewards)) > 2:  # else the success says it all
        mean, half = float(np.mean(rewards)), 1.959964 * float(np.std(rewards, ddof=1)) / math.sqrt(len(rewards))
        metrics |= {"reward": mean, "reward_low": mean - half, "reward_high": mean + half}
    by_type: dict[str, list[bool]] = defaultdict(list)
    for trajectory in usable:
        if "task_type" in trajectory.info:
            by_type[str(trajectory.info["task_type"])].append(trajectory.success)
    for name, successes in sorted(by_type.items()):
        metrics[f"success/{name}"] = float(np.mean(successes))
    return metrics, trajectories


def invalid_frac(trajectories: Sequence[Trajectory]) -> float:
    """Share of responses that their world did not accept."""
    valid = [turn.valid for trajectory in trajectories for turn in trajectory.turns]
    return 1.0 - float(np.mean(valid)) if valid else 0.0


def wilson_interval(successes: int, trials: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share: `(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)`.

    Unlike the usual p +- 2 standard errors it stays within [0, 1] and does not vanish at 0 or all successes.
    """
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, z * z / trials
    center = share + square / 2
    half = math.sqrt(square * (share * (1 - share) + square / 4))
    low, high = (center - half) / (1 + square), (center + half) / (1 + square)
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # at 0 and 1 rounding would leave the share outside
