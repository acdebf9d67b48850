"""HiPER: assign credit to actions, subgoals, and the decision to change the subgoal."""

from turnwise.card import Gradient
from turnwise.transform import Transform, method, mix
from turnwise.transforms.hierarchy import Unfinished, credit_actions, credit_subgoals, credit_switches


@method("Hierarchical RL with Explicit Credit Assignment (HiPER)", arxiv="2602.16165")
def hiper(
    *,
    discount: float = 1.0,
    action_decay: float = 1.0,
    subgoal_decay: float = 0.95,
    subgoal_weight: float = 0.0,
    switch_weight: float = 0.0,
    standardize: bool = True,
    unfinished: Unfinished = "zero",
) -> Transform:
    """Compute generalised advantage estimates on two levels, with a segment for every subgoal.

        A = A_action + subgoal_weight * A_subgoal + switch_weight * A_switch
        A_action   GAE within the segment from `value_low`, at its end the next `value_high`     (`credit_actions`)
        A_subgoal  GAE from segment to segment from `value_high`, where one begins               (`credit_subgoals`)
        A_switch   return up to the next segment's `value_high`, minus `value_switch`            (`credit_switches`)

    Segments begin at turn 0 and where `switch` is 1. The paper gives each advantage to its own tokens: the action, the
    subgoal if the response begins a segment, the decision to keep or switch. With one advantage per response, the
    default is that of the action. All three estimate the same return against different baselines, so that weights of 1
    make the step larger, not better. A trainer with advantages per token calls the three blocks separately. The penalty
    for keeping a subgoal changes the reward: `chain(penalize_keeping(), hiper())`.

    Args:
        discount: gamma per turn.
        action_decay: lambda within a segment.
        subgoal_decay: lambda from segment to segment.
        subgoal_weight: Weight of A_subgoal; with 0 its column is not needed.
        switch_weight: Weight of A_switch; with 0 its column is not needed.
        standardize: Standardise each advantage over the batch, A_subgoal over the segments, as the official recipe
            does.
        unfinished: Value after a truncated trajectory: "zero", or "repeat" (the official `bootstrap_truncated`).

    Expected gradient: biased: a value replaces the future exactly where the next response decides to switch;
        `standardize` also divides by the batch's deviation.
    Use it when: the policy states subgoals and acts on them, and a critic values both.
    Reference: Peng et al., arXiv 2602.16165; official code JonP07/HiPER-agent. A_switch follows the code. The paper's
        text has (switch - P(switch)) * (V_high - V_low), which needs the probability of switching.
    """
    actions = credit_actions(discount=discount, decay=action_decay, standardize=standardize, unfinished=unfinished)
    subgoals = credit_subgoals(discount=discount, decay=subgoal_decay, standardize=standardize, unfinished=unfinished)
    switches = credit_switches(discount=discount, standardize=standardize, unfinished=unfinished)
    others = [
        (part, weight) for part, weight in ((subgoals, subgoal_weight), (switches, switch_weight)) if weight != 0.0
    ]
    return mix(
        actions,
        *(part for part, _ in others),
        weights=[1.0, *(weight for _, weight in others)],
        name="hiper",
        gradient=Gradient(
            "biased", reason="a value stands in for the future where the next response decides to switch"
        ),
    )
