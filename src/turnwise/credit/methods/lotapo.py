"""LOTAPO: credit a turn with what the gold answer loses if it is left out."""

from typing import Literal

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import add_turn_drop


@method(
    "Leave-One-Turn Attribution Policy Optimization (LOTAPO)",
    arxiv="2607.13501",
    stage="shaping",
    confidence="reconstructed",
    trial={"weight": 0.5, "compared": "trajectory"},
)
def lotapo(*, weight: float, compared: Literal["group", "trajectory"]) -> Transform:
    """Add to GRPO's advantage the standardised drop of the gold answer's likelihood without the turn.

        A_t = A_episode + weight z(g_t) where z(g_t) has the sign of g_t, else A_episode
        g_t = L(whole) - L(turn t and its observation replaced by "[DELETE]"),  later turns kept

    L is the mean log-probability of the gold answer's tokens, instead of the last response, under the current policy;
    g is the column `turn_drop`. z is `(g - mean) / (std + 1e-6)` (sample deviation) among turns whose g is not 0; the
    last response, which gives the answer, has none.

    Args:
        weight: Weight of the turns; not published.
        compared: Turns over which g is standardised; not published.

    Expected gradient: biased: it rewards the gold answer's probability as well as the outcome.
    Use it when: turns are searches, and one of them finds what the answer needs.
    Reference: arXiv 2607.13501, abstract and two notes: g and the gate agree; the rest is a guess.
    """
    return chain(
        grpo(),
        add_turn_drop(weight=weight, same=compared),
        gradient=Gradient("biased", reason="rewards the probability of the gold answer as well as the outcome"),
    )
