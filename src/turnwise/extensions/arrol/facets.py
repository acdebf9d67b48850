"""Declare what the collector breaks and needs. This file does not import torch, so that recipes are checked fast."""

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.base.facets import Facet, Part
from turnwise.rollout.facets import groups_part


def parts(setting: str, options: Mapping[str, Any]) -> Iterator[Part]:
    """Return the parts that the collector adds to a recipe; see `turnwise.base.facets`."""
    needs = {
        Facet.ROOM: "lets trajectories wait for each other",
        Facet.FREE: "lets trajectories wait for each other",
        Facet.TURNS: "cuts responses off",
    }
    yield groups_part(setting, {Facet.SEPARATE: "prunes trajectories by what others of the group do"}, needs)
