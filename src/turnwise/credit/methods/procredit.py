"""ProCredit: credit turns with the progress that the task's own checks verify."""

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method, mix
from turnwise.credit.transforms import (
    add_progress,
    center_by_group,
    discounted_return,
    outcome_return,
    reward_at_end,
    scale_by_group_std,
)


@method("ProCredit", arxiv="2609.27532", confidence="reconstructed")
def procredit(*, progress: float = 0.5, weight: float = 1.0) -> Transform:
    """Add to the standardised score of a trajectory the centred progress still to come at a turn.

        A_it = (S_i - mean(S)) / (std(S) + 1e-6) + weight (G_it - mean(G))
        S_i = R_i + progress c_i,T        G_it = R_i + progress (c_i,T - c_i,t-1)

    R is the outcome, and c_t the share of acceptance checks that hold after response t (column `checks`), 0 before
    the first; it may fall.
    S is compared over the group's trajectories (population deviation), G over all its responses. So
    `A_t - A_{t+1} = weight progress (c_t - c_{t-1})`: only progress distinguishes neighbouring turns.

    Args:
        progress: c in the paper: reward of all checks.
        weight: lambda: weight of the turns; not published, 1 is an adaptation's.

    Expected gradient: biased: it rewards checks as well as the outcome, and divides by a deviation.
    Use it when: the checks that decide success can run on every state without disturbing it.
    Reference: arXiv 2609.27532, in a design that cites it; the deviation and `weight` are guesses.
    """
    return chain(
        reward_at_end(),
        add_progress(weight=progress),
        mix(
            chain(outcome_return(), center_by_group(), scale_by_group_std(ddof=0)),
            chain(discounted_return(), center_by_group(over="responses")),
            weights=(1.0, weight),
        ),
        gradient=Gradient("biased", reason="rewards checks as well as the outcome"),
    )
