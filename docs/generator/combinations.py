"""The page of combinations: which features of recipes go together, from a table and the facets of parts."""

import json
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator.text import wrap
from turnwise.base.facets import Conflict

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "combinations.md"
MADE = "<!-- Made by `python docs/generate.py` from `tests/combinations/features.toml` and the facets of the parts. -->"
INTRODUCTION = """
Each part of a recipe says which assumptions it breaks and which ones it needs
([why](../decisions/0052-facets.md)). Two features go together unless one breaks what the other needs. Of {pairs} pairs
of the {features} features below that share no setting, turnwise refuses {refused}, before a run and in one line that
names both settings and says what to change. The others are trained and resumed by the tests."""
LEGEND = """
A row and a column are two features. `.` works, `=` sets the same thing twice, and a letter is the assumption that one
of them breaks and the other one needs."""


def toml(value: Any) -> str:
    """A value as a recipe has it."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {toml(inner)}' for name, inner in value.items())} }}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def pages() -> dict[Path, str]:
    """The page."""
    sys.path.append(str(ROOT))
    from tests.combinations.table import FEATURES, PAIRS, conflict

    names = list(FEATURES)
    conflicts = {frozenset(pair): found for pair in PAIRS if (found := conflict(*pair))}
    pairs = {frozenset(pair) for pair in PAIRS}
    facets = dict.fromkeys(each.facet for each in conflicts.values())
    letters = dict(zip(facets, string.ascii_uppercase, strict=False))

    def cell(one: str, other: str) -> str:
        pair = frozenset((one, other))
        if one == other:
            return " "
        return letters[conflicts[pair].facet] if pair in conflicts else "." if pair in pairs else "="

    numbers = [str(number) for number in range(1, len(names) + 1)]
    grid = [
        " " * 23 + "".join(number[0] if len(number) > 1 else " " for number in numbers),
        " " * 23 + "".join(number[-1] for number in numbers),
        *(
            f"{numbers[row]:>2} {one:<20}{''.join(cell(one, other) for other in names)}"
            for row, one in enumerate(names)
        ),
    ]
    numbered = zip(numbers, FEATURES.items(), strict=True)
    features = [
        wrap(
            f"`{', '.join(f'{section} = {toml(value)}' for section, value in settings.items())}`",
            f"{number}. **{name}**: ",
            "   ",
        )
        for number, (name, settings) in numbered
    ]
    counts = {"pairs": len(PAIRS), "features": len(FEATURES), "refused": len(conflicts)}
    blocks = ["# Combinations", MADE, wrap(INTRODUCTION.format(**counts)), "## Every pair", wrap(LEGEND)]
    blocks += ["```text\n" + "\n".join(grid) + "\n```", "## Why not"]
    for facet, letter in letters.items():
        of_facet = [each for each in conflicts.values() if each.facet is facet]
        blocks += [f"### {letter}: {facet.value}", *map(wrap, sides(of_facet))]
    return {PAGE: "\n\n".join([*blocks, "## The features", "\n".join(features)]) + "\n"}


def sides(conflicts: list[Conflict]) -> list[str]:
    """Who breaks an assumption, and who needs it."""
    facet = conflicts[0].facet
    breaking = [(each.breaking.breaks[facet], each.breaking.setting) for each in conflicts]
    needing = [(each.needing.needs[facet], each.needing.setting) for each in conflicts]
    return [f"Broken by {by_reason(breaking)}.", f"Needed by {by_reason(needing)}."]


def by_reason(sides: list[tuple[str, str]]) -> str:
    """Join settings that have the same reason."""
    settings: dict[str, dict[str, None]] = {}
    for reason, setting in sides:
        settings.setdefault(reason, {})[f"`{setting}`"] = None
    return "; ".join(f"{', '.join(of)} ({reason})" for reason, of in settings.items())
