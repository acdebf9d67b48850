"""Compute the metrics of rollouts."""

from collections.abc import Iterable, Sequence

import numpy as np

from turnwise.rollout.replays import is_diverged
from turnwise.rollout.trajectory import Trajectory, Turn, distinct_turns

CUT = "turn_budget"
"""Key of `info` with the limit, below the environment's, at which a trajectory was truncated."""
PREDICTED = "predicted_success"
"""Key of `info` with the success that was predicted for the task."""


def rollout_metrics(
    trajectories: Sequence[Trajectory], *, batches: int = 1, kept_frac: float = 1.0, filled_frac: float = 1.0
) -> dict[str, float]:
    """Compute rollout metrics: success, reward, turns, shares of failures, trajectories, tokens, environment steps.

    Trajectories of other players than the policy count only for tokens and steps. A shared response counts once; its
    environment step counts for each trajectory that has replayed it.

    Args:
        trajectories: All that were played.
        batches: Batches in which they were played.
        kept_frac: Share of their groups that pass the filter.
        filled_frac: Groups that the step learns from, without those of stores and demonstrations, as a share of
            `rollout.groups`.
    """
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    own = [trajectory for trajectory in trajectories if trajectory.learns]
    turns = distinct_turns(usable)
    pruned = sum(trajectory.ended == "pruned" for trajectory in trajectories)
    diverged = sum(map(is_diverged, trajectories))
    limits = [float(trajectory.info[CUT]) for trajectory in own if CUT in trajectory.info]
    mean = lambda values: float(np.mean(values)) if len(values) else 0.0  # noqa: E731
    return {
        "trajectories": float(sum(trajectory.ended != "unfinished" for trajectory in own)),
        "batches": float(batches),
        "kept_frac": float(kept_frac),
        "filled_frac": float(filled_frac),
        "success": mean([trajectory.success for trajectory in usable]),
        "reward": mean([trajectory.reward for trajectory in usable]),
        "turns": mean([len(trajectory.turns) for trajectory in usable]),
        **shares_of_turns(turns),
        "context_frac": mean([trajectory.ended == "context" for trajectory in own]),
        **({"turn_budget": max(limits), "turn_budget_frac": len(limits) / len(own)} if limits else {}),
        **({"pruned_frac": pruned / len(trajectories)} if pruned else {}),
        **({"diverged": float(diverged)} if diverged else {}),
        **_predictions(usable),
        "failed_frac": 1 - len(usable) / max(1, len(own)),
        **costs(trajectories),
        **objectives_of(usable),
    }


def shares_of_turns(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the shares of responses that the environment did not accept, and that hit the length limit."""
    mean = lambda values: float(np.mean(values)) if len(values) else 0.0  # noqa: E731
    return {
        "invalid_frac": mean([not turn.valid for turn in turns]),
        "truncated_frac": mean([turn.truncated for turn in turns]),
    }


def costs(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Count the tokens generated for trajectories, and their environment steps."""
    tokens = sum(turn.num_generated for turn in distinct_turns(trajectories))
    return {"tokens": float(tokens), "env_steps": float(env_steps(trajectories))}


def objectives_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean of each of several rewards per trajectory, `objective/NAME`; empty if there is one reward."""
    found = [trajectory.info["objectives"] for trajectory in trajectories if "objectives" in trajectory.info]
    names = dict.fromkeys(name for each in found for name in each)
    return {f"objective/{name}": float(np.mean([each[name] for each in found if name in each])) for name in names}


def _predictions(usable: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean predicted success and its mean squared error; empty without predictions."""
    pairs = np.array([(each.info[PREDICTED], each.success) for each in usable if PREDICTED in each.info], dtype=float)
    if not len(pairs):
        return {}
    sizes = np.bincount([each.group for each in usable])
    brier = float(((pairs[:, 0] - pairs[:, 1]) ** 2).mean())
    metrics = {"predicted_success": float(pairs[:, 0].mean()), "brier": brier}
    return metrics | {"group_size_max": float(sizes.max())}


def env_steps(trajectories: Iterable[Trajectory]) -> int:
    """Count the environment steps of trajectories, including replays; a failed replay counts in full."""
    return sum(len(each.turns) - each.copied * each.shared - _ends_unplayed(each) for each in trajectories)


def _ends_unplayed(trajectory: Trajectory) -> bool:
    """Return whether the last turn was not played, because of pruning or a missing response."""
    failed = (trajectory.failure or "").startswith("engine:")
    return trajectory.ended == "pruned" or (failed and any(not turn.num_generated for turn in trajectory.turns[-1:]))
