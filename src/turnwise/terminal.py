"""Print tables and pages: by rich on a terminal, as plain text elsewhere, as Markdown on request.

Plain tables are as wide as they must be, so that no word is broken. rich is imported for a terminal alone, and may be
missing.
"""

import sys
from typing import IO, TYPE_CHECKING, Any

from turnwise.tables import Page, Table, heading, page_as_markdown, page_as_text

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "bar.complete": "#2b7bb9",
    "bar.finished": "#2b7bb9",
    "bar.pulse": "#2b7bb9",
    "progress.download": "none",
    "progress.percentage": "none",
    "progress.remaining": "none",
    "progress.elapsed": "none",
    "table.title": "bold",
    "table.caption": "none",
    "markdown.code": "bold",
    "markdown.item.bullet": "none",
    "markdown.link_url": "underline",
}
"""rich's styles, so that every text has the terminal's own colour and bars are legible on white and on black."""
NARROW = 24
"""Columns up to this width are never wrapped."""
GAP = 2
"""Blanks between columns."""


def make_console(file: IO[str] | None = None, **options: Any) -> "Console":
    """Make a console with legible colours. `file` defaults to stderr."""
    from rich.console import Console
    from rich.theme import Theme

    return Console(file=file or sys.stderr, theme=Theme(STYLES), highlight=False, **options)


def print_table(table: Table, *, title: str = "", markdown: bool = False, file: IO[str] | None = None) -> None:
    """Print a table.

    Args:
        table: Rows of cells; the first row is the header.
        title: Line above the table.
        markdown: Print Markdown, also on a terminal.
        file: Where to; default: stdout.
    """
    print_page([title, table] if title else [table], markdown=markdown, file=file)


def print_page(page: Page, *, markdown: bool = False, file: IO[str] | None = None) -> None:
    """Print a page; see `print_table`."""
    out = file or sys.stdout
    if markdown:
        out.write(page_as_markdown(page))
    elif out.isatty() and (console := _rich_console(out)):
        for number, part in enumerate(page):
            if number:
                console.print()
            _print_part(part, console)
    else:
        out.write(page_as_text(page))


def is_tenth(done: int, total: int) -> bool:
    """Return whether a count passes a tenth of its total, for progress lines in a log."""
    return done >= total or done * 10 // total > (done - 1) * 10 // total


def say_next(command: str, what: str = "") -> None:
    """Print on stderr what to do next: a command, and what it gives."""
    print(f"next: {command}" + f"   # {what}" * bool(what), file=sys.stderr)


def _rich_console(file: IO[str]) -> "Console | None":
    try:
        return make_console(file)
    except ModuleNotFoundError:
        return None


def _print_part(part: str | Table, console: "Console") -> None:
    from rich import box
    from rich.markdown import Markdown
    from rich.table import Table as RichTable
    from rich.text import Text

    if isinstance(part, str):
        console.print(Text(heading(part), style="bold") if heading(part) else Markdown(part))
        return
    head, *body = part
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP, 0, 0))
    least = 0
    for place, name in enumerate(head):
        cells = [row[place] for row in part]
        widest, word = max(map(len, cells)), max(len(word) for cell in cells for word in [*cell.split(), ""])
        numbers = all(cell.lstrip("+-<> ")[:1].isdigit() or cell in ("", "-") for cell in cells[1:])
        made.add_column(Text(name), justify="right" if numbers and place else "left", no_wrap=widest <= NARROW)
        least += (widest if widest <= NARROW else word) + GAP + 1
    for row in body:
        made.add_row(*map(Text, row))  # as text: rich would read [train] as markup
    own = console.width
    console.width = max(own, least)  # too narrow a terminal wraps lines rather than words
    console.print(made)
    console.width = own
