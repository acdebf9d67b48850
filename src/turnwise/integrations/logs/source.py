"""Read a log record by record: one bad record costs itself, is counted, and the first ones are named."""

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError
from turnwise.base.jsonl import UNREADABLE, lines_of, open_text, refuse_many_values
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.integrations.logs.logged import read_outcome

NAMED = 3
"""Records that are named, of those that are left out or give no reward."""


class Undecided(DataError):
    """The user has to choose; it is not the fault of a record."""


class Source:
    """A log, and what of it is not kept.

    Args:
        path: The file.
        reward: Name of the key, scorer or evaluation that gives the reward; None: the format's usual one.
        other: Names the format of a record that belongs to another format than the log.

    Attributes:
        left_out: What was wrong with each record that was left out.
        unrewarded: What was wrong with each reward that does not count.
        unsaid: Rewards of trajectories whose log does not say whether they succeeded.
        lacks: What of the messages is not kept, with its number.
        repeated: Number of trajectories that were there before.
    """

    def __init__(self, path: Path, reward: str | None = None, other: Callable[[Any], str | None] = lambda _: None):
        self.path, self.reward, self._other = path, reward, other
        self.left_out: list[str] = []
        self.unrewarded: list[str] = []
        self.unsaid: list[float] = []
        self.lacks: Counter[str] = Counter()
        self.repeated = 0

    def lack(self, what: str, number: int = 1) -> None:
        """Count what is not kept."""
        self.lacks[what] += number

    @contextlib.contextmanager
    def record(self, where: str) -> Iterator[None]:
        """Leave out the record that is read inside if it is wrong."""
        try:
            yield
        except Undecided:
            raise
        except DataError as error:
            self.left_out.append(str(error))
        except RecursionError:
            self.left_out.append(f"{where}: a value is nested too deeply")

    def outcome(self, reward: Any, success: Any, info: Any, where: str) -> Outcome | None:
        """Read how a trajectory ended; None if the log does not say it, or says what is no reward."""
        try:
            found = read_outcome(reward, success, info, where)
            if found and success is None:
                self.unsaid.append(found.reward)
            return found
        except DataError as error:
            self.unrewarded.append(str(error))
            return None

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield place and value of each record of a file in JSON: lines, a list, or one value.

        Raises:
            DataError: The file cannot be read.
        """
        values = self._values()
        for number, (where, value) in enumerate(values):
            if found := self._other(value):
                rest = 1 + sum(1 for _ in values)
                self.left_out += [f"{where}: the format changes to {found} here; none is read from here on"] * rest
                if not number:
                    raise DataError(f"{where}: it looks like {found}; choose it with --format {found}")
                return
            yield where, value

    def _values(self) -> Iterator[tuple[str, Any]]:
        lines = self._lines()
        for place, (number, line) in enumerate(lines):
            where = f"{self.path}, line {number}"
            value = self._loaded(line, where)
            if value is _BROKEN and not place and line.lstrip()[0] in "[{":
                rest = [*lines]  # perhaps one value over several lines
                text = "\n".join([line, *(each for _, each in rest)])
                whole = self._loaded(text, str(self.path))
                if whole is _BROKEN and text.lstrip()[0] == "[":
                    yield from self._cut_off(text)
                    return
                if whole is not _BROKEN:
                    yield from self._parts(whole, str(self.path))
                    return
                self.left_out.append(f"{where}: not valid JSON")
                for number, each in rest:
                    yield from self._parts(self._loaded(each, where := f"{self.path}, line {number}"), where)
                return
            yield from self._parts(value, where)

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of the file that are not blank, up to where it cannot be read."""
        number = 0
        try:
            with open_text(self.path, errors="surrogateescape") as file:
                for number, line in enumerate(lines_of(file, self.path), start=1):
                    if line.strip():
                        yield number, line
        except DataError:
            raise
        except UNREADABLE as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if not number:
                raise DataError(f"cannot read {self.path}: {why}") from None
            self.left_out.append(f"{self.path}, after line {number}: cannot be read ({why})")
        if not number:
            raise DataError(f"{self.path} is empty; expected one object per line")

    def _parts(self, value: Any, where: str) -> Iterator[tuple[str, Any]]:
        """Yield a value, or those of a list."""
        if value is _BROKEN:
            self.left_out.append(f"{where}: not valid JSON")
        elif isinstance(value, list):
            yield from ((f"{where}, [{number}]", each) for number, each in enumerate(value))
        else:
            yield where, value

    def _cut_off(self, text: str) -> Iterator[tuple[str, Any]]:
        """Yield the values of a list up to where it is not valid."""
        place = text.index("[") + 1
        for number in itertools.count():
            place = _NEXT.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess] (it may be empty)
            try:
                value, place = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError):
                self.left_out.append(f"{self.path}, [{number}]: not valid JSON; the list is not read from here on")
                return
            yield f"{self.path}, [{number}]", value

    @staticmethod
    def _loaded(text: str, where: str) -> Any:
        refuse_many_values(text, f"{where},")
        try:
            text.encode()
            return json.loads(text)
        except (ValueError, RecursionError):  # also what is not UTF-8
            return _BROKEN


_BROKEN = object()
_NEXT = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()
