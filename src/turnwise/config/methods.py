"""Derive what methods and measures break and need from what they declare."""

from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.facets import Facet, Part
from turnwise.base.imports import import_named
from turnwise.credit.batch import Batch
from turnwise.credit.columns import COLUMNS, Column
from turnwise.credit.segments import Segments
from turnwise.credit.transform import Transform
from turnwise.credit.transforms.grouping import VariedCredit
from turnwise.measures import MEASURES
from turnwise.measures.base import Measure
from turnwise.objective.settings import RuleConfig


def method_parts(transform: Transform, label: str, scoring: str) -> Iterator[Part]:
    """Return the parts that a method adds to a recipe; see `turnwise.base.facets`.

    Args:
        transform: Method of the recipe.
        label: Its name.
        scoring: Value of `update.scoring`.
    """
    setting = f"method {label!r}"
    if not values_unfinished(transform):
        whole = {Facet.WHOLE: "does not value trajectories that continue without their rewards"}
        yield Part(setting, needs=whole, mend="use egae, or gae with unfinished='repeat'")
    if any(name.endswith("_T") for name in transform.needs):
        yield Part(setting, needs={Facet.UPDATE: "gives each token its own advantage"}, mend="choose another method")
    if _needs_entropies(transform.needs):
        yield Part(setting, needs={Facet.ENTROPY: "reads them"}, mend="choose another method")
    if "info_gain" in transform.needs and scoring == "engine":
        compares = {Facet.WEIGHTS: "compares probabilities of the same weights with and without an observation"}
        yield Part(f"{setting} with update.scoring='engine'", needs=compares, mend="set update.scoring=trainer")


def _needs_entropies(columns: Iterable[str]) -> bool:
    """Return whether columns, or those that their measures read, are entropies."""
    found, waiting = set[str](), list(columns)
    while waiting:
        if (column := waiting.pop()) not in found:
            found.add(column)
            if column != "logprob":  # comes with the mean entropy, and reads none
                waiting += [name for each in MEASURES.values() if column in each.provides for name in each.needs]
    return "entropy_T" in found


def measure_parts(measures: Iterable[Measure]) -> Iterator[Part]:
    """Return the parts that measures add to a recipe; see `turnwise.base.facets`."""
    for each in measures:
        for key in each.reads:
            needs = {Facet.ANSWERS: f"reads info[{key!r}] of an environment"}
            yield Part(f"the measure {each.name!r}", needs=needs, mend="choose another method or measure")
        if each.model in ("probe", "critic", "plan"):
            needs = {Facet.HERE: "reads their hidden states, or the probabilities of other texts"}
            yield Part(f"the measure {each.name!r}", needs=needs, mend="choose another method or measure")


def term_parts(terms: Iterable[RuleConfig]) -> Iterator[Part]:
    """Return what the loss terms that a recipe names need; see `turnwise.base.facets`. Their modules import torch."""
    for each in terms:
        if ":" in each.name and getattr(import_named(each.name), "whole", False):
            needs = {Facet.WHOLE: "compares the rewards of whole trajectories"}
            yield Part(f"update.terms {each.name!r}", needs=needs)


def values_unfinished(transform: Transform) -> bool:
    """Return whether a method values an unfinished trajectory by a critic, whatever the rest of its group gets."""
    if "finished" not in transform.needs or not {"value", "value_T"} & set(transform.needs):
        return False
    lost, won = (transform.trace(_example(transform, reward))[0].advantage_R for reward in (0.0, 1.0))
    return np.array_equal(lost[2:], won[2:])


def refuse_varied(transform: Transform, label: str, options: Container[str]) -> None:
    """Try a method on two short trajectories, before a run learns from its first rollout that its parts do not fit.

    Args:
        transform: Method of the recipe.
        label: Its name.
        options: Names of its options.

    Raises:
        ConfigError: It compares one value per trajectory of credit that varies within trajectories.
    """
    try:
        with np.errstate(all="ignore"):
            transform.trace(_example(transform, 1.0))
    except VariedCredit as error:
        over = "set method.over='responses', " if "over" in options else ""
        raise ConfigError(
            f"method {label!r} gives the turns of a trajectory different credit, and {str(error).split()[0]} in it "
            f"compares one value per trajectory; {over}choose a base that gives them the same, such as grpo, or set "
            "environment.max_steps=1 if tasks have one turn"
        ) from None
    except Exception:  # the values are made up, and a user's method may expect others
        return


def _example(transform: Transform, reward: float) -> Batch:
    """Make two trajectories of two responses, the first with a reward, the second unfinished."""
    ended = [0.0, reward, 0.0, 0.0]
    known = {name: COLUMNS.get(name, Column("value", "the user's")) for name in transform.needs}
    columns: dict[str, Any] = {
        name: max(0.5, each.least) + np.array([0.1, 0.3, 0.0, 0.2]) if each.kind == "value" else ["a"] * 4
        for name, each in known.items()
    }
    columns |= {"state_key": [*"abac"], "finished": [1.0, 1.0, 0.0, 0.0], "value": [0.25, 0.5, 0.75, 0.5]}
    columns |= {"success": [reward] * 2 + [0.0] * 2}
    return Batch(Segments([0, 2]), Segments([0, 2, 4]), ended, columns, Segments([0, 1, 2, 3, 4]))
