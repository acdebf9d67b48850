"""Measure how long a report of a long run takes to write, and to load in headless Chromium.

    python -m benchmarks.report_load [--repeats 5]

The run is synthetic: 150 steps, 20,400 trajectories of 12 turns. A load is the wall time from the navigation to a new
page, in a new context, until charts are drawn and every trajectory can be found.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.credit_speed import cpu
from tests.report.browser import chromium
from tests.report.synthetic import write_run

from turnwise.lab.report.write import write_report


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        run = write_run(Path(scratch) / "large", steps=150, groups=17, group_size=8, turns=12)
        begun = time.perf_counter()
        page = write_report([run], Path(scratch) / "report", ["grpo", "gigpo+aem"])
        written = time.perf_counter() - begun
        size = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
        loads = sorted(_load(browser, page.as_uri()) for _ in range(repeats))
    print(f"{cpu()}. Report of {size / 2**20:.0f} MiB, written in {written:.1f} s.")
    print(f"Loaded in {loads[0]:.2f} to {loads[-1]:.2f} s, median {loads[len(loads) // 2]:.2f}, of {repeats}.")


def _load(browser, address: str) -> float:
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page = context.new_page()
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("body[data-ready=yes]")
    assert "20,400 of 20,400 trajectories" in page.inner_text("#found")
    lasted = time.perf_counter() - begun
    context.close()
    return lasted


if __name__ == "__main__":
    main()
