"""What people read: standard terms, no riddles, lines of at most 120 characters."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROSE = (".py", ".md", ".toml", ".js", ".css", ".html", ".sh", ".yaml", ".yml", ".txt", ".cff", ".ipynb", "")
"""Endings of files that people read. The empty one is that of `Makefile`, for example."""

INSTEAD = {
    r"\bone value a response|\ba row a (?:turn|response)|\bone row a response": "per response, per turn",
    r"\bis no (?:number|call|path|folder|run)\b": "is not a ...",
    r'(?:"""|: )Of both\b': "Seed shared by both",
    r"\bbeside the reward\b": "in addition to the reward",
    r"[Ww]hat is in the house": "What's included",
    r"\beats memory\b": "exhausts memory",
    r"\bgo on with a run\b": "resume a run",
    r"\bbad weather\b": "out-of-memory and non-finite gradients",
    r"\b[Gg]ive back what\b": "Release resources",
    r"\bcounts no more for that\b": "must lie in [0, 1]",
    r"\bmisspoken\b": "malformed",
    r"\bstumbles?\b": "noise action",
    r"\bspares the pass\b": "skips the scoring pass",
    r"\bshares? (?:its|their) luck\b": "are not independent",
    r"\blost to faults\b": "failed",
    r"\bMake room;": "Free disk space",
    r"\b[Ss]tart anew\b": "Start a new run",
    r"\bcut_frac\b|\bwhat_entropy_did\b": "truncated_frac, describe_entropy",
    r"\bhow hesitant\b": "how uncertain the policy was (mean token entropy)",
    r"\bWorldFault\b|(?<!text-)\bworlds\b": "environment",
}
"""Phrases that stop a reader, as patterns, with what to write."""
ALLOWED = re.compile(r"^\||https?://|^\s*//# source|^[a-z0-9-]+==")
"""Lines that may be longer: rows of tables and addresses."""


def tracked() -> list[Path]:
    """Text files of the repository that are our own prose or code."""
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
