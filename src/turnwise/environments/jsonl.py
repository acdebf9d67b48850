"""Read JSON Lines files, one object per line."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from turnwise.errors import DataError

UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""What reading a file raises that is missing, damaged, cut off, or not text."""


def open_text(path: Path) -> IO[str]:
    """Open a file to read; a name that ends in .gz is compressed."""
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def check_unique(path: Path, what: str, key: str, names: Sequence[str]) -> None:
    """Raise unless a file has names, each once.

    Args:
        path: The file, for messages.
        what: What it holds, such as "tasks".
        key: What a name is called there.
        names: The names.

    Raises:
        DataError: There are none, or one occurs twice.
    """
    if not names:
        raise DataError(f"{path} holds no {what}.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{path}: {key} {name!r} occurs twice in the {what}; it must be unique.")
        seen.add(name)


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
        with open_text(path) as file:
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
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as JSON Lines ({error}).") from error
