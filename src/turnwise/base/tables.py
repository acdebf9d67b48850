"""Format tables and pages as text or Markdown."""

import textwrap
from collections.abc import Sequence

Table = Sequence[Sequence[str]]
"""Rows of cells; the first row is the header."""
CUT = "..."
"""Replaces the middle of a shortened cell."""
SHORTEST = 10
"""Minimum width that shortening leaves of a cell (columns); "not shown" fits."""
Page = Sequence[str | Table]
"""Paragraphs in Markdown (headings, lists, text) and tables, in order."""


def as_text(table: Table, width: int | None = None) -> str:
    """Format a table as text with aligned columns.

    If it is wider than `width`, its widest cells are shortened: names, in the first column, last, and numbers never.
    """
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    texts = [place for place, column in enumerate(columns) if not place or not all(map(is_number, column[1:]))]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(texts, key=lambda place: (bool(place) and widths[place] > SHORTEST, widths[place]))
        if widths[widest] <= (SHORTEST if widest else 2 * SHORTEST):
            break
        widths[widest] -= 1
    return "\n".join(
        "  ".join(shortened(cell, most).ljust(most) for cell, most in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def is_number(cell: str) -> bool:
    """Return whether a cell begins with a number, or stands for one that there is not."""
    return cell.lstrip("+-<> ")[:1].isdigit() or cell in ("", "-", "none")


def shortened(text: str, length: int) -> str:
    """Replace the middle of a text that is longer than `length`."""
    if len(text) <= length:
        return text
    kept = length - len(CUT)
    return f"{text[: (kept + 1) // 2]}{CUT}{text[len(text) - kept // 2 :]}"


def as_markdown(table: Table) -> str:
    """Format a table as Markdown."""
    header, *body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
    return "\n".join([header, "|-" * len(table[0]) + "|", *body])


def page_as_markdown(page: Page) -> str:
    """Format a page as Markdown: text in lines of at most 120 characters, tables as wide as necessary."""
    return "\n\n".join(wrapped(part) if isinstance(part, str) else as_markdown(part) for part in page) + "\n"


def wrapped(text: str, width: int = 120) -> str:
    """Break long lines of Markdown between words. Lines that continue a list item are indented."""
    lines = text.split("\n")
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent="  " if line.startswith(("* ", "- ")) else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        if len(line) > width and not line.startswith(("|", "#", "!["))
        else line
        for line in lines
    )


def page_as_text(page: Page, width: int | None = None) -> str:
    """Format a page as text: headings without their marks, tables with aligned columns; `width` as in `as_text`."""
    return "\n\n".join(heading(part) or part if isinstance(part, str) else as_text(part, width) for part in page) + "\n"


def heading(part: str) -> str:
    """Return the text of a heading, or nothing if the paragraph is not one."""
    marks, space, text = part.partition(" ")
    return text if space and "\n" not in text and marks and not marks.strip("#") else ""
