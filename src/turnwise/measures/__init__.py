"""Measure what the trainer knows about a response in addition to its reward.

The `needs` of the method and the loss terms select the measures. Each measure names the columns that it provides and
the columns that it needs. To add a measure, write its file and add it below; `turnwise.base.register` has those of
extensions.
"""

from collections import ChainMap
from collections.abc import Mapping

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.imports import import_named
from turnwise.base.register import MEASURES as FURTHER
from turnwise.measures import edited, gold, hidden_rank, planned, roles, scored, shared_tokens, step_rewards, values
from turnwise.measures.base import Measure, Played, measure
from turnwise.measures.played import played

_OWN: dict[str, Measure] = {
    each.name: each
    for names in (
        vars(scored),
        {"played": played},
        *map(vars, (shared_tokens, roles, values, planned, gold, edited, hidden_rank, step_rewards)),
    )
    for each in names.values()
    if isinstance(each, Measure)
}
# Those of extensions are looked up when they are asked for: their modules import this one.
MEASURES: Mapping[str, Measure] = ChainMap(FURTHER, _OWN)  # pyright: ignore[reportArgumentType] (it is only read)
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
