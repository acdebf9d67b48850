"""Declare what the collector breaks and needs. This file does not import torch, so that recipes are checked fast."""

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.base.facets import Facet, Part
from turnwise.rollout.facets import groups_part


def parts(setting: str, options: Mapping[str, Any]) -> Iterator[Part]:
    """Return the parts that the collector adds to a recipe; see `turnwise.base.facets`."""
    yield groups_part(setting, {}, {Facet.TURNS: "cuts responses off"})
