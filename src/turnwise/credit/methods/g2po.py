"""G2PO: join a group's trajectories in one graph of states, and score edges by where they lead."""

from typing import Literal

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import dr_grpo
from turnwise.credit.transform import Transform, chain, method, mix
from turnwise.credit.transforms import (
    center_by_group,
    outcome_return,
    reward_at_end,
    scale_by_group_std,
    value_next_state,
)
from turnwise.credit.transforms.baselines import Lone
from turnwise.credit.transforms.grouping import Over, Same

Convention = Literal["turnwise", "verl-agent"]


@method("Group-Graph Policy Optimization (G2PO)", arxiv="2606.22995", confidence="near-exact")
def g2po(
    *, discount: float = 0.95, weight: float = 1.0, scale: bool = True, convention: Convention = "turnwise"
) -> Transform:
    """Add to GRPO's advantage the value of the next state among its siblings, and the gain in value among all edges.

        A_t = z_g(R) + weight (z_s(V(s_{t+1})) + z(V(s_{t+1}) - V(s_t)))
        V(s) = mean over the group's responses in s of discount^(T - t + 1) R

    z_g standardises over the group's trajectories, z_s over the responses given in the same state, z over all of the
    group, each `(x - mean) / (std + 1e-6)` with the sample deviation; a single one gets 0. T is the trajectory's last
    turn and R its outcome, which is also the value after it.

    Args:
        discount: Factor per turn of distance from the outcome.
        weight: Weight of both terms of the graph; 0 is GRPO.
        scale: Whether to divide by the standard deviations. The release does on ALFWorld and does not on WebShop.
        convention: "turnwise" counts trajectories in z_g. "verl-agent", the release, counts responses, and a single
            response keeps its raw return there. The release also lowers the value after an invalid action by 0.1 within
            z_s; penalties are added after the method here.

    Expected gradient: biased: the graph and the members of a state depend on the actions. (At `weight=0` without
    `scale` it is Dr. GRPO.)
    Use it when: as for `pgpo`, its close relative, which standardises the gain within the state.
    Reference: arXiv 2606.22995, read in a note with the formulas; Nala-YN/G2PO, g2po/core_g2po.py. The value after a
    last response is there 10 or 0, its only rewards.
    """
    over: Over = "responses" if convention == "verl-agent" else "trajectories"

    def compared(over: Over, same: Same = None, lone: Lone = "zero") -> list[Transform]:
        centered = center_by_group(over=over, same=same, lone=lone)
        return [centered, scale_by_group_std(over=over, same=same)] if scale else [centered]

    biased = Gradient("biased", reason="the graph and the members of a state depend on the actions")
    return mix(
        chain(outcome_return(), *compared(over, lone="keep" if convention == "verl-agent" else "zero")),
        chain(
            reward_at_end(),
            value_next_state(return_discount=discount, lag=1, subtract=False),
            *compared("responses", "state_key"),
        ),
        chain(reward_at_end(), value_next_state(return_discount=discount, lag=1), *compared("responses")),
        weights=(1.0, weight, weight),
        name="g2po",
        gradient=dr_grpo().gradient if weight == 0.0 and not scale and over == "trajectories" else biased,
    )
