"""Data files of an object a line."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import DataError


def read_objects(path: Path, keys: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read JSON Lines, compressed where the name ends in .gz.

    Args:
        path: The file.
        keys: What every object must have.

    Yields:
        Number of the line, from 1, and its object; empty lines are left out.

    Raises:
        DataError: The file cannot be read, or a line is no such object.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, written in enumerate(file, start=1):
                if not written.strip():
                    continue
                try:
                    line = json.loads(written)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: no JSON ({str(error).split(':')[0]}).") from None
                if not isinstance(line, dict) or not set(keys) <= set(line):
                    expected = f"an object with {', '.join(keys)}" if keys else "an object"
                    raise DataError(f"{path}, line {number}: expected {expected}, got {written.strip()[:80]!r}.")
                yield number, line
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as JSON Lines ({error}).") from error
