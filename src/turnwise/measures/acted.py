"""Find the action in each response."""

import numpy as np

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("action_T",), model="probe")
def actions(step: Played, columns: Columns) -> Columns:
    """Tell which tokens of a response are its action: those between the tags, or all where the form has no tags."""
    spans = np.array([step.probe.format.action_span(turn.response_ids) for turn in step.turns])
    first_T, stop_T = spans[step.tokens.ids].T
    place_T = step.tokens.positions
    return {"action_T": ((place_T >= first_T) & (place_T < stop_T)).astype(np.float64)}
