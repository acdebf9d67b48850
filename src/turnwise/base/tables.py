"""Format tables and pages as text or Markdown."""

import textwrap
from collections.abc import Sequence

Table = Sequence[Sequence[str]]
"""Rows of cells; the first row is the header."""
Page = Sequence[str | Table]
"""Paragraphs in Markdown (headings, lists, text) and tables, in order."""


def as_text(table: Table) -> str:
    """Format a table as text with aligned columns, as wide as it must be."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in table
    )


def as_markdown(table: Table) -> str:
    """Format a table as Markdown."""
    header, *body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
    return "\n".join([header, "|-" * len(table[0]) + "|", *body])


def page_as_markdown(page: Page) -> str:
    """Format a page as Markdown: text in lines of at most 120 characters, tables as wide as they must be."""
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


def page_as_text(page: Page) -> str:
    """Format a page as text: headings without their marks, tables with aligned columns."""
    return "\n\n".join(heading(part) or part if isinstance(part, str) else as_text(part) for part in page) + "\n"


def heading(part: str) -> str:
    """Return the text of a heading, or nothing if the paragraph is not one."""
    marks, space, text = part.partition(" ")
    return text if space and "\n" not in text and marks and not marks.strip("#") else ""
