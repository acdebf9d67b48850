"""Find the recipes that come with the package, by name, and read recipes."""

import dataclasses
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parents[1] / "recipes"
"""Recipes in the package; `verl/` in it holds configurations of verl."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Describe a shipped recipe by the comments at the top of its file."""

    name: str  # name that commands accept
    about: str  # what is trained, in one sentence
    extras: str  # extras of turnwise to install, such as "train,webshop"
    data: str  # data and models to fetch first; "-" if none
    time: str  # how long the training takes


def shipped_recipes() -> dict[str, Path]:
    """Return the files of the shipped recipes by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def find_recipe(given: Path) -> Path:
    """Return the file of a recipe: `given` if it exists, else the shipped recipe of that name."""
    if given.is_file() or (given / "config.json").is_file():  # the second is a run, for which there is a better error
        return given
    return shipped_recipes().get(str(given), given)


def describe_recipe(path: Path) -> Recipe:
    """Read the comments at the top of a shipped recipe: what it trains, then `# KEY: VALUE` for what it needs."""
    about, *further = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8"))[0].splitlines()  # pyright: ignore
    fields = dict(re.findall(r"^# (extras|data|time): (.+)$", "\n".join(further), re.MULTILINE))
    return Recipe(path.stem, about.removeprefix("# "), fields["extras"], fields["data"], fields["time"])


def read_recipe(path: Path) -> dict[Path, dict[str, Any]]:
    """Read the file of a recipe, on top of the recipe that it `extends`.

    `extends = "household-tiny-aem"` names a file next to this one, or a packaged recipe. Tables are merged key by key;
    any other value replaces the extended recipe's.

    Returns:
        What each file adds to those that it extends; the file that extends none is first, `path` last.

    Raises:
        ConfigError: A file is missing or is not TOML, or recipes extend each other in a circle.
    """
    tables = {path: _table(path)}
    above = path
    while (extended := tables[above].pop("extends", None)) is not None:
        if not isinstance(extended, str):
            raise ConfigError(f"{above}: extends={extended!r}: expected a text, the name or the file of a recipe")
        beside = above.parent / extended
        base = beside if beside.is_file() else find_recipe(Path(extended))
        if base in tables:
            raise ConfigError(f"{above}: extends={extended!r} leads back to this recipe; remove one `extends`")
        try:
            tables[base] = _table(base)
        except ConfigError as error:
            raise ConfigError(f"{above}: {error}") from None
        above = base
    merged: dict[Path, dict[str, Any]] = {}
    data: dict[str, Any] = {}
    for file, table in reversed(tables.items()):
        merged[file] = data = _merged(data, table)
    return merged


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        if (path / "config.json").is_file():
            raise ConfigError(
                f"{path} is a run, not a recipe; resume it with `turnwise train --resume {shlex.quote(str(path))}`"
            ) from None
        near = did_you_mean(path.name, {each.name for each in path.parent.glob("*.toml")} | {*shipped_recipes()})
        near = near or " `turnwise recipes` lists those of the package"
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror or error}.{near}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(below[name], value)
        for name, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(name), dict)
    }
    return below | above | both
