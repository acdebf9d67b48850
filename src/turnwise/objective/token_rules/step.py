"""Collect what token rules see of a step."""

from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.base.streams import Stream
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import StepView
from turnwise.objective.token_rules.base import StepTokens


def step_tokens(step: StepView, settings: UpdateConfig, state: Any) -> StepTokens:
    """Collect the inputs of token rules for a step.

    Raises:
        ConfigError: The method leaves responses out of the loss, whose tokens rules would compare with the others.
    """
    if step.credit.kept_R is not None:
        raise ConfigError(
            "update.tokens and update.entropy compare all tokens of a step, and the method leaves responses out of the "
            "loss; remove update.tokens and update.entropy, or choose another method"
        )
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
