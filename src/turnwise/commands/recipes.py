"""Define `turnwise recipes`."""

import argparse
import sys
from typing import Any

from turnwise.config.recipes import FOLDER, describe_recipe, shipped_recipes
from turnwise.errors import ConfigError, did_you_mean
from turnwise.tables import Table, as_text


def add(commands: Any) -> None:
    """Add the command."""
    recipes = commands.add_parser("recipes", help="list the recipes that come with turnwise, or print one")
    recipes.add_argument("name", nargs="?", metavar="RECIPE", help="print this one's file, to copy and change")
    recipes.set_defaults(run=_recipes)


def _recipes(options: argparse.Namespace) -> int:
    if options.name is not None:
        files = {path.name: path for path in sorted((FOLDER / "verl").iterdir())} | shipped_recipes()
        if options.name not in files:
            raise ConfigError(f"unknown recipe {options.name!r}.{did_you_mean(options.name, files)}")
        print(files[options.name].read_text(encoding="utf-8"), end="")
        return 0
    made = [describe_recipe(path) for path in shipped_recipes().values()]
    rows = [(one.name, one.about, f"turnwise[{one.extras}]", one.data, one.time) for one in made]
    _show([("recipe", "what it trains", "install", "data", "time"), *rows])
    return 0


def _show(table: Table) -> None:
    """Print a table: by rich on a terminal, in plain lines elsewhere, or where rich is not installed."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table as RichTable
            from rich.text import Text
        except ModuleNotFoundError:
            pass
        else:
            head, *body = table
            shown = RichTable(*head, caption="turnwise train RECIPE", caption_justify="left")
            shown.columns[0].no_wrap = True
            for row in body:
                shown.add_row(*map(Text, row))  # as text: rich would read [train] as markup
            Console().print(shown)
            return
    print(as_text(table))
