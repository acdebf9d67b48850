"""Tables as the results show them."""

from collections.abc import Sequence


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print as Markdown."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|-|{'-:|' * (len(header) - 1)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)
