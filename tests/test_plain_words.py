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
TRANSLATED = {
    r"as are the\b": "end the list with 'and the ...'",
    r"[Ii]n vain\b": "without success, or say what happens",
    r"and its like\b": "and similar ones",
    r"told as such|told from\b": "reported as, distinguished from",
    r" dear(?:er|est)?\b": "expensive",
    r"[Aa] lone\b": "a single",
    r"run's folder|[Dd]ata base\b": "run folder, database",
    r"for ever\b|at one time\b|half of the time\b": "indefinitely, at a time, half the time",
    r"the present (?:weights|policy|step|limit|ones)\b": "the current",
    r"as one (?:likes|pleases)|one's own\b|of yours\b| an own\b": "as you like, your own, its own",
    r"otherwise than\b": "differently from",
    r"likelier\b|nearer to\b": "more likely, closer to",
    r"[a-z] weighs\b": "weights, is worth",
    r"[a-z] anew\b": "again",
    r"[Dd]ifferences?(?: of [a-z -]+)? to (?:GRPO|grpo|the base)": "difference from",
    r"[Oo]ne after the other\b": "in turn, one at a time",
    r"that which\b": "what",
    r"plays? on from\b|go(?:es)? on in the next\b": "continue from, continue in the next",
    r"(?:process|engine|model|file|session|folder|server|loop) of (?:its|their) own\b": "its own, a separate",
    r"[Ll]ongest time\b": "time limit",
    r'"Take in\b': "accept, note, record",
    r"whole of (?:it|the)\b": "all of it, the entire",
    r" beside (?:the|a|its|it|this)\b": "next to, alongside, besides",
}
"""Phrases of another language in English words, as above: kept out of what users read."""
USERS = re.compile(r"^(?:README|src/|examples/|docs/(?!decisions/|results/|leaderboard|log)).*\.(?:py|md)$")
"""Files with the texts of the package: docstrings, help, messages and pages. Decisions and results are records."""
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


def phrases(instead: dict[str, str], paths: list[Path]) -> str:
    """Every place with a phrase, and what to write; a line each."""
    found = []
    for path in paths:
        text = path.read_text()
        for pattern, better in instead.items():
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write {better!r}")
    return "\n".join(found)


def test_the_worst_phrases_stay_out():
    found = phrases(INSTEAD, tracked())
    assert not found, found


def test_users_read_no_translated_phrases():
    read = [path for path in tracked() if USERS.search(path.relative_to(ROOT).as_posix())]
    assert len(read) > 500, "most of the package's files"
    found = phrases(TRANSLATED, read)
    assert not found, found


@pytest.mark.parametrize(
    "text",
    [
        "the fields up to here, as are the others",
        "it waits in vain",
        "cannot be told from zero",
        "makes a turn dear",
        "a lone response",
        "remove the run's folder",
        "with the present weights",
        "a block of one's own",
        "a function of yours",
        "answers otherwise than before",
        "a second is likelier",
        "the loss weighs it",
        "drawn anew",
        "differences of success to GRPO",
        "plays on from the turn",
        "in a process of its own",
        "kept beside the state",
    ],
)
def test_the_patterns_find_translated_phrases(text):
    assert any(re.search(pattern, text) for pattern in TRANSLATED)


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


def test_no_public_class_has_the_name_of_another_one():
    places: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"^ *class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
            places.setdefault(name, set()).add(path.name)
    assert len(places) > 200
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice, "a reader who finds one of them takes it for the other"
