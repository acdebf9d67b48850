"""A covering array: recipes of many features each, in which every pair that is allowed stands at least once.

python -m tests.combinations.covering        # write the array anew
"""

import json
from collections.abc import Iterable, Sequence

from tests.combinations.table import FEATURES, HERE, PAIRS, listed, refusal

FILE = HERE / "covering.json"


def allowed() -> set[frozenset[str]]:
    """All pairs that a recipe may have."""
    refused = listed()
    return {frozenset(pair) for pair in PAIRS if " + ".join(pair) not in refused}


def covered(features: Iterable[str]) -> set[frozenset[str]]:
    """The pairs that a recipe with these features tries."""
    features = [*features]
    return {frozenset((one, other)) for one in features for other in features if one != other}


def covering(most: int) -> list[list[str]]:
    """Recipes of at most `most` features that together have all allowed pairs, each step by step the greediest."""
    pairs = allowed()
    open_, rows = set(pairs), list[list[str]]()
    while open_:
        row = sorted(min(open_, key=sorted), key=list(FEATURES).index)
        while len(row) < most:
            fits = [
                name for name in FEATURES if name not in row and all(frozenset((name, other)) in pairs for other in row)
            ]
            gains = {name: sum(frozenset((name, other)) in open_ for other in row) for name in fits}
            best = sorted((name for name in fits if gains[name]), key=lambda name: -gains[name])
            found = next((name for name in best if not refusal(*_ordered([*row, name]))), None)
            if found is None:
                break
            row = _ordered([*row, found])
        open_ -= covered(row)
        rows.append(row)
    return rows


def array() -> list[list[str]]:
    """The array as it was written."""
    return json.loads(FILE.read_text())


def _ordered(features: Sequence[str]) -> list[str]:
    return sorted(features, key=list(FEATURES).index)


if __name__ == "__main__":
    rows = covering(most=8)
    FILE.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")
