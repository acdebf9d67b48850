"""Plan and take the measures of a run."""

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.measures import MEASURES, named_measure
from turnwise.measures.base import Measure, Played
from turnwise.measures.lacking import OPTIONAL, no_model, nobody_fills, refuse_doubles
from turnwise.rollout.trajectory import distinct_turns

FROM_THE_BATCH = frozenset({"turn", "length", "reward"})
"""Columns of every batch that need no measure."""
SERVICES = ("probe", "judge", "continuations")
"""Models that count their own tokens."""
INSTEAD = {"trainer": "engine_scores", "engine": "scores"}
"""Measure that each value of `update.scoring` excludes."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Hold measures, ordered so that each finds the columns that it needs.

    Attributes:
        measures: Measures taken in every step.
    """

    measures: tuple[Measure, ...]

    @property
    def models(self) -> set[str]:
        """Names of the models that the measures run."""
        return {each.model for each in self.measures if each.model}

    @property
    def recorded(self) -> tuple[str, ...]:
        """Columns that the record of a step keeps."""
        return recorded_columns(self.measures)

    def take(self, played: Played) -> tuple[Batch, dict[str, float]]:
        """Take all measures of the trajectories.

        Returns:
            The batch with all columns, and metrics per measure: seconds, and tokens that a model ran on.
        """
        columns: dict[str, Any] = {"turn": played.turns_of_trajectories.positions}
        columns["length"], columns["reward"] = np.array([(len(t.response_ids), t.reward) for t in played.turns]).T
        metrics: dict[str, float] = {}
        turns = distinct_turns(played.trajectories)
        num_tokens = sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns)
        for each in self.measures:
            service = each.model if each.model in SERVICES else ""
            begun, before = time.perf_counter(), played.num_tokens(service) if service else 0
            columns |= (made := each.run(played, columns))
            if missing := [column for column in each.provides if column not in made]:
                raise ConfigError(f"the measure {each.name!r} did not return {missing[0]!r}, which it provides")
            metrics[f"{each.name}_s"] = time.perf_counter() - begun
            made_none = each.is_free or each.model in played.along
            model_tokens = played.num_tokens(service) - before if service else num_tokens
            metrics[f"{each.name}_tokens"] = 0.0 if made_none else float(model_tokens)
        batch = Batch(
            Segments.from_sorted_ids(np.array([trajectory.group for trajectory in played.trajectories])),
            played.turns_of_trajectories,
            columns["reward"],
            {name: column for name, column in columns.items() if name not in FROM_THE_BATCH},
            played.tokens if all(turn.response_ids for turn in turns) else None,  # those of a log are unknown
        )
        return batch, metrics


def plan_measures(
    needs: Mapping[str, Sequence[str]],
    *,
    scoring: str = "trainer",
    further: Iterable[str] = (),
    engine_reports: Iterable[str] = ("entropies",),
    models: Collection[str] = (),
) -> Plan:
    """Choose and order the measures that fill the needed columns. Measures without a model pass are always taken.

    Args:
        needs: Columns by what needs them, such as `{"method 'gae'": ("value",)}`; errors name the owner.
        scoring: Value of `update.scoring`, "trainer" or "engine": source of the log-probabilities.
        further: Names of extra measures, or `module:measure`.
        engine_reports: What the engine reports in addition to log-probabilities.
        models: Which of the `OPTIONAL` models the run has.

    Raises:
        ConfigError: A measure is unknown, no measure provides a column, or the engine does not report what one needs.
    """
    lacking = OPTIONAL.keys() - set(models)
    chosen = {name: each for name, each in MEASURES.items() if name != INSTEAD[scoring] and each.model not in lacking}
    asked = [named_measure(name) for name in further]
    if absent := [each for each in asked if each.model in lacking]:
        raise no_model(absent[0].name, absent[0].model)
    chosen |= {each.name: each for each in asked}
    provider = {column: each for each in chosen.values() for column in each.provides}
    ordered: dict[str, Measure] = {}

    def add(each: Measure, path: tuple[str, ...] = ()) -> None:
        if each.name in path:
            raise ConfigError(
                f"the measures {' > '.join((*path, each.name))} need each other's columns; remove one of these needs"
            )
        if each.name in ordered:
            return
        if each.engine and each.engine not in engine_reports:
            raise ConfigError(
                f"measure {each.name!r} needs an engine that reports {each.engine}, which the recipe's "
                "does not: add update.scoring=trainer, or set engine.name=local"
            )
        for column in each.needs:
            if column in provider:
                add(provider[column], (*path, each.name))
            elif column not in FROM_THE_BATCH:
                raise nobody_fills(f"measure {each.name!r}", column, provider, MEASURES)
        ordered[each.name] = each

    for who, columns in needs.items():
        for column in columns:
            if column in provider:
                add(provider[column])
            elif column not in FROM_THE_BATCH:
                raise nobody_fills(who, column, provider, MEASURES)
    for each in asked:
        add(each)
    for each in chosen.values():  # measures from these columns are cheap, and records keep them
        if each.is_free and not each.reads and all(_at_hand(column, provider, ordered) for column in each.needs):
            add(each)
    refuse_doubles(ordered.values())
    # the scoring pass comes first: probes build on what it computed
    return Plan(tuple(sorted(ordered.values(), key=lambda each: each.model != "policy" or bool(each.needs))))


def _at_hand(column: str, provider: Mapping[str, Measure], ordered: Mapping[str, Measure]) -> bool:
    each = provider.get(column)
    return each is not None and (
        each.name in ordered or (each.is_free and all(_at_hand(c, provider, ordered) for c in each.needs))
    )


def recorded_columns(measures: Iterable[Measure]) -> tuple[str, ...]:
    """Return columns per response that the record of a step keeps."""
    kept = (each for each in measures if each.level == "response" and each.recorded)
    return tuple(dict.fromkeys(column for each in kept for column in each.provides))
