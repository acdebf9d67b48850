"""A real browser for the page, where there is one, and the server of live pages."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.needs import reason

from turnwise.lab.report.live import _listen

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
"""A browser that is installed; without one playwright looks for its own."""
PATIENCE_MS = 180_000
"""On a machine that has much else to do, a browser can be slow without anything being wrong."""


@contextmanager
def chromium() -> Iterator:
    """Headless Chromium, or a skipped test."""
    api = pytest.importorskip("playwright.sync_api", reason=reason("playwright"))
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
            )
        except api.Error as error:
            pytest.skip(reason("chromium", str(error).splitlines()[0]))
        yield browser
        browser.close()


@contextmanager
def serving(folder: Path, token: str | None = None) -> Iterator[str]:
    """Serve a folder as `turnwise report --live` does; yields the address."""
    server = _listen("127.0.0.1", 0, folder, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Opened:
    """An opened page, with what it said on the console."""

    def __init__(self, browser, url: str, **context):
        self.context = browser.new_context(viewport={"width": 1300, "height": 900}, **context)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page, self.said = self.context.new_page(), []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        own = url.rpartition("/")[0] + "/"
        self.page.on("request", lambda request: self.asks(request.url, own))
        self.profiler = self.context.new_cdp_session(self.page)
        self.profiler.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready=yes]")

    def asks(self, url: str, own: str) -> None:
        """Keep what the page asks the network for, except for its own files where they are served."""
        if url.startswith("http") and not url.startswith(own):
            self.said.append(url)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def unfold(self) -> None:
        """Unfold the numbers and the settings."""
        self.page.evaluate("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")
        self.page.wait_for_selector("#metrics.tabulator .tabulator-row")
        self.page.wait_for_selector("#settings.tabulator .tabulator-row")

    def fits(self, width: int) -> None:
        """Nothing is wider than the window, once the charts know of its new size: they learn it with a frame."""
        self.page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)

    def processor_seconds(self) -> float:
        metrics = self.profiler.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def here(self) -> tuple[str, str]:
        """Rollout and turn that have the focus."""
        return tuple(
            self.page.evaluate("[document.activeElement.dataset.trajectory, document.activeElement.dataset.turn]")
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
