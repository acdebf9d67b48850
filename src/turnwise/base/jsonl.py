"""Read JSON Lines files, one object per line."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from turnwise.base.errors import DataError

UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""Errors of reading a file that is missing, damaged, truncated, or not text."""


MOST_UNPACKED = 2**30
"""Largest unpacked size of a compressed file (bytes)."""
MOST_VALUES = 2**24
"""Maximum of brackets, braces and commas in a JSON text: each value has one, and takes up to 200 bytes once read."""
GZIP = b"\x1f\x8b"
"""First bytes of compressed files."""
MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Encodings by the mark that files in them begin with."""
ZEROS = {"1010": "UTF-16LE", "0101": "UTF-16BE", "1000": "UTF-32LE", "0001": "UTF-32BE"}
"""Encodings without a mark, by which of the first bytes of a JSON text are not zero (1)."""
OTHERS = {
    b"PK\x03\x04": ("a ZIP archive", "unpack it, or name it .eval if Inspect wrote it"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "unpack it with zstd -d"),
    b"PAR1": ("a Parquet file", "write its rows as JSON Lines"),
    GZIP: ("compressed twice", "unpack it with gunzip"),
}
"""What a file is that begins with other bytes than JSON, and what to do with it."""


class _Bounded(gzip.GzipFile):
    """Refuses to unpack a small file that would exhaust memory."""

    def read1(self, size: int = -1) -> bytes:
        self._check()
        return super().read1(size)

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(MOST_UNPACKED + 1 if size is None or size < 0 else size)
        self._check()
        return data

    def _check(self) -> None:
        if self.tell() > MOST_UNPACKED:
            raise DataError(f"{self.name} unpacks to more than {MOST_UNPACKED >> 20} MiB; unpack it with gunzip first")


def open_text(path: Path, errors: str = "strict") -> IO[str]:
    """Open a file to read; it may be compressed with gzip, and a byte order mark is skipped.

    Args:
        path: The file.
        errors: What to do with bytes that are not UTF-8, as for `open`.

    Raises:
        DataError: It is in another encoding, or an archive.
    """
    file = path.open("rb")
    try:
        if file.peek(2)[:2] == GZIP:
            file.close()
            file = _Bounded(path)
        _refuse_others(path, file.read(4))
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors=errors)


def _refuse_others(path: Path, begin: bytes) -> None:
    """Raise if a file that begins with such bytes is not JSON in UTF-8."""
    name = next((name for mark, name in MARKS.items() if begin.startswith(mark)), None)
    if name := name or ZEROS.get("".join("01"[byte > 0] for byte in begin)):
        raise DataError(f"{path} is in {name}, expected UTF-8; convert it with iconv -f {name} -t UTF-8")
    for start, (what, advice) in OTHERS.items():
        if begin.startswith(start):
            raise DataError(f"{path} is {what}, expected JSON in UTF-8; {advice}")


def lines_of(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        DataError: A line is longer than `MOST_UNPACKED` characters.
    """
    while line := file.readline(MOST_UNPACKED + 1):
        if len(line) > MOST_UNPACKED:
            raise DataError(f"{path} has a line of more than {MOST_UNPACKED >> 20} Mi characters; split it")
        yield line


def refuse_many_values(text: str | bytes, where: str) -> None:
    """Raise if a JSON text would exhaust memory: `[[],[],...` takes 28 times its length once read.

    Raises:
        DataError: It has too many values.
    """
    if len(text) <= MOST_VALUES:
        return
    count = sum(map(text.count, "[{,")) if isinstance(text, str) else sum(map(text.count, (b"[", b"{", b",")))
    if count > MOST_VALUES:
        raise DataError(f"{where} has more than {MOST_VALUES >> 20} Mi values; split it")


def check_unique(path: Path, what: str, key: str, names: Sequence[str]) -> None:
    """Raise unless a file has names, each once.

    Args:
        path: The file, for messages.
        what: What it holds, such as "tasks".
        key: What the file calls a name.
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
    """Read JSON Lines, which may be compressed with gzip.

    Yields:
        Line number, from 1, and object; empty lines are skipped.

    Raises:
        DataError: The file cannot be read, or a line is not an object with these keys.
    """
    try:
        with open_text(path) as file:
            for number, written in enumerate(lines_of(file, path), start=1):
                if not written.strip():
                    continue
                refuse_many_values(written, f"{path}, line {number},")
                try:
                    line = json.loads(written)
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path}, line {number}: not valid JSON ({str(error).split(':')[0]}).") from None
                if not isinstance(line, dict) or not set(keys) <= set(line):
                    expected = f"an object with {', '.join(keys)}" if keys else "an object"
                    raise DataError(f"{path}, line {number}: expected {expected}, got {written.strip()[:80]!r}.")
                yield number, line
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as JSON Lines ({error}).") from error
