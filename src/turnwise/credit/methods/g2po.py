"""G2PO: join a group's trajectories in one graph of states, and score edges by where they lead."""

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method, mix
from turnwise.credit.transforms import center_by_group, reward_at_end, scale_by_group_std, value_next_state


@method("Group-Graph Policy Optimization (G2PO)", arxiv="2606.22995", confidence="near-exact")
def g2po(*, discount: float = 0.95, weight: float = 1.0) -> Transform:
    """Add to GRPO's advantage the value of the next state among its siblings, and the gain in value among all edges.

        A_t = A_episode + weight (z_s(V(s_{t+1})) + z(V(s_{t+1}) - V(s_t)))
        V(s) = mean over the group's responses in s of discount^(T - t + 1) R

    z_s standardises over the responses given in the same state, z over all of the group, both `(x - mean) / (std +
    1e-6)`; a single one gets 0. T is the trajectory's last turn and R its outcome, which is also the value after it.
    `A_episode` is `grpo()`.

    Args:
        discount: Factor per turn of distance from the outcome.
        weight: Weight of both terms of the graph; 0 is GRPO.

    Expected gradient: biased: the graph and the members of a state depend on the actions.
    Use it when: as for `pgpo`, its close relative, which standardises the gain within the state.
    Reference: arXiv 2606.22995, read in a note with the formulas; code Nala-YN/G2PO, not read. The value after the last
    response and the sample deviation are guesses.
    """
    edge = [center_by_group(over="responses"), scale_by_group_std(over="responses")]
    same = [center_by_group(over="responses", same="state_key"), scale_by_group_std(over="responses", same="state_key")]
    return mix(
        grpo(),
        chain(reward_at_end(), value_next_state(return_discount=discount, lag=1, subtract=False), *same),
        chain(reward_at_end(), value_next_state(return_discount=discount, lag=1), *edge),
        weights=(1.0, weight, weight),
        name="g2po",
        gradient=Gradient("biased", reason="the graph and the members of a state depend on the actions"),
    )
