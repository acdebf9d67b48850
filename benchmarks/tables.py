"""Print tables as Markdown, and figures of several rounds with their range."""

import statistics
from collections.abc import Iterable, Sequence


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Write the median with the least and the greatest value; one value alone."""
    values = sorted(values)
    middle, *ends = (f"{value:,.{digits}f}" for value in (statistics.median(values), values[0], values[-1]))
    return middle if len(values) == 1 else f"{middle} ({' to '.join(ends)})"


def ratios(over: Iterable[float], under: Iterable[float]) -> list[float]:
    """Divide the figures of two variants round by round."""
    return [above / below for above, below in zip(over, under, strict=True)]


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table as Markdown."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|-|{'-:|' * (len(header) - 1)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)
