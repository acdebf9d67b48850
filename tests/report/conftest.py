"""A browser for the tests of a file, and pages in it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.report.browser import Opened, chromium, serving


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with chromium() as found:
        yield found


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve a folder until the test ends. A browser that opens files from disk can read a changing one cut off."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(serving(folder))


@pytest.fixture
def opened(browser, page_url, serve) -> Iterator:
    """Open pages of the report that the file's `page_url` gives; none may say anything on the console.

    `serve` comes first, so that servers end after the pages that poll them.
    """
    pages: list[Opened] = []

    def open_page(hash_: str = "", url: str = page_url, **context) -> Opened:
        pages.append(Opened(browser, url + hash_, **context))
        return pages[-1]

    yield open_page
    for page in pages:
        said = page.said
        page.context.close()
        assert not said, "the page said something on the console, or asked the network for something"
