"""Choose the reader of a log file."""

import json
from collections.abc import Callable
from pathlib import Path

from turnwise.base.errors import DataError
from turnwise.base.jsonl import UNREADABLE, lines_of, open_text, refuse_many_values
from turnwise.integrations.logs.chat_lines import read_chat_lines
from turnwise.integrations.logs.inspect_logs import read_inspect
from turnwise.integrations.logs.logged import ReadLog
from turnwise.integrations.logs.opentelemetry import read_opentelemetry
from turnwise.integrations.logs.verifiers_results import read_verifiers

FORMATS: dict[str, ReadLog] = {
    "chat": read_chat_lines,
    "opentelemetry": read_opentelemetry,
    "inspect": read_inspect,
    "verifiers": read_verifiers,
}
"""Readers by the name of their format."""
SIGNS: dict[str, Callable[[set[str]], bool]] = {
    "chat": lambda keys: "messages" in keys,
    "verifiers": lambda keys: {"prompt", "completion"} <= keys,
    "opentelemetry": lambda keys: bool({"resourceSpans", "resourceLogs"} & keys),
    "inspect": lambda keys: {"eval", "samples"} <= keys,
}
"""Whether an object with these keys belongs to a format."""


def format_of(path: Path) -> str:
    """Name the format of a file, by its name and its first object.

    Raises:
        DataError: The file cannot be read, or belongs to none.
    """
    if path.suffix == ".eval":
        return "inspect"
    keys = _first_keys(path)
    for name, fits in SIGNS.items():
        if fits(keys):
            return name
    raise DataError(
        f"{path}: its first object has the keys {', '.join(sorted(keys)) or 'none'}, which belong to no known format; "
        f"expected 'messages' per line, or choose one with --format {'|'.join(FORMATS)}"
    )


def _first_keys(path: Path) -> set[str]:
    """Return the keys of the first line's object, else of the file's."""
    try:
        with open_text(path) as file:
            first = next((line for line in lines_of(file, path) if line.strip()), "")
        if not first:
            raise DataError(f"{path} is empty; expected one object per line")
        refuse_many_values(first, f"{path}, line 1,")
        try:
            value = json.loads(first)
        except ValueError:
            with open_text(path) as file:
                whole = file.read()
            if path.suffix == ".gz":
                refuse_many_values(whole, str(path))
            value = json.loads(whole)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (*UNREADABLE, RecursionError):
        raise DataError(f"{path}, line 1: not valid JSON; expected one object per line") from None
    value = value[0] if isinstance(value, list) and value else value
    return set(value) if isinstance(value, dict) else set()
