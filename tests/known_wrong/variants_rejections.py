"""Bugs in rejections of responses, with the checks that reject them."""

import math

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import column, known, worked
from tests.known_wrong.variants import Variant, grouped
from tests.known_wrong.variants_turns import everyone, leave_one_out
from tests.properties.strategies import Rows

import turnwise as tw

# -- rejection of a mismatch -------------------------------------------------------------------------------------------

DRIFT = known([[[1, 2], [3, 4]]], mismatch=[0.0, 0.002, 0.0005, 0.0], mismatch_min=[-1, -1, -1, -9.3], length=[1] * 4)
AGREES = known([[[1]]], mismatch=[0.0], mismatch_min=[-1.0], length=[1])
OF_LOGARITHMS = worked("the_mean_is_of_logarithms", AGREES, [1])
REJECT_TURNS = [worked("the_response_alone_is_rejected", DRIFT, [1, 0, 3, 0]), OF_LOGARITHMS]
# turns that cancel are kept, turns that add up are rejected; nine tokens of 0 and one of 0.004 have a mean of 0.0004
DRIFTS = known(
    [[[1, 2], [3, 4], [5, 6], [7, 8]]],
    mismatch=[0.002, -0.002, 0, 0.004, 0, 0.004, 0, 0],
    mismatch_min=[-1] * 7 + [-9.3],
    length=[5, 5, 5, 5, 9, 1, 5, 5],
)
REJECT = [
    worked("all_tokens_of_the_trajectory_have_one_mean", DRIFTS, [1, 2, 0, 0, 5, 6, 0, 0]),
    OF_LOGARITHMS,
]

# -- rejection by profile ----------------------------------------------------------------------------------------------

PROFILED = known([[[1], [0], [2]]], profile_frac=[0.9, 0.0, 0.1])  # leave one out: 0, -3/2, 3/2
PROFILE = [worked("failures_are_never_rejected", PROFILED, [0, -1.5, 0])]


def profiled(rows: Rows) -> np.ndarray:
    """Leave-one-out credit of whatever accounts for enough of the run time."""
    return np.where(column(rows, "profile_frac") > 0.4, leave_one_out(rows, rows.reward, list(rows.group)), 0.0)


def rejected(rows: Rows, wrong: np.ndarray) -> np.ndarray:
    return np.where(wrong, 0.0, rows.reward)


def drifts(rows: Rows) -> np.ndarray:
    return (np.abs(column(rows, "mismatch")) > 0.001) | (column(rows, "mismatch_min") < math.log(1e-4))


def worst_of_trajectory(rows: Rows) -> np.ndarray:
    return grouped(rows, drifts(rows), np.max, keys=rows.names(), counted=everyone(rows))


SUITES: dict[str, list[Check]] = {
    "rejection of a mismatch": REJECT,
    "rejection of a mismatched turn": REJECT_TURNS,
    "rejection by profile": PROFILE,
}

REAL: dict[str, Credit] = {
    "rejection of a mismatch": lambda rows: rows.credit(tw.reject_mismatch()),
    "rejection of a mismatched turn": lambda rows: rows.credit(tw.reject_mismatch(over="responses")),
    "rejection by profile": lambda rows: rows.credit(tw.chain(tw.trloo(), tw.reject_by_profile())),
}

VARIANTS: dict[str, Variant] = {
    "each turn is judged by itself": Variant(
        "rejection of a mismatch",
        lambda rows: rejected(rows, drifts(rows)),
        "turnwise before the scripts were read: KernelGYM's geometric is over all turns",
        ("all_tokens_of_the_trajectory_have_one_mean",),
    ),
    "one turn that drifts rejects all": Variant(
        "rejection of a mismatch",
        lambda rows: rejected(rows, worst_of_trajectory(rows) > 0),
        "a veto by the worst turn in place of a mean over all tokens",
        ("all_tokens_of_the_trajectory_have_one_mean",),
    ),
    "failures are rejected by their profile": Variant(
        "rejection by profile",
        profiled,
        "turnwise before KernelGYM's compute_rollout_rejection_mask was read: failures profile at 0, so none was left",
        ("failures_are_never_rejected",),
    ),
    "the whole trajectory is rejected": Variant(
        "rejection of a mismatched turn",
        lambda rows: rejected(rows, worst_of_trajectory(rows) > 0),
        "sequence-level rejection on rows that hold several turns",
        ("the_response_alone_is_rejected",),
    ),
    "logarithms compared with ratios": Variant(
        "rejection of a mismatch",
        lambda rows: rejected(rows, drifts(rows) | (np.abs(column(rows, "mismatch") - 1) > 0.001)),
        "bounds of a ratio on a mean of logarithms",
        ("the_mean_is_of_logarithms",),
    ),
}
