"""HCAPO: weight returns by the hindsight probability of responses."""

from typing import Literal

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method, mix
from turnwise.credit.transforms import (
    center_by_group,
    outcome_return,
    scale_by_group_std,
    spare_successes,
    weigh_by_hindsight,
)

Compared = Literal["group", "turn"]
"""Responses that a response's Q is compared with: all of the group, or those at the same turn."""


@method(
    "Hindsight Credit Assignment for Long-Horizon LLM Agents (HCAPO)",
    arxiv="2603.08754",
    stage="modulation",
    confidence="near-exact",
)
def hcapo(
    base: Transform | None = None,
    *,
    weight: float = 1.0,
    temperature: float = 5.0,
    low: float = 0.8,
    high: float = 1.2,
    discount: float = 0.95,
    smoothing: float = 0.0,
    compared: Compared = "group",
    spare: bool = True,
) -> Transform:
    """Add to a base advantage the standardised return weighted by the response's hindsight probability.

        A_it = A_base_it + weight * (Q_it - mean(Q)) / (std(Q) + 1e-6)
        Q_it = clip(p_it / mean_i(p), low, high) * discount^(T_i - t) * R_i
        p_it = exp(hindsight_logprob_it / temperature)

    `hindsight_logprob` is the mean log-probability of the response's tokens with the final state in the prompt, which
    takes one more pass; our note is `turnwise.measures.edited.HINDSIGHT`, since the paper's wording is not published.
    `R_i` is the trajectory's return; the paper has 10 for a success and 0 for a failure. Its unit does not matter, but
    negative returns reverse the weights. Statistics run over responses.

    An audit of outcome-conditioned log-ratios of this kind against replayed alternatives (arXiv 2608.19760, read in
    notes: ALFWorld, Qwen2.5-7B, 50 trajectories) found them at chance: median rank correlation .019 [-.109, .081] with
    the effect of a turn, inside the band of shuffled credit, and +.75 with the text's fluency. On our leaderboard, tiny
    policies with the base's credit included, `hcapo` is closer to the truth than GRPO in 14 of 39 cells, less in one.

    Args:
        base: Any method or chain; default `grpo()`.
        weight: omega in the paper.
        temperature: T_temp in the paper.
        low: Smallest hindsight weight.
        high: Largest hindsight weight.
        discount: gamma per turn before the last, T_i.
        smoothing: Weight of the next response's Q; 0.5 in the paper's smoothed variant.
        compared: Responses to standardise over: "group" as in the paper's text, or "turn" as at its equation.
        spare: "Do no harm": no negative second term in trajectories with `success` 1.

    Expected gradient: biased: Q is not a return, it is divided by a deviation, and its baseline counts responses.
    Use it when: another scoring pass is affordable, and the final state shows which responses led there.
    Reference: Tan et al., arXiv 2603.08754. No official code. We read the smoothing as simultaneous for all Q, without
        the last.
    """
    same = "turn" if compared == "turn" else None
    micro = chain(
        outcome_return(),
        weigh_by_hindsight(temperature=temperature, discount=discount, low=low, high=high, smoothing=smoothing),
        center_by_group(over="responses", same=same),
        scale_by_group_std(over="responses", same=same),
        *([spare_successes()] if spare else []),
        name="micro",
    )
    return mix(
        base if base is not None else grpo(),
        micro,
        weights=(1.0, weight),
        name="hcapo",
        gradient=Gradient("biased", reason="a clipped weight times a return, divided by a deviation over responses"),
    )
