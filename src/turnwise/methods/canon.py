"""CANON: compare a trajectory with the other half of its group, split by entropy or length."""

from typing import Literal

from turnwise.card import Gradient
from turnwise.transform import Transform, chain, method, mix
from turnwise.transforms import center_by_halves, outcome_return
from turnwise.transforms.grouping import choice
from turnwise.transforms.outcomes import Metric

Convention = Literal["turnwise", "release"]


@method(
    "Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning Models (CANON)", arxiv="2509.23962"
)
def canon(
    *,
    metric: Metric = "entropy",
    mu: float = 1.0,
    efficiency: float = 1.0,
    divisor: float = 1.0,
    convention: Convention = "turnwise",
) -> Transform:
    """Split a group at the median of a metric and compare trajectories with the other half, or with their own.

        A_i = (R_i - (mu * mean(R of the other half) + (1 - mu) * mean(R of the own half))) / divisor

    The lower half has n // 2 of the group's n trajectories. The metric is the mean entropy of a trajectory's tokens, or
    their number. With equal halves, `mu=0.5` gives the group's mean. The advantages of a group need not sum to 0. The
    paper schedules `mu` during a run; here it is fixed.

    Args:
        metric: "entropy" (columns `entropy` and `length`) or "length".
        mu: 1 compares with the other half ("inter", the paper's default), 0 with the own half ("intra").
        efficiency: a in the paper (1, 0.96, 0.88): factor on the returns of the half to discourage: the longer one, or
            the one of lower entropy. It applies to the comparison with the other half only.
        divisor: Divisor of the advantages. The paper uses its constant maximal length, 8192; here the denominator of
            the loss does this.
        convention: Ties at the median. "turnwise": they belong to both halves proportionally; a lone trajectory gets 0.
            "release": the order in the batch decides. A lone trajectory keeps its return, times `efficiency` in the
            comparison with the other half if `metric` is "length".

    Expected gradient: biased: the half that a trajectory falls in depends on its own responses.
    Use it when: return may depend on the length or the entropy of a trajectory.
    Reference: arXiv 2509.23962; released code biuboomc/CANON.
    """
    choice("convention", convention, Convention)
    release = convention == "release"
    centered = center_by_halves(
        metric=metric,
        mu=mu,
        efficiency=efficiency,
        ties="order" if release else "share",
        lone="keep" if release else "zero",
    )
    gradient = Gradient("biased", reason="the half that a trajectory falls in depends on its own responses")
    return mix(chain(outcome_return(), centered), weights=(1.0 / divisor,), gradient=gradient)
