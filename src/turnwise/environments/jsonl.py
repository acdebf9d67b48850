"""Read JSON Lines files, one object per line."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import DataError


def read_objects(path: Path, keys: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read JSON Lines; a file name that ends in .gz is compressed.

    Args:
        path: The file.
        keys: Keys that every object must have.

    Yields:
        Line number, from 1, and object; empty lines are skipped.

    Raises:
        DataError: The file cannot be read, or a line is not an object with these keys.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, written in enumerate(file, start=1):
                if not written.strip():
                    continue
                try:
                    line = json.loads(written)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: not valid JSON ({str(error).split(':')[0]}).") from None
                if not isinstance(line, dict) or not set(keys) <= set(line):
                    expected = f"an object with {', '.join(keys)}" if keys else "an object"
                    raise DataError(f"{path}, line {number}: expected {expected}, got {written.strip()[:80]!r}.")
                yield number, line
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as JSON Lines ({error}).") from error
