"""What comments after prints promise, held against what is printed."""

from collections.abc import Iterable


def assert_printed(promised: Iterable[str], printed: str) -> None:
    """Find each promise in a line of its own, in order. At its end "..." stands for the rest of the line."""
    lines = iter(printed.splitlines())
    for text in promised:
        begin = text.removesuffix("...")
        found = any(line == text or (begin != text and line.startswith(begin)) for line in lines)
        assert found, f"promised {text!r} next, got:\n{printed}"
