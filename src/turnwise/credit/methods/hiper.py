"""HiPER: assign credit to actions, subgoals, and the decision to change the subgoal."""

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms.hierarchy import SubgoalEnd, credit_parts, penalize_changing, penalize_keeping


@method("Hierarchical RL with Explicit Credit Assignment (HiPER)", arxiv="2602.16165")
def hiper(
    *,
    discount: float = 1.0,
    action_decay: float = 1.0,
    subgoal_decay: float = 0.95,
    keep_penalty: float = -0.3,
    change_penalty: float = -0.3,
    standardize: bool = True,
    unfinished: SubgoalEnd = "zero",
) -> Transform:
    """Compute generalised advantage estimates on two levels, with a segment for every subgoal.

        r_t        reward + keep_penalty / num_turns if t keeps its subgoal, + change_penalty if it states another one
        A_action   GAE within the segment from `value_low`, at its end the next `value_high`     (`credit_actions`)
        A_subgoal  GAE from segment to segment from `value_high`, where one begins               (`credit_subgoals`)
        A_switch   return up to the next segment's `value_high`, minus `value_switch`            (`credit_switches`)

    Segments begin at turn 0 and where `switch` is 1. Each advantage goes to the tokens of its own part: the action, the
    subgoal if the response begins a segment, the decision to keep or switch. A kept subgoal's tokens get 0. A response
    without an action between tags is treated entirely as action; its decision and subgoal get both advantages, added.
    The critic learns advantage + value with one head per column; `value_high` where a segment begins.

    Args:
        discount: gamma per turn.
        action_decay: lambda within a segment.
        subgoal_decay: lambda from segment to segment.
        keep_penalty: Penalty of a trajectory of two turns or more whose responses, including the first, all keep the
            subgoal; -0.3 on ALFWorld, -3.5 on WebShop. Without it a policy keeps one subgoal forever.
        change_penalty: Penalty of a response that keeps its subgoal and states another one; with 0 its column is not
            needed.
        standardize: Standardise each advantage over the responses of the batch that have its part, as the official
            recipe does.
        unfinished: Value after a truncated trajectory: "zero", or "repeat" (the official `bootstrap_truncated`).

    Expected gradient: biased: a value replaces the future exactly where the next response decides to switch;
        `standardize` also divides by the batch's deviation, and the penalties change the reward.
    Use it when: the policy states subgoals and acts on them (`prompt.plan`), and a critic values both. One trajectory
        per prompt is enough.
    Reference: Peng et al., arXiv 2602.16165; official code JonP07/HiPER-agent. A_switch follows the code. The paper's
        text has (switch - P(switch)) * (V_high - V_low), which needs the probability of switching. The code leaves
        tokens of a kept subgoal, and text between the parts, out of the loss; here the first count as tokens without
        advantage, the second as part of what follows.
    """
    penalties = [
        *([penalize_keeping(penalty=keep_penalty)] if keep_penalty else []),
        *([penalize_changing(penalty=change_penalty)] if change_penalty else []),
    ]
    return chain(
        *penalties,
        credit_parts(
            discount=discount,
            action_decay=action_decay,
            subgoal_decay=subgoal_decay,
            standardize=standardize,
            unfinished=unfinished,
        ),
        name="hiper",
        gradient=Gradient(
            "biased", reason="a value stands in for the future where the next response decides to switch"
        ),
    )
