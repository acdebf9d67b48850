"""Collect what token rules see of a step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from turnwise.base.streams import Stream
from turnwise.objective.part import all_kept, part_of, whole_of
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import StepView
from turnwise.objective.token_rules.base import StepTokens, TokenCredit, columns_of


def step_tokens(step: StepView, settings: UpdateConfig, state: Any) -> StepTokens:
    """Collect the inputs of token rules for a step."""
    return StepTokens(
        step.advantage_T,
        step.column("logprob_T", "update.tokens"),
        step.column("entropy_T", "update.tokens"),
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        steps_done=step.step - 1,
        steps=step.steps,
        seed=(step.seed, Stream.TOKEN_RULES, step.step),
        state=state,
        batch=step.batch,
    )


class StepRule:
    """A rule that is asked once per step, and its state."""

    def __init__(self, rule: Callable[[StepTokens], Any], settings: UpdateConfig):
        self.rule, self.state, self._settings = rule, None, settings
        self._cached: tuple[StepView, Any] | None = None

    def __call__(self, step: StepView) -> Any:
        """Return what the rule says about the step of a view."""
        whole, _ = whole_of(step)
        if self._cached is None or self._cached[0] is not whole:
            self._cached = whole, self.rule(step_tokens(whole, self._settings, self.state))
            self.state = self._cached[1].state
        return self._cached[1]


def of_kept(rule: StepRule, step: StepView) -> TokenCredit:
    """Return what a rule for tokens says of a step, of which it sees what the method keeps unless it `reads` columns.

    What the loss leaves out has zeros, and its tokens still count in the ratio of their trajectory.
    """
    kept_R, responses = step.credit.kept_R, step.batch.tokens
    assert responses is not None
    if kept_R is None or columns_of(rule.rule):
        return rule(step)
    if not kept_R.any():
        return TokenCredit()
    return rule(all_kept(part_of(step, np.flatnonzero(kept_R)))).among(responses.broadcast(kept_R))
