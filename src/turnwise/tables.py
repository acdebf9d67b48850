"""Format tables as text or Markdown."""

from collections.abc import Sequence

Table = Sequence[Sequence[str]]
"""Rows of cells; the first row is the header."""


def as_text(table: Table) -> str:
    """Format a table as text with aligned columns."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in table
    )


def as_markdown(table: Table) -> str:
    """Format a table as Markdown."""
    header, *body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
    return "\n".join([header, "|-" * len(table[0]) + "|", *body])
