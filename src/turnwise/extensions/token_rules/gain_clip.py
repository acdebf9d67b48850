"""Widen the clip of informative turns: A2TGPO."""

import numpy as np

from turnwise.credit.transforms.information import Difference, turn_gain_scores
from turnwise.credit.transforms.shaping import Convention
from turnwise.objective.token_rules.base import Frac, StepTokens, TokenCredit, reads


@reads("gold_logprob")
def gain_clip(
    tokens: StepTokens,
    *,
    width: Frac = 0.3,
    difference: Difference = "probability",
    convention: Convention = "paper",
) -> TokenCredit:
    """Widen the clip of turns that bring the policy closer to the gold answer, and narrow that of the others.

        c = 1 + width * (2 * sigmoid(z) - 1)
        clip_low = c * clip_low,  clip_high = c * clip_high        for all tokens of the turn

    `z` is the turn's gain as the method `a2tgpo` standardises it: over the same turn of the group. Turns without a
    gain, such as a trajectory's last, have c = 1. The paper's ratio is that of a turn: `update.importance =
    "response"`. The released script has clip_low = 0.003 and clip_high = 0.004.

    Args:
        tokens: Generated tokens of the step, with the usual clip widths.
        width: Largest relative change of the widths.
        difference: Difference of probabilities, or of log-probabilities.
        convention: As that of the method.

    Reference: A2TGPO, arXiv 2605.06200; code CuSO4-Chen/A-TGPO.
    """
    z_R, counted_R = turn_gain_scores(tokens.responses, difference, convention, needed_by="update.tokens 'gain_clip'")
    if convention == "release":  # the turn of a gain of 0 belongs to the next one
        next_R = tokens.responses.trajectories.next_where(counted_R)
        z_R = np.where(next_R >= 0, z_R[next_R], 0.0)
    factor_R = 1 + width * np.tanh(z_R / 2)  # 2 sigmoid(z) - 1 = tanh(z / 2)
    responses = tokens.responses.tokens
    assert responses is not None
    factor_T = responses.broadcast(factor_R)
    return TokenCredit(clip_low_T=tokens.clip_low * factor_T, clip_high_T=tokens.clip_high * factor_T)
