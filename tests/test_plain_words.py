"""What people read: standard terms, no riddles, lines of at most 120 characters."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.needs import skip_without

ROOT = Path(__file__).parent.parent
PROSE = (".py", ".md", ".toml", ".js", ".css", ".html", ".sh", ".yaml", ".yml", ".txt", ".cff", ".ipynb", "")
"""Endings of files that people read. The empty one is that of `Makefile`, for example."""

INSTEAD = {
    r"one value a response|a row a (?:turn|response)|one row a response": "per response, per turn",
    r"is no (?:number|call|path|folder|run)\b": "is not a ...",
    r'(?:"""|: )Of both\b': "Seed shared by both",
    r"beside the reward\b": "in addition to the reward",
    r"[Ww]hat is in the house": "What's included",
    r"eats memory\b": "exhausts memory",
    r"go on with a run\b": "resume a run",
    r"bad weather\b": "out-of-memory and non-finite gradients",
    r"[Gg]ive back what\b": "Release resources",
    r"counts no more for that\b": "must lie in [0, 1]",
    r"misspoken\b": "malformed",
    r"stumbles?\b": "noise action",
    r"spares the pass\b": "skips the scoring pass",
    r"shares? (?:its|their) luck\b": "are not independent",
    r"lost to faults\b": "failed",
    r"Make room;": "Free disk space",
    r"[Ss]tart anew\b": "Start a new run",
    r"cut_frac\b|what_entropy_did\b": "truncated_frac, describe_entropy",
    r"how hesitant\b": "how uncertain the policy was (mean token entropy)",
    r"WorldFault\b|(?<![-./\"`])\bworlds\b(?!/)": "environment",
}
"""Phrases that stop a reader, as patterns, with what to write. A `\\b` at the start would slow the search tenfold."""
ALLOWED = re.compile(r"^\||https?://|^\s*//# source|^[a-z0-9-]+==")
"""Lines that may be longer: rows of tables and addresses."""


def tracked() -> list[Path]:
    """Text files of the repository that are our own prose or code."""
    skip_without("git")
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    paths = [ROOT / name for name in names if name and not re.search(r"/vendor/|/templates/|^LICENSE$", name)]
    if not paths:
        pytest.skip("not a git checkout: the files that are ours are unknown")
    return [path for path in paths if path.suffix in PROSE and path.is_file() and path != Path(__file__)]


def test_the_worst_phrases_stay_out():
    found = []
    for path in tracked():
        text = path.read_text()
        for pattern, better in INSTEAD.items():
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write {better!r}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["One score: one value a response", "'x' is no number", "seed: Of both.", "a list of worlds", "it stumbles"]
)
def test_the_patterns_find_what_they_are_for(text):
    assert any(re.search(pattern, text) for pattern in INSTEAD)


def test_lines_have_at_most_120_characters():
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path.suffix != ".ipynb"
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if len(line) > 120 and not ALLOWED.search(line)
    ]
    assert not long, "\n".join(long)
