"""Keep the tables of a study's page as CSV: comparisons.csv (arm against arm) and arms.csv (success of each arm).

python docs/tables_of_studies.py runs/STUDY/study.md docs/results/STUDY
"""

import csv
import re
import sys
from pathlib import Path

NAMES = {"A": "comparisons.csv", "arm": "arms.csv", "without AEM": "published.csv"}
"""First named column of a table, to the file that keeps it."""


def main(page: Path, folder: Path) -> None:
    """Write the tables of a page; where a page has a table per recipe, a first column names the recipe."""
    rows: dict[str, list[list[str]]] = {}
    for recipe, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, _, *body = map(_cells, table.splitlines())
            names = [name or ("method" if place == 0 else "result") for place, name in enumerate(head)]
            kept = rows.setdefault(NAMES[head[0] or head[1]], [["recipe", *names]])
            kept += [[recipe, *row] for row in body]
    for name, lines in rows.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
