"""`turnwise methods`."""

import argparse
from typing import Any

from turnwise.commands.common import progress
from turnwise.errors import ConfigError, did_you_mean
from turnwise.tables import Table, as_markdown, as_text


def add(commands: Any) -> None:
    """Add the command."""
    methods = commands.add_parser("methods", help="list the methods of credit assignment")
    what = methods.add_mutually_exclusive_group()
    what.add_argument("--bias", action="store_true", help="direction and noise of each one's gradient in small worlds")
    what.add_argument("--drift", action="store_true", help="what steps do to entropy, with AEM and without")
    methods.add_argument("--world", metavar="NAME", help="with --bias: this world only, in more detail")
    methods.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    methods.set_defaults(run=_methods)


def _methods(options: argparse.Namespace) -> int:
    if options.world is not None and not options.bias:
        raise ConfigError("--world belongs to --bias: turnwise methods --bias --world NAME")
    table = _bias(options.world) if options.bias else _drift() if options.drift else _list()
    print((as_markdown if options.markdown else as_text)(table))
    return 0


def _list() -> Table:
    from turnwise.methods import METHODS
    from turnwise.transform import card_of, trial

    table = [("name", "stage", "arXiv", "formula", "needs", "expected gradient")]
    for name, constructor in METHODS.items():
        card, method = card_of(constructor), trial(constructor)
        needs = [*method.needs, *(f"{option}=..." for option in card.trial)]
        paper = card.arxiv or "-"
        table.append((name, card.stage, paper, card.confidence, ", ".join(needs) or "-", str(method.gradient)))
    return table


def _bias(world: str | None) -> Table:
    from turnwise.analysis.bias import rows
    from turnwise.analysis.tables import in_one_world, summary
    from turnwise.analysis.worlds import WORLDS
    from turnwise.methods import METHODS

    if world is not None and world not in WORLDS:
        raise ConfigError(f"unknown world {world!r}.{did_you_mean(world, WORLDS)}")
    measured = progress(rows(only=world), len(METHODS), "methods measured")
    return in_one_world(measured) if world else summary(measured)


def _drift() -> Table:
    from turnwise.analysis.drift import measure_drift
    from turnwise.analysis.tables import drifts

    return drifts(measure_drift())
