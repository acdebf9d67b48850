"""Print tables and pages: with rich on a terminal, as plain text elsewhere, as Markdown on request.

Plain tables fit `WIDTH` columns: long cells lose their middle unless the caller asks for everything. rich is imported
only for a terminal, and may be missing.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from turnwise.base.heartbeat import note_output
from turnwise.base.tables import Page, Table, heading, is_number, page_as_markdown, page_as_text

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
"""rich's styles, so that text has the terminal's colour and bars are legible on white and on black."""
WIDTH = 100
"""Columns of a plain table."""
NARROW = 24
"""Columns up to this width are never wrapped."""
GAP = 2
"""Blanks between columns."""


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
_ESCAPES |= {0x7F: "\\u007f"}  # valid in JSON too, which leaves it as it is
_ESCAPES |= {
    code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
_ESCAPES |= {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
"""What a terminal obeys instead of showing: control characters, marks of writing direction, half surrogates."""


def visible(text: str) -> str:
    """Return a text whose control characters are written as escapes, except line breaks and tabs.

    What we print may come from environments, models and logs, which could move the cursor or overwrite text.
    """
    return text.translate(_ESCAPES)


def say(*parts: object, file: IO[str] | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print like `print`, with control characters escaped. All text for the terminal goes through here or a console."""
    note_output()
    print(visible(" ".join(map(str, parts))), file=file, end=end, flush=flush)


def say_over(text: str = "") -> None:
    """Show a line of progress on stderr in place of the last one; an empty text removes it."""
    print(f"\r{visible(text)}" if text else "\r\033[K", end="", file=sys.stderr, flush=True)


def discard(stream: IO[str]) -> None:
    """Send a stream to nowhere, with what is left in its buffer, which Python would complain about at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_missing_streams() -> None:
    """Open streams that the caller closed, as with `>&-`, to nowhere; else they are None, and files get their numbers.

    Programs that this one starts inherit them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115


class _Outlasting:
    """Write to a stream as long as somebody reads it, then to nowhere."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except BrokenPipeError:
            discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def outlast_readers() -> Iterator[None]:
    """Go on if the reader of stdout or stderr goes away, such as the collector of a log: what follows is not shown."""
    out, err = map(_Outlasting, (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):  # pyright: ignore[reportArgumentType]
        try:
            yield
        finally:
            out.flush()


def make_console(file: IO[str] | None = None, **options: Any) -> "Console":
    """Make a console with legible colours that shows control characters as escapes. `file` defaults to stderr."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text
    from rich.theme import Theme

    class Visible(Console):
        """Escapes what it prints: text before rich drops characters from it, and whatever is left."""

        def print(self, *objects: Any, **how: Any) -> None:
            note_output()
            super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **how)

        def on_broken_pipe(self) -> None:
            raise  # as `print` does; rich ends the program with 1

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    stream: Any = file or sys.stderr
    if not stream.isatty():  # FORCE_COLOR, which a CI sets, would fill its log with bars
        options = {"force_terminal": False, **options}
    return Visible(file=stream, theme=Theme(STYLES), highlight=False, **options)


def print_table(
    table: Table, *, title: str = "", markdown: bool = False, wide: bool = False, file: IO[str] | None = None
) -> None:
    """Print a table.

    Args:
        table: Rows of cells; the first row is the header.
        title: Line above the table.
        markdown: Print Markdown, also on a terminal.
        wide: Print every cell in full.
        file: Where to; default: stdout.
    """
    print_page([title, table] if title else [table], markdown=markdown, wide=wide, file=file)


def print_page(page: Page, *, markdown: bool = False, wide: bool = False, file: IO[str] | None = None) -> None:
    """Print a page; see `print_table`."""
    out = file or sys.stdout
    page = [
        visible(part) if isinstance(part, str) else [[visible(cell) for cell in row] for row in part] for part in page
    ]
    if markdown:
        out.write(page_as_markdown(page))
    elif out.isatty() and (console := _rich_console(out)):
        for number, part in enumerate(page):
            if number:
                console.print()
            _print_part(part, console)
    else:
        out.write(page_as_text(page, None if wide else WIDTH))


def is_tenth(done: int, total: int) -> bool:
    """Return whether a count passes a tenth of its total, for progress lines in a log."""
    return done >= total or done * 10 // total > (done - 1) * 10 // total


def say_next(command: str, what: str = "") -> None:
    """Print on stderr what to do next: a command, and what it gives."""
    say(f"next: {command}" + f"   # {what}" * bool(what), file=sys.stderr)


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
        numbers = all(map(is_number, cells[1:]))
        made.add_column(Text(name), justify="right" if numbers and place else "left", no_wrap=widest <= NARROW)
        least += (widest if widest <= NARROW else word) + GAP + 1
    for row in body:
        made.add_row(*map(Text, row))  # as text: rich would read [train] as markup
    own = console.width
    console.width = max(own, least)  # too narrow a terminal wraps lines rather than words
    console.print(made)
    console.width = own
