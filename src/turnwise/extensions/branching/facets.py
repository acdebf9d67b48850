"""Declare what the collector breaks and needs. This file does not import torch, so that recipes are checked fast."""

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.base.facets import Facet, Part
from turnwise.rollout.facets import groups_part

ENTROPIES = ("arpo", "rose")
"""Rules that read the entropies of sampled tokens."""


def parts(setting: str, options: Mapping[str, Any]) -> Iterator[Part]:
    """Return the parts that the collector adds to a recipe; see `turnwise.base.facets`."""
    yield groups_part(setting, {}, {Facet.REPLAY: "forks trajectories at their turns"})
    rule = options.get("rule")
    if rule in ENTROPIES:
        reads = {Facet.ENGINE: "needs the entropies of sampled tokens"}
        yield Part(f"rollout.collector.rule={rule!r}", needs=reads, mend="set rollout.collector.rule=tree_grpo")
