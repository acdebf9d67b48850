"""Bugs in implicit rewards of responses (iStar), with the checks that reject them."""

import numpy as np
from tests.known_wrong.checks import Check
from tests.known_wrong.known import column, known, worked
from tests.known_wrong.variants import Variant, outcomes
from tests.properties.strategies import Rows

import turnwise as tw

# one prompt, trajectories of one and two turns that earn 1 and 0; the largest log-ratio is 4
ONE = known([[[1], [0, 0]]], implicit_reward=[2, 4, 0])
# the same with a second prompt whose log-ratio of -8 is the largest of the batch
TWO = known([[[1], [0, 0]], [[0], [0]]], implicit_reward=[2, 4, 0, -8, 0])
SUITES: dict[str, list[Check]] = {
    "istar": [
        # r: 1/2, 1, 0; the others' means: 1/2, 1/4, 3/4
        worked("a_response_is_compared_with_all_other_responses", ONE, [1 + 0, -1 + 0.75, -1 - 0.75]),
        # r: 1/4, 1/2, 0, and -1, 0
        worked("the_largest_of_the_batch_divides", TWO, [1 + 0, -1 + 0.375, -1 - 0.375, -1, 1]),
    ]
}
REAL = {"istar": lambda rows: rows.credit(tw.istar())}


def istar(rows: Rows, *, first_only=False, per_group=False, per_trajectory=False, scaled=True, own=False) -> np.ndarray:
    """The method in plain loops, with bugs to choose from."""
    q, names = column(rows, "implicit_reward"), rows.names()
    group = [name[0] for name in names]
    returns = dict(zip(names, outcomes(rows), strict=True))
    result = np.zeros(len(rows))
    for row, name in enumerate(names):
        mates = [k for k in range(len(rows)) if group[k] == group[row]]
        largest = np.abs(q[mates] if per_group else q).max() if scaled else 1.0
        r = q / largest
        others = [k for k in mates if own or k != row]
        if first_only:
            others = [k for k in others if names[k] not in names[:k]]
        if per_trajectory:
            others = [k for k in others if names[k] != name]
        rest = [value for other, value in returns.items() if other[0] == name[0] and other != name]
        result[row] = returns[name] - np.mean(rest) + r[row] - np.mean(r[others])
    return result


def variant(rejected_by: str, source: str, **bug: bool) -> Variant:
    return Variant("istar", lambda rows: istar(rows, **bug), source, (rejected_by,))


ALL_OTHERS = "a_response_is_compared_with_all_other_responses"
VARIANTS = {
    "the baseline is made of first responses": variant(
        ALL_OTHERS, "card iStar, pitfall b: only the first row of each trajectory", first_only=True
    ),
    "a response is compared with other trajectories only": variant(
        ALL_OTHERS, "leave-one-out over trajectories applied to steps", per_trajectory=True
    ),
    "a response is in its own baseline": variant(ALL_OTHERS, "the mean of GRPO for leave-one-out", own=True),
    "log-ratios as they are": variant(ALL_OTHERS, "card iStar: the scale left out", scaled=False),
    "the largest of the group divides": variant(
        "the_largest_of_the_batch_divides", "card iStar: the batch maximum", per_group=True
    ),
}
