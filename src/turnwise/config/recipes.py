"""Find the recipes that come with the package, by name."""

import dataclasses
import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "recipes"
"""Recipes in the package; `verl/` in it holds configurations of verl."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Describe a shipped recipe by the comments at the top of its file.

    Attributes:
        name: Name that commands accept.
        about: What is trained, in one sentence.
        extras: Extras of turnwise to install, such as "train,webshop".
        data: Data to fetch first; "-" if none.
        time: How long the training takes.
    """

    name: str
    about: str
    extras: str
    data: str
    time: str


def shipped_recipes() -> dict[str, Path]:
    """Return the files of the shipped recipes by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find_recipe(given: Path) -> Path:
    """Return the file of a recipe: `given` if it exists, else the shipped recipe of that name."""
    if given.is_file() or (given / "config.json").is_file():  # the second is a run, for which there is a better error
        return given
    return shipped_recipes().get(str(given), given)


def describe_recipe(path: Path) -> Recipe:
    """Read the comments at the top of a shipped recipe: what it trains, then `# KEY: VALUE` for what it needs."""
    about, *further = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8"))[0].splitlines()  # pyright: ignore
    told = dict(re.findall(r"^# (extras|data|time): (.+)$", "\n".join(further), re.MULTILINE))
    return Recipe(path.stem, about.removeprefix("# "), told["extras"], told["data"], told["time"])
