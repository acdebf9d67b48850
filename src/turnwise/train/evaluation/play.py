"""Evaluate a policy on a fixed panel of held-out tasks."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from turnwise.engines.models import Models
from turnwise.environments.base import Task, shown
from turnwise.rollout.failures import reached
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.metrics import objectives_of
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.evaluation.intervals import mean_interval, share_interval


def panel(tasks: Sequence[Task], episodes: int) -> list[Task]:
    """Choose `episodes` tasks, evenly spaced over all. Fewer tasks are repeated."""
    if episodes >= len(tasks):
        return [tasks[index % len(tasks)] for index in range(episodes)]
    return [tasks[index * len(tasks) // episodes] for index in range(episodes)]


def evaluate(
    collector: Collector,
    models: Models,
    tasks: Sequence[Task],
    *,
    episodes: int,
    temperature: float,
    seed: int = 0,
    on_turn: OnTurn = None,
) -> tuple[dict[str, float], list[Trajectory]]:
    """Play a panel of held-out tasks once; returns `evaluation_metrics` and the trajectories.

    Args:
        collector: Plays the tasks.
        models: Models that act.
        tasks: Tasks of the held-out split.
        episodes: Number of tasks to play.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the sampling.
        on_turn: Called after every turn with the number of live episodes and of all.
    """
    trajectories = play_tasks(
        collector, models, panel(tasks, episodes), seed=seed, group_size=1, temperature=temperature, on_turn=on_turn
    )
    return evaluation_metrics(trajectories), trajectories


def evaluation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Summarise the episodes of a panel.

    Returns:
        `success` with `success_low` and `success_high` (95 % interval, see `share_interval`), `turns`, `invalid_frac`
        (share of responses), `failed` (trajectories, left out of the rest), `episodes`, and `success/TYPE` for every
        task type. If rewards take more than two values, also their mean `reward` with `reward_low` and `reward_high`
        (95 %, see `mean_interval`). For games, `result/NAME`: the share of each result that occurs, such as `win`. With
        several rewards, `objective/NAME`: the mean of each.
    """
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    wins = [trajectory.success for trajectory in usable]
    tasks = [trajectory.task for trajectory in usable]
    low, high = share_interval(wins, tasks)
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
    if len(set(rewards)) > 2:  # otherwise success has the same information
        low, high = mean_interval(rewards, tasks)
        metrics |= {"reward": float(np.mean(rewards)), "reward_low": low, "reward_high": high}
    results = Counter(str(each.info["result"]) for each in usable if "result" in each.info)
    metrics |= {f"result/{name}": count / len(usable) for name, count in sorted(results.items())}
    metrics |= objectives_of(usable)
    by_type: dict[str, list[bool]] = defaultdict(list)
    for trajectory in usable:
        if "task_type" in trajectory.info:
            by_type[str(trajectory.info["task_type"])].append(trajectory.success)
    for name, successes in sorted(by_type.items()):
        metrics[f"success/{name}"] = float(np.mean(successes))
    return metrics


NO_ROOM = "model.max_context has no room for the first observation and a response"


def common_failure(trajectories: Sequence[Trajectory]) -> str:
    """Describe the most common cause of failed trajectories, with its count and first place; empty if none failed."""
    failed = [trajectory for trajectory in trajectories if not trajectory.usable]
    if not failed:
        return ""
    (cause, times), *_ = Counter(trajectory.failure or NO_ROOM for trajectory in failed).most_common(1)
    first = next(trajectory for trajectory in failed if (trajectory.failure or NO_ROOM) == cause)
    return f"{times} x {cause} ({'first ' * (times > 1)}in task {shown(first.task)}, {reached(first)})"


def invalid_frac(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of responses that the environment did not accept."""
    valid = [turn.valid for trajectory in trajectories for turn in trajectory.turns]
    return 1.0 - float(np.mean(valid)) if valid else 0.0
