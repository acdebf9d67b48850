"""Choose the test files that may depend on what a machine has, from their text: no list of them can go stale."""

import re
from pathlib import Path

from tests.needs import PACKAGES, PROGRAMS, VARIABLES

TESTS = Path(__file__).parents[1]
ASIDE = (TESTS / "bare", TESTS / "needs.py", TESTS / "conftest.py")
"""What lists the names, and so depends on none of them."""
PROGRAM, VARIABLE, PACKAGE = ("|".join(map(re.escape, names)) for names in (PROGRAMS, VARIABLES, PACKAGES))
DEPENDS = re.compile(
    r"\b(?:skip|importorskip|find_spec|which|needs|missing|skip_without)\("
    rf"""|\[["'](?:{PROGRAM})["']|environ(?:\.get\(|\[)["'](?:{VARIABLE})["']"""
    rf"|^\s*(?:import|from) (?:{PACKAGE})\b",
    re.MULTILINE,
)
"""Asks what is there, or takes it to be there."""
IMPORTED = re.compile(r"^\s*(?:from|import) (tests(?:\.\w+)*)(?: import \(?([\w\s,]+))?", re.MULTILINE)


def chosen_files() -> list[Path]:
    """List the files that may skip a test: by their own text, that of a helper, or of a `conftest.py` above them."""
    texts = {path: path.read_text() for path in sorted(TESTS.rglob("*.py")) if not is_aside(path)}
    found = {path for path, text in texts.items() if DEPENDS.search(text)}
    uses = {path: helpers(path, text) for path, text in texts.items()}
    while more := {path for path in texts.keys() - found if uses[path] & found}:
        found |= more
    return [path for path in texts if path in found and path.name.startswith("test_")]


def is_aside(path: Path) -> bool:
    return any(path == place or place in path.parents for place in ASIDE)


def helpers(path: Path, text: str) -> set[Path]:
    """List the files of the tests that a file imports, and those whose fixtures it can ask for."""
    found = {folder / "conftest.py" for folder in path.parents if folder == TESTS or TESTS in folder.parents}
    for module, names in IMPORTED.findall(text):
        place = TESTS.parent / module.replace(".", "/")
        found |= {place.with_suffix(".py"), *(place / f"{name.strip()}.py" for name in names.split(","))}
    return found - {path}
