"""Tokens of a step, written short."""

from typing import Any

import numpy as np

from turnwise.objective.token_rules import StepTokens, TokenCredit


def step(advantage: Any = 0.0, logprob: Any = -1.0, entropy: Any = 1.0, **fields: Any) -> StepTokens:
    """Tokens of a step; numbers hold for all of them."""
    advantage_T, logprob_T, entropy_T = (
        np.atleast_1d(values).astype(float) for values in np.broadcast_arrays(advantage, logprob, entropy)
    )
    return StepTokens(advantage_T, logprob_T, entropy_T, **fields)


def column(values: np.ndarray | None) -> np.ndarray:
    """A column that the rule must have given."""
    assert values is not None
    return values


def given(credit: TokenCredit) -> set[str]:
    return {name for name, value in vars(credit).items() if value is not None}


WIDTHS: Any = {"upper": [0.6, 0.2], "lower": [0.4, 0.1]}
