"""Collect what plan-and-act responses say: whether they switch the subgoal, and which tokens say what."""

import numpy as np

from turnwise.measures.base import Columns, Played, measure


@measure(provides=("switch", "subgoal_changed"), model="plan")
def subgoals(step: Played, columns: Columns) -> Columns:
    """Read decision and subgoal of each response. A trajectory's first response switches whatever it says.

    A response without a decision keeps the subgoal. One without a subgoal does not change it.

    Reference: HiPER, arXiv 2602.16165, which compares tokens; the text is compared here.
    """
    switch, changed = [], []
    for trajectory in step.trajectories:
        before = None
        for number, turn in enumerate(trajectory.turns):
            planned = step.probe.format.planned(turn.response_ids)
            switch.append(float(planned.switch or not number))
            other = None not in (before, planned.subgoal) and before != planned.subgoal
            changed.append(float(other and not switch[-1]))
            before = before if planned.subgoal is None else planned.subgoal
    return {"switch": switch, "subgoal_changed": changed}


@measure(provides=("part_T",), model="plan")
def parts(step: Played, columns: Columns) -> Columns:
    """Tell which part of its response each token belongs to: 0 the decision, 1 the subgoal, 2 the action."""
    cuts = np.array([step.probe.format.planned(turn.response_ids).cuts for turn in step.turns])
    return {"part_T": (step.tokens.positions[:, None] >= cuts[step.tokens.ids]).sum(axis=1).astype(np.float64)}
