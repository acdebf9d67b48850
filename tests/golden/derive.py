"""Derive the golden numbers without turnwise, with exact fractions, `math` and plain loops. Writes *.json here.

    python -m tests.golden.derive

Each `derive_*.py` beside this file has a `TABLES` of functions that return cases (see `exact.case`), by method. A
number that changes here changes what the library promises: say why in the commit.
"""

import importlib
import json
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = sorted(path.stem for path in HERE.glob("derive_*.py"))
TABLES = {
    name: cases
    for source in SOURCES
    for name, cases in importlib.import_module(f"tests.golden.{source}").TABLES.items()
}


def derive(name):
    """A table, as its file holds it."""
    return json.dumps(TABLES[name](), indent=1) + "\n"


if __name__ == "__main__":
    for name in TABLES:
        (HERE / f"{name}.json").write_text(derive(name))
