"""Refuse conflicts that show only once the parts of a run are made."""

from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.base.facets import Facet
from turnwise.environments.base import Task
from turnwise.measures.plan import Plan
from turnwise.measures.verdict import refuse_idle
from turnwise.rollout.collectors import make_request
from turnwise.rollout.replays import refuse_varying
from turnwise.train.run import Run


def refuse_unfit(measures: Plan, optional: Iterable[str], roles: Sequence[str]) -> None:
    """Raise a ConfigError if a section has no effect, or a measure reads with one model but roles have their own."""
    refuse_idle(optional, measures)
    if probing := [each.name for each in measures.measures if roles and each.model == "probe"]:
        raise ConfigError(
            f"model.adapters: the measure {probing[0]!r} reads other texts with one model; remove it, or choose "
            "another method"
        )


def check_agent(run: Run, tasks: Sequence[Task]) -> None:
    """Raise a ConfigError if a part of a new run replays turns but the agent does not repeat."""
    needing = next((part for part in run.config.parts() if Facet.REPLAY in part.needs), None)
    if needing is not None and not run.step:
        how: Any = {"seed": run.config.run.seed, "on_turn": run.display.turn}
        request = make_request(run.models, run.environments, run.config.rollout, **how)
        refuse_varying(needing.setting, tasks, run.suite.task_name, request)
