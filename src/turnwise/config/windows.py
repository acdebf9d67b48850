"""Check that a recipe can learn from half-played trajectories."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnwise.batch import Batch
from turnwise.columns import COLUMNS
from turnwise.segments import Segments
from turnwise.transform import Transform

WHOLE = ("store", "demonstrations", "continuations")
"""Sections that need whole trajectories."""
NAME = "rollout.step_budget.learn='played'"


def check_played(transform: Transform, label: str, sections: Mapping[str, Any]) -> None:
    """Raise a ValueError if steps cannot learn from half-played trajectories.

    Args:
        transform: Method of the recipe.
        label: Its name.
        sections: Sections of the recipe by name, None for those that it does not have.
    """
    if section := next((name for name in WHOLE if sections[name] is not None), None):
        raise ValueError(f"{NAME} has no whole trajectories, which [{section}] needs; remove one of them")
    if (critic := sections["critic"]) is not None and critic.visits:
        raise ValueError(
            f"{NAME} learns from trajectories without their first turns, from which critic.visits counts; set "
            "critic.visits=false, or learn='complete'"
        )
    if sections["update"].tokens or sections["update"].entropy:
        raise ValueError(
            f"{NAME} leaves out responses of which earlier steps have learned, and update.tokens and update.entropy "
            "compare all tokens of a step; remove them, or set learn='complete'"
        )
    if sections["update"].preference:
        raise ValueError(
            f"{NAME} has trajectories without their last rewards, which update.preference would compare with whole "
            "ones; remove it, or set learn='complete'"
        )
    if not values_unfinished(transform):
        raise ValueError(
            f"{NAME} learns before trajectories have their rewards, and method {label!r} does not value those that go "
            "on without them; use egae, or gae with unfinished='repeat', or learn='complete'"
        )


def values_unfinished(transform: Transform) -> bool:
    """Return whether a method values a trajectory that goes on by a critic, whatever others of its group get."""
    if "finished" not in transform.needs or not {"value", "value_T"} & set(transform.needs):
        return False
    lost, won = (transform.trace(_example(transform, reward))[0].advantage_R for reward in (0.0, 1.0))
    return np.array_equal(lost[2:], won[2:])


def _example(transform: Transform, reward: float) -> Batch:
    """Make two trajectories of two responses, the first with a reward, the second unfinished."""
    ended = [0.0, reward, 0.0, 0.0]
    kinds = {name: COLUMNS[name].kind if name in COLUMNS else "value" for name in transform.needs}
    columns: dict[str, Any] = {name: [0.5] * 4 if kind == "value" else ["a"] * 4 for name, kind in kinds.items()}
    columns |= {"finished": [1.0, 1.0, 0.0, 0.0], "value": [0.25, 0.5, 0.75, 0.5], "success": [reward] * 2 + [0.0] * 2}
    return Batch(Segments([0, 2]), Segments([0, 2, 4]), ended, columns, Segments([0, 1, 2, 3, 4]))
