"""Say which generated tokens trajectories share."""

import numpy as np

from turnwise.measures.base import Columns, Played, measure
from turnwise.rollout.trajectory import Turn


@measure(provides=("token_T",), recorded=False)
def shared_tokens(step: Played, columns: Columns) -> Columns:
    """Number the generated tokens; a token that forked trajectories share has one number."""
    numbers: dict[int, np.ndarray] = {}
    count = 0

    def number(turn: Turn) -> np.ndarray:
        nonlocal count
        if id(turn) not in numbers:
            begun = number(turn.origin)[: turn.begun] if turn.origin is not None else np.zeros(0, dtype=np.int64)
            numbers[id(turn)] = np.concatenate([begun, np.arange(count, count + turn.num_generated)])
            count += turn.num_generated
        return numbers[id(turn)]

    return {"token_T": np.concatenate([number(turn) for turn in step.turns])}
