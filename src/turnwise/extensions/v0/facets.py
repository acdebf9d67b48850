"""Declare what the collector breaks and needs. This file does not import torch, so that recipes are checked fast."""

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.base.facets import Facet, Part


def parts(setting: str, options: Mapping[str, Any]) -> Iterator[Part]:
    """Return the parts that the collector adds to a recipe; see `turnwise.base.facets`."""
    yield Part(setting, needs={Facet.COLLECTED: "plays the groups in its own way"})
