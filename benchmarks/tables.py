"""Print tables as Markdown."""

from collections.abc import Sequence


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table as Markdown."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|-|{'-:|' * (len(header) - 1)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)
