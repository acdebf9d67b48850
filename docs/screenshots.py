"""Make the pictures of docs/how-to/report.md from finished runs.

Needs playwright, Pillow and Chromium.
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

from turnwise.credit.compared import COMPARED
from turnwise.lab.report.write import write_report

IMAGES = Path(__file__).parent / "images"
WIDE: ViewportSize = {"width": 1300, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
PATIENCE_MS = 300_000


def main() -> None:
    """Write report-light.png, -dark.png and -phone.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--turn", metavar="HASH", help="what to show of the rollouts, such as #run=a&step=40&rollout=3")
    options = parser.parse_args()
    shoot_report(options.runs, options.turn)


def shoot_report(runs: list[Path], turn: str | None) -> None:
    """Take pictures of the first screen and of the rollouts, wide and on a phone."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = write_report(runs, Path(folder) / "report", COMPARED).as_uri()
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
        )
        page = browser.new_page(viewport=WIDE)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.wait_for_selector("body[data-drawn=yes]")
        shoot(page, "report-light.png", WIDE, "light", "body")
        if turn:
            page.evaluate("hash => { location.hash = hash; }", turn)
            page.wait_for_selector(".turn.here")
        page.click("#view")  # a row per rollout
        shoot(page, "report-dark.png", WIDE, "dark", "#rollouts")
        page.click("#view")
        shoot(page, "report-phone.png", PHONE, "light", "#rollouts")
        browser.close()


def shoot(page: Page, name: str, viewport: ViewportSize, scheme: Literal["light", "dark"], top: str) -> None:
    """Take a picture, with an element at the top of it."""
    page.set_viewport_size(viewport)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate("top => document.querySelector(top).scrollIntoView()", top)
    page.wait_for_timeout(1500)
    picture = Image.open(io.BytesIO(page.screenshot(timeout=PATIENCE_MS)))
    picture.convert("RGB").save(IMAGES / name, optimize=True)


if __name__ == "__main__":
    main()
