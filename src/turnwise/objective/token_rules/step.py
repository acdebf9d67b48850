"""Collect what token rules see of a step."""

from typing import Any

from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import StepView
from turnwise.objective.token_rules.base import StepTokens
from turnwise.streams import Stream


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
