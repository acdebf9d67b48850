"""Add an entropy bonus and a corridor around the entropy of past steps: EPO."""

import math

from turnwise.objective.token_rules.base import Corridor, NotNegative, StepTokens


def epo(
    tokens: StepTokens,
    *,
    beta_decay: NotNegative = 3.0,
    bonus: NotNegative = 0.001,
    penalty: NotNegative = 0.1,
    low: NotNegative = 0.0,
    high: NotNegative = 2.0,
) -> Corridor:
    """Reward entropy, and penalise token entropies far from the mean of past steps.

        loss = -bonus * (mean(H) - beta * mean(penalty * (max(low * H_past - H, 0) + max(H - high * H_past, 0))))
        beta = 1 + exp(-beta_decay * steps_done / max(1, floor(steps / 2))): from 2 towards 1

    `mean` is the mean over trajectories of the mean over responses of the mean over tokens. `H_past` is the mean token
    entropy, averaged over previous steps. The first step has no corridor.

    The release's penalty is constant outside the corridor and has no gradient. It therefore equals a plain bonus:
    `update.entropy_bonus = 0.001` with `update.aggregate = "token-mean"`.

    Args:
        tokens: Generated tokens of the step.
        beta_decay: gamma in the paper, which leaves it open; a script for the released code has 3.
        bonus: lambda in the paper.
        penalty: alpha in the paper: 0.1 on ALFWorld, 0.05 on ScienceWorld.
        low: Lower end of the corridor, as a multiple of past entropy; 0 for none.
        high: Upper end of the corridor, as a multiple of past entropy.

    Reference: Xu et al., Entropy-regularized Policy Optimization, arXiv 2509.22576.
    """
    past = tokens.state or {"total": 0.0, "steps": 0}
    state = {"total": past["total"] + float(tokens.entropy_T.mean()), "steps": past["steps"] + 1}
    if not past["steps"]:
        return Corridor("nested-mean", bonus, state=state)
    mean = past["total"] / past["steps"]
    beta = 1 + math.exp(-beta_decay * tokens.steps_done / max(1, tokens.steps // 2))
    return Corridor("nested-mean", bonus, bonus * beta * penalty, low * mean, high * mean, state)
