"""Say what a run lacks for a column that no measure of it fills."""

from collections.abc import Iterable, Mapping

from turnwise.columns import COLUMNS
from turnwise.errors import ConfigError, did_you_mean
from turnwise.measures.base import Measure

OPTIONAL = {
    "critic": "Add critic.kind=head to the recipe",
    "plan": "Add prompt.plan=true to the recipe",
    "reward_model": "Add reward_model.learning_rate=NUMBER to the recipe",
    "judge": "Add judge.model=NAME or judge.run=module:function to the recipe",
}
"""Models, and a form of responses, that a run has only if its recipe asks for them, and how it does."""


def nobody_fills(who: str, column: str, known: Iterable[str], measures: Mapping[str, Measure]) -> ConfigError:
    """Return the error for a column that is needed and not filled.

    Args:
        who: Who needs it.
        column: The column.
        known: Columns that the run fills.
        measures: All measures, also those of models that the run does not have.
    """
    meaning = COLUMNS[column].meaning if column in COLUMNS else f"unknown to turnwise.{did_you_mean(column, known)}"
    by = next((each.model for each in measures.values() if column in each.provides), "")
    return ConfigError(
        f"{who} needs the column {column!r} ({meaning}), which no measure of this run provides. "
        f"{f'{OPTIONAL[by]}, choose' if by in OPTIONAL else 'Choose'} another of "
        "`turnwise methods`, write a measure and name it in `measures`, or pass the column in your own loop"
    )
