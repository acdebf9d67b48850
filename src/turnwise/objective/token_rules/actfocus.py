"""Weigh tokens of the action more than tokens of the reasoning: ActFocus."""

import numpy as np

from turnwise.errors import ConfigError
from turnwise.objective.token_rules.base import Frac, NotNegative, Positive, StepTokens, TokenCredit, reads


@reads("action_T")
def actfocus(tokens: StepTokens, *, reasoning: Frac, low: NotNegative, high: Positive, normalize: bool) -> TokenCredit:
    """Weigh the loss of action tokens by their entropy, and that of reasoning tokens by a small factor.

        factor = clip(H / mean(H), low, high)        action tokens; the mean is over all of the step
        factor = reasoning                           the other tokens of a response with an action
        factor = 1                                   all tokens of a response without one
        factor = factor / mean(factor)               over all tokens of the step (normalize)

    Only the paper's abstract is known to us: less weight for reasoning, more for actions, most for uncertain ones. The
    formula, and the entropy as the measure of uncertainty, are ours. Without a form that marks the action
    (`prompt.think`, `prompt.plan`) a response is an action as a whole.

    Args:
        tokens: Generated tokens of the step.
        reasoning: Factor of reasoning tokens; we would try 0.1 to 0.5.
        low: Least factor of an action token; we would try 0.5.
        high: Largest factor of an action token; we would try 2.
        normalize: Divide the factors by their mean, so that the loss keeps its size.

    Reference: Resolving Action Bottleneck (ActFocus), arXiv 2605.14558, of which we know the abstract.
    """
    if low > high:
        raise ConfigError(f"actfocus: low={low} is above high={high}; give the smaller factor as low")
    responses = tokens.responses.tokens
    assert responses is not None
    acts_T = tokens.responses.column("action_T", needed_by="update.tokens 'actfocus'") > 0
    mean = float(tokens.entropy_T[acts_T].mean()) if acts_T.any() else 0.0
    action_T = np.clip(tokens.entropy_T / mean, low, high) if mean else np.ones(len(tokens))
    factor_T = np.where(acts_T, action_T, reasoning)
    factor_T = np.where(responses.broadcast(responses.max(acts_T.astype(float))) > 0, factor_T, 1.0)
    return TokenCredit(factor_T=factor_T / factor_T.mean() if normalize else factor_T)
