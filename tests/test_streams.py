"""Random streams of a seed: each has one number and one user, and nobody draws without one."""

import ast
from collections import defaultdict
from pathlib import Path

import turnwise
from turnwise.streams import Stream

SOURCE = Path(turnwise.__file__).parent
TASK_SEEDS = "environments"
"""Folder whose seeds are those of tasks, not of a run."""
CRC = "zlib.crc32("
"""Begins a number that follows from the data, which is no stream's."""


def seeded(tree: ast.AST) -> list[str]:
    """The second entry of each list or tuple that begins with a seed."""
    return [
        ast.unparse(node.elts[1])
        for node in ast.walk(tree)
        if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1
        if ast.unparse(node.elts[0]).split(".")[-1].lstrip("_") == "seed"
    ]


def is_number_of_its_own(entry: str) -> bool:
    """Whether an entry is a number or a constant that is not in the table."""
    return not entry.startswith(("Stream.", CRC)) and (entry.isdecimal() or entry.split(".")[-1].isupper())


def users() -> dict[str, set[str]]:
    """Files that use each stream."""
    result = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Stream":
                result[node.attr].add(file.relative_to(SOURCE).as_posix())
    return result


def test_numbers_are_distinct_and_those_of_earlier_runs():
    assert [stream.value for stream in Stream] == list(range(1, len(Stream) + 1))
    assert (Stream.MINI_BATCHES, Stream.EPOCHS, Stream.TOKEN_RULES) == (3, 4, 6), "runs with a seed would change"


def test_each_stream_has_one_user():
    used = users()
    assert set(used) == {stream.name for stream in Stream}
    assert not {name: files for name, files in used.items() if len(files) > 1}


def test_nobody_draws_with_a_number_of_its_own():
    found = {
        file.relative_to(SOURCE).as_posix(): entries
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] != TASK_SEEDS
        if (
            entries := [
                each for each in seeded(ast.parse(file.read_text(encoding="utf-8"))) if is_number_of_its_own(each)
            ]
        )
    }
    assert not found, "take a number from turnwise.streams"


def test_numbers_of_their_own_are_found():
    written = "rng([self._seed, 8, step]); rng((seed, DRAWS)); rng([seed, Stream.REPLAY]); rng([seed, zlib.crc32(x)])"
    assert [each for each in seeded(ast.parse(written)) if is_number_of_its_own(each)] == ["8", "DRAWS"]
