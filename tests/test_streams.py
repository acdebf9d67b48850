"""Random streams of a seed: each has one number and one user, and nobody draws without one."""

import ast
from collections import defaultdict
from pathlib import Path

import turnwise
from turnwise.base.streams import Stream

SOURCE = Path(turnwise.__file__).parent
TASK_SEEDS = {"environments", "worlds"}
"""Folders whose seeds are those of tasks, not of a run."""
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


def shifted(tree: ast.AST) -> list[str]:
    """Arguments of generators that calculate with a seed: seed + 1 of a run is the seed of another."""
    return [
        ast.unparse(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("default_rng", "manual_seed")
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]
        for part in ast.walk(argument)
        if isinstance(part, ast.BinOp) and any(ast.unparse(s).endswith("seed") for s in (part.left, part.right))
    ]


def own_numbers(tree: ast.AST) -> list[str]:
    return [entry for entry in seeded(tree) if is_number_of_its_own(entry)] + shifted(tree)


def users() -> dict[str, set[str]]:
    """Files that use each stream."""
    result = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Stream" in text else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Stream":
                result[node.attr].add(file.relative_to(SOURCE).as_posix())
    return result


def test_numbers_are_distinct_and_those_of_earlier_runs():
    removed = {21}  # drawn by a collector that is gone; a new stream that took it would repeat the draws of old runs
    assert [stream.value for stream in Stream] == sorted({*range(1, len(Stream) + len(removed) + 1)} - removed)
    assert (Stream.MINI_BATCHES, Stream.EPOCHS, Stream.TOKEN_RULES) == (3, 4, 6), "runs with a seed would change"


def test_each_stream_has_one_user():
    used = users()
    assert set(used) == {stream.name for stream in Stream}
    assert not {name: files for name, files in used.items() if len(files) > 1}


def test_nobody_draws_with_a_number_of_its_own():
    found = {
        file.relative_to(SOURCE).as_posix(): entries
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] not in TASK_SEEDS and "seed" in (text := file.read_text(encoding="utf-8"))
        if (entries := own_numbers(ast.parse(text)))
    }
    assert not found, "take a number from turnwise.base.streams"


def test_numbers_of_their_own_are_found():
    written = "rng([self._seed, 8, step]); rng((seed, DRAWS)); rng([seed, Stream.REPLAY]); rng([seed, zlib.crc32(x)])"
    assert own_numbers(ast.parse(written)) == ["8", "DRAWS"]
    written = "np.random.default_rng(self._seed + 1); manual_seed(seed=9 * how.seed); manual_seed(seed); f(seed + 1)"
    assert own_numbers(ast.parse(written)) == ["self._seed + 1", "9 * how.seed"]
