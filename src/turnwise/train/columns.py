"""The columns that the trainer fills: what a rollout and its scoring pass know of every response."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from turnwise.columns import COLUMNS
from turnwise.errors import ConfigError
from turnwise.rollout.record import Trajectory, Turn
from turnwise.segments import Segments
from turnwise.transform import Transform

RARE_SHARE = 0.2
"""Share of a response's tokens that `rare_logprob` is the mean of, at least one."""


def check_columns(method: Transform, *, name: str = "", provided: Iterable[str] = ()) -> None:
    """Refuse a method that needs what a run cannot know, before anything is played.

    Args:
        method: The configured method.
        name: What to call it; default: its own.
        provided: Further columns that this run has, such as `ref_logprob` where there is a reference model.

    Raises:
        ConfigError: Names the method and the column.
    """
    filled = {name for name, column in COLUMNS.items() if column.source == "trainer"}
    for column in method.needs:
        if column not in filled | set(provided):
            meaning = COLUMNS[column].meaning if column in COLUMNS else "unknown to turnwise"
            raise ConfigError(f"method {name or method.name.split('(')[0]!r} needs the column {column!r} ({meaning}), which `turnwise train` does not "
                              "measure; give it to the library in a loop of your own, or choose another of `turnwise methods`")  # fmt: skip


def response_columns(
    trajectories: Sequence[Trajectory],
    tokens: Segments,
    *,
    logprob_T: Float[np.ndarray, " T"],
    entropy_T: Float[np.ndarray, " T"],
    behavior_logprob_T: Float[np.ndarray, " T"],
    invalid_penalty: float,
) -> dict[str, Any]:
    """Columns of the responses of usable trajectories, in their order.

    Args:
        trajectories: What was played.
        tokens: Segments of generated tokens, one a response.
        logprob_T: Log-probabilities under the policy at the start of the step (nats).
        entropy_T: Token entropies under it (nats).
        behavior_logprob_T: Log-probabilities that the engine reported.
        invalid_penalty: Taken off for an invalid response.
    """
    mismatch_T = logprob_T - behavior_logprob_T
    return {
        "entropy": tokens.mean(entropy_T),
        "logprob": tokens.mean(logprob_T),
        "rare_logprob": lowest_mean(logprob_T, tokens, share=RARE_SHARE),
        "mismatch": tokens.mean(mismatch_T),
        "mismatch_min": tokens.min(mismatch_T),
        **played_columns(trajectories, invalid_penalty=invalid_penalty),
    }


SCORED = ("entropy", "logprob", "rare_logprob", "mismatch", "mismatch_min", "ref_logprob")
"""Columns that only the policies of the step can fill: kept with the rollouts, so that credit can be assigned to them again."""


def played_columns(trajectories: Sequence[Trajectory], *, invalid_penalty: float) -> dict[str, Any]:
    """The columns that need no policy: what the worlds said of each response, and the penalty for an invalid one."""
    of_turn: Mapping[str, Callable[[Trajectory, Turn], object]] = {
        "state_key": lambda _, turn: turn.state_key,
        "state_text": lambda _, turn: turn.observation,
        "penalty": lambda _, turn: 0.0 if turn.valid else -invalid_penalty,
        "truncated": lambda _, turn: float(turn.truncated),
        "task": lambda trajectory, _: trajectory.task,
        "success": lambda trajectory, _: float(trajectory.success),
        "finished": lambda trajectory, _: float(trajectory.ended == "terminated"),
    }
    return {
        name: [value(trajectory, turn) for trajectory in trajectories for turn in trajectory.turns]
        for name, value in of_turn.items()
    }


def lowest_mean(values_T: Float[np.ndarray, " T"], tokens: Segments, *, share: float) -> Float[np.ndarray, " R"]:
    """Mean of each segment's lowest `share` of values, at least one of them."""
    order = np.lexsort((values_T, tokens.ids))  # within each segment ascending
    kept = np.maximum(1, np.floor(share * tokens.lengths + 1e-9))
    lowest = (tokens.positions < tokens.broadcast(kept)).astype(np.float64)
    return tokens.sum(values_T[order] * lowest) / kept
