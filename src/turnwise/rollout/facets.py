"""Declare what each collector breaks and needs; `turnwise.rollout.collectors` has the collectors themselves.

This file does not import torch, so that recipes are checked fast.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turnwise.base.facets import Facet, Part

Options = Mapping[str, Any]
ENTROPIES = ("arpo", "rose")
"""Branching rules that read the entropies of sampled tokens."""
REMEMBERS = ("v05",)
"""Branching rules that read the history of a task."""


def collector_parts(name: str, options: Options) -> Iterator[Part]:
    """Return the parts that a collector adds to a recipe."""
    yield from COLLECTORS.get(name, _nothing)(f"rollout.collector={name!r}", options)


def _nothing(setting: str, options: Options) -> Iterator[Part]:
    yield from ()


def _branching(setting: str, options: Options) -> Iterator[Part]:
    yield _groups(setting, {Facet.SEPARATE: "lets trajectories fork from each other"})
    rule = options.get("rule")
    if rule in ENTROPIES:
        reads = {Facet.ENGINE: "needs the entropies of sampled tokens"}
        yield Part(f"rollout.collector.rule={rule!r}", needs=reads, mend="set rollout.collector.rule=tree_grpo")


def _arrol(setting: str, options: Options) -> Iterator[Part]:
    needs = {
        Facet.ROOM: "lets trajectories wait for each other",
        Facet.FREE: "lets trajectories wait for each other",
        Facet.TURNS: "cuts responses off",
    }
    yield _groups(setting, {Facet.SEPARATE: "prunes trajectories by what others of the group do"}, needs)


def _v0(setting: str, options: Options) -> Iterator[Part]:
    yield _groups(setting, {}, {Facet.TURNS: "reads the first observations of tasks"})


def _self_play(setting: str, options: Options) -> Iterator[Part]:
    breaks = {
        Facet.SEPARATE: "seats several trajectories at a match",
        Facet.SINGLE: "seats several trajectories at a match",
        Facet.REPLAY: "lets other seats answer",
    }
    needs = {
        Facet.ROOM: "lets players wait for each other",
        Facet.FREE: "lets players wait for each other",
        Facet.TURNS: "has environments with seats",
    }
    yield _groups(setting, breaks, needs)
    if past := options.get("past"):
        yield Part(
            f"rollout.collector.past={past}",
            {Facet.ENGINE: "plays with an engine of its own for earlier weights"},
            {
                Facet.OUTCOMES: "copies weights, which must not change meanwhile",
                Facet.ENGINE: "plays with earlier weights",
            },
        )


def _groups(setting: str, breaks: Mapping[Facet, str], needs: Mapping[Facet, str] | None = None) -> Part:
    """Return the part of a collector that plays groups in its own way."""
    return Part(setting, breaks, {Facet.COLLECTED: "plays the groups in its own way"} | dict(needs or {}))


COLLECTORS: dict[str, Callable[[str, Options], Iterator[Part]]] = {
    "independent": _nothing,
    "branching": _branching,
    "arrol": _arrol,
    "v0": _v0,
    "self_play": _self_play,
}
"""The parts of each collector, from its setting and its options."""
