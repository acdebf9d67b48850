"""Predict what each action adds to the return, from the outcomes of the trajectories that took it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from turnwise.batch import Batch
from turnwise.errors import ConfigError
from turnwise.segments import Segments
from turnwise.transform import Credit, block
from turnwise.transforms.grouping import alike


def _columns(options: Mapping[str, Any]) -> tuple[str, ...]:
    for name in ("noise", "least_variance"):
        if not options[name] > 0.0:
            raise ConfigError(f"predict_effects: {name}={options[name]} must be above 0")
    return ("logprob", "length", options["state"], options["action"])


@block(needs=_columns)
def predict_effects(
    credit_R: Credit,
    batch: Batch,
    *,
    noise: float = 0.1,
    least_variance: float = 0.02,
    state: str = "state_key",
    action: str = "action_key",
) -> Credit:
    """Replace the credit by the best linear prediction of each action's effect on its trajectory's return.

        A = v_e sum_i x_ie [(K + noise mean(diag K) I)^{-1} (R - mean R)]_i        K_ij = sum_e v_e x_ie x_je

    `blup` has the model behind it, and defines v.

    Args:
        credit_R: `[responses]` rewards; R is their sum over a trajectory.
        batch: Their batch. x_ie is how often trajectory i takes action e of its group.
        noise: Variance of R that no action explains, as a share of what a trajectory's actions explain; above 0.
        least_variance: Added to v, so that a certain response can still have an effect; above 0.
        state: Column that is equal in the same state.
        action: Column that is equal for the same action.
    """
    groups, turns, name = batch.groups, batch.trajectories, "predict_effects"
    logprob_R, length_R = (batch.column(column, needed_by=name) for column in ("logprob", "length"))
    taken = alike(batch, same=(state, action), needed_by=name)
    # a response of probability p is at most 1 - p times the gap to the others better than the mean
    variance_E = taken.mean((1.0 - np.minimum(np.exp(logprob_R * length_R), 1.0)) ** 2) + least_variance

    group_R, place_E = batch.group_responses.ids, _places(taken.first(batch.group_responses.ids))
    row_R, column_R = groups.positions[turns.ids], place_E[taken.ids]
    size = (len(groups), int(groups.lengths.max()), int(place_E.max()) + 1)
    times_GNE, prior_GE, above_GN = np.zeros(size), np.zeros((size[0], size[2])), np.zeros(size[:2])
    np.add.at(times_GNE, (group_R, row_R, column_R), 1.0)
    prior_GE[group_R, column_R] = variance_E[taken.ids]
    return_N = turns.sum(credit_R)
    above_GN[groups.ids, groups.positions] = return_N - groups.broadcast(groups.mean(return_N))

    shared_GNN = (times_GNE * prior_GE[:, None]) @ times_GNE.swapaxes(1, 2)
    rest_G = noise * np.trace(shared_GNN, axis1=1, axis2=2) / groups.lengths
    shared_GNN[:, range(size[1]), range(size[1])] += rest_G[:, None]  # also where a group has fewer trajectories
    weight_GN = np.linalg.solve(shared_GNN, above_GN[..., None])
    effect_GE = prior_GE * (times_GNE.swapaxes(1, 2) @ weight_GN)[..., 0]
    return effect_GE[group_R, column_R]


def _places(group_E: Int[np.ndarray, " E"]) -> Int[np.ndarray, " E"]:
    """Number the actions of each group 0, 1, ..."""
    order = np.argsort(group_E, kind="stable")
    place_E = np.empty_like(order)
    place_E[order] = Segments.from_sorted_ids(group_E[order]).positions
    return place_E
