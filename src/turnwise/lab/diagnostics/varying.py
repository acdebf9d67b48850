"""Name what varies between two texts that should be equal: times, ids, an order, numbers, or other text."""

import re
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from turnwise.extensions.gateway.messages import Message

SHOWN = 48
"""Characters shown of a text that differs."""
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?"  # a date, and perhaps a time
    r"|\b\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?\b"
    r"|\b1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6}|\d{9})?\b"  # seconds since 1970, or parts of them
    r"|\b\d+(?:\.\d+)?(?:e-?\d+)?\s*(?:s|ms|us|ns|\u00b5s|sec|secs|seconds?|minutes?)\b"  # how long something took
)
WORD = re.compile(r"[\w./:-]+")
PIECE = re.compile(r"\w+|[^\w\s]")

KINDS = {
    "time": "times or durations",
    "id": "random ids, paths or addresses",
    "order": "an order",
    "number": "numbers",
    "text": "other text",
    "calls": "the number of calls",
    "tools": "the tools that are offered",
    "failure": "whether it fails",
}
"""What can vary, in words, by its name."""


def kind_of(before: str, after: str) -> str:
    """Return the name of what varies between two texts, which differ; see `KINDS`."""
    if sorted(PIECE.findall(before)) == sorted(PIECE.findall(after)):
        return "order"
    place = _shared(before, after)
    if all(_inside(TIMES, text, place) for text in (before, after)):
        return "time"
    one, other = (_inside(WORD, text, place) for text in (before, after))
    if not one or not other:
        return "text"
    if all(re.fullmatch(r"-?\d+(?:\.\d+)?", word) for word in (one, other)):
        return "number"
    return "id" if all(map(_is_id, (one, other))) else "text"


def _shared(one: str, other: str) -> int:
    return len(commonprefix([one, other]))  # noqa: RUF071 (no paths)


def _inside(pattern: re.Pattern[str], text: str, place: int) -> str:
    """Return the match around a place of a text, or that ends there; empty if there is none."""
    return next((found[0] for found in pattern.finditer(text) if found.start() <= place <= found.end()), "")


def _is_id(word: str) -> bool:
    """Return whether a word holds a run of letters and digits that nobody chose, as ids, hashes and paths do."""
    runs = re.findall(r"[A-Za-z0-9_]{6,}", word)
    return any(any(c.isdigit() for c in run) and any(c.isalpha() for c in run) for run in runs) or "/tmp/" in word


def around(text: str, other: str) -> str:
    """Return the part of a text that begins shortly before it differs from another one."""
    place = max(0, _shared(text, other) - SHOWN // 3)
    cut = text[place : place + SHOWN]
    return f"{'...' * (place > 0)}{cut}{'...' * (place + SHOWN < len(text))}"


def text_of_message(message: Message) -> str:
    """Return all that a message says, as one text."""
    calls = [each["function"] for each in message.get("tool_calls", ())]
    return message["content"] + "".join(f" {call['name']}({call['arguments']})" for call in calls)


def new_messages(messages: Sequence[Message], before: Sequence[Message]) -> int:
    """Return the index of the first message that a call adds to the one before; 0 if it does not continue that one."""
    return len(before) if list(messages[: len(before)]) == list(before) else 0


def differing(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """Return the first place at which two lists differ; None if they are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((place for place, (mine, theirs) in pairs if mine != theirs), None)
    return min(len(one), len(other)) if place is None and len(one) != len(other) else place
