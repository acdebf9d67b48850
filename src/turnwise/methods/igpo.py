"""IGPO: a turn is paid for what it added to the probability of the gold answer."""

from turnwise.transform import Gradient, Transform, chain, method
from turnwise.transforms import discounted_return, reward_gold_gain, standardize_turn_rewards
from turnwise.transforms.information import Difference, Pools
from turnwise.transforms.shaping import Convention


@method("Information Gain-based Policy Optimization (IGPO)", arxiv="2510.14967", stage="shaping")
def igpo(
    *,
    normalise: Pools = "separate",
    difference: Difference = "logprob",
    discount: float = 1.0,
    convention: Convention = "paper",
) -> Transform:
    """Standardised gains of the gold answer's log-probability, summed from a turn on, with the outcome at the end.

        A_it = sum_{k >= t} discount^(k - t) z_ik
        z_it = (r_it - mean(r)) / (std(r) + eps)        population deviation, over the group's gains or outcomes
        r_it = b_{i,t+1} - b_it before the last turn,  R_i at the last turn

    `b_it` is the mean log-probability of the gold answer's tokens before response t (column `gold_logprob`), one
    teacher-forced pass a turn; `R_i` is the trajectory's return. A trajectory of one turn has its outcome only.

    Args:
        normalise: "separate": gains among themselves and outcomes among themselves (the paper's second version).
            "joint": all together (the released code's default).
        difference: "logprob", or "probability" (the paper's first version): `exp(b_{i,t+1}) - exp(b_it)`.
        discount: Factor a turn.
        convention: "release": the deviation is `sqrt(var + 1e-8)`, and a turn whose gain is exactly 0 is left out of
            the statistics, as in the code where no mask of turns is passed. (With a discount below 1 it is still a turn
            here; there it joins the next.) The code's weights of gains and of outcomes, 1 unless a curriculum moves them,
            are no option: scale the rewards. They matter where all are standardised together.

    Expected gradient: biased: it pays for the gold answer's probability as well as for the outcome.
    Use it when: the right answer is known as text, and outcomes alone are rare.
    Reference: Wang et al., Information Gain-based Policy Optimization, arXiv 2510.14967.
    """
    return chain(
        reward_gold_gain(difference=difference),
        standardize_turn_rewards(pools=normalise, convention=convention),
        discounted_return(discount=discount),
        gradient=Gradient("biased", reason="pays for the probability of the gold answer as well as for the outcome"),
    )
