"""Markdown in lines of at most 120 characters."""

import re
import textwrap

WIDTH = 118
MARKER = re.compile(r" (?=(?:[-+*>#=|]+|\d+[.)])\s)")
"""A space before what would begin a list, a quotation or a heading at the start of a line."""


def wrap(text: str, first: str = "", then: str = "") -> str:
    """Fill a paragraph. `first` and `then` begin its first and its further lines."""
    glued = MARKER.sub("\0", " ".join(text.split()))
    filled = textwrap.fill(
        glued, WIDTH, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace("\0", " ")


def item(text: str) -> str:
    """An item of a list."""
    return wrap(text, "* ", "  ")


def prose(text: str) -> str:
    """Paragraphs, with indented blocks as code."""
    parts = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif block.strip():
            parts.append(wrap(block))
    return "\n\n".join(parts)


def sentence(text: str) -> str:
    """Text on one line that begins with a capital and ends with a full stop."""
    text = " ".join(text.split())
    return text and text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
