"""Measure what the trainer knows about a response in addition to its reward. Each file defines one measure.

The `needs` of the method and the loss terms select the measures. Each measure names the columns that it provides and
the columns that it needs. To add a measure, write its file and add it below; `turnwise.base.register` has those of
extensions.
"""

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.imports import import_named
from turnwise.base.register import MEASURES as FURTHER
from turnwise.measures.base import Measure, Played, measure
from turnwise.measures.edited import hindsight, information, left_out, prompt
from turnwise.measures.entropy import entropy
from turnwise.measures.gold import answers, gold
from turnwise.measures.hidden_rank import ranks
from turnwise.measures.mismatch import mismatch
from turnwise.measures.planned import parts, subgoals
from turnwise.measures.played import played
from turnwise.measures.rare_tokens import peak_tokens, rare_tokens
from turnwise.measures.reference import reference, reference_mean
from turnwise.measures.roles import roles
from turnwise.measures.sampled import engine_scores, sampled
from turnwise.measures.scores import scores
from turnwise.measures.shared_tokens import shared_tokens
from turnwise.measures.step_rewards import checks, step_rewards
from turnwise.measures.values import action_value, subgoal_values, token_values, value, value_next

_OWN: dict[str, Measure] = {
    each.name: each
    for each in (
        sampled,
        scores,
        engine_scores,
        reference,
        reference_mean,
        entropy,
        rare_tokens,
        peak_tokens,
        mismatch,
        played,
        shared_tokens,
        roles,
        value,
        value_next,
        action_value,
        token_values,
        subgoals,
        parts,
        subgoal_values,
        gold,
        answers,
        information,
        left_out,
        hindsight,
        prompt,
        ranks,
        step_rewards,
        checks,
    )
}
MEASURES: dict[str, Measure] = {**_OWN, **FURTHER}
"""All measures by name. If two provide the same column, `update.scoring` selects one, or the last one is taken."""


def named_measure(name: str) -> Measure:
    """Return `MEASURES[name]`, or your own `module:measure`.

    Raises:
        ConfigError: There is no such measure, or it is something else.
    """
    if ":" in name:
        found = import_named(name)
        if not isinstance(found, Measure):
            raise ConfigError(
                f"measures: {name!r} is a {type(found).__name__}, expected a Measure; decorate it with @measure"
            )
        return found
    if name not in MEASURES:
        raise ConfigError(
            f"unknown measure {name!r}.{did_you_mean(name, MEASURES)} Name your own measures as 'module:measure'"
        )
    return MEASURES[name]


__all__ = ["MEASURES", "Measure", "Played", "measure", "named_measure"]
