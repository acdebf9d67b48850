"""Define `turnwise demo`, and unpack the recorded run that comes with the package."""

import argparse
import hashlib
import importlib.util
import os
import sys
import webbrowser
from importlib import resources
from pathlib import Path
from typing import Any

from turnwise.base import version
from turnwise.base.cache import cache_folder, check_writable, made_aside
from turnwise.base.terminal import say
from turnwise.credit.compared import COMPARED

RECIPES = {"household": "household-tiny-aem", "agent": "storeroom-agent"}
"""Recipes of the recorded runs by name. A run is in NAME-demo.tar.xz, in the folder NAME-demo."""


def add(commands: Any) -> None:
    """Add the command."""
    demo = commands.add_parser("demo", help="open the report of a recorded run; nothing is trained")
    known = tuple(RECIPES)
    demo.add_argument(
        "name", nargs="?", choices=known, default=known[0], metavar="NAME", help=f"recorded run: {' or '.join(known)}"
    )
    demo.add_argument("--no-open", action="store_true", help="print the page's path and open no browser")
    demo.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    page = demo_run(options.name) / "report" / "index.html"
    say(page)
    if not options.no_open and _has_browser():
        webbrowser.open(page.as_uri())
    watch = "watch its policy play: turnwise play demo; " if options.name == "household" else ""
    say(f"{watch}train it yourself: turnwise train {RECIPES[options.name]}", file=sys.stderr)
    return 0


def demo_run(name: str = "household") -> Path:
    """Return a recorded run with its report, unpacked to the cache folder at first use.

    The archive in the package is never changed. The folder's name depends on everything that its content is made of, so
    a newer turnwise makes its own.

    Raises:
        RunError: The cache folder is not writable.
    """
    run = f"{name}-demo"
    archive = resources.files("turnwise") / "demo" / f"{run}.tar.xz"
    target = cache_folder() / f"demo-{_digest(archive)}"
    if not target.exists():
        import tarfile

        from turnwise.lab.report.write import write_report

        check_writable(target.parent, mend="; set TURNWISE_CACHE to a folder that is writable")
        with made_aside(target) as temporary, archive.open("rb") as file:
            with tarfile.open(fileobj=file, mode="r:xz") as content:
                content.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
                content.extractall(temporary)
            write_report([temporary / run], temporary / run / "report", COMPARED)
    return target / run


def _digest(archive: Any) -> str:
    """Return a digest of the archive, of the code that writes the report, and of the version."""
    digest = hashlib.sha256(version.__version__.encode() + archive.read_bytes())
    digest.update(b"with tokens" * bool(importlib.util.find_spec("tokenizers")))
    for path in sorted((Path(__file__).parents[1] / "lab" / "report").rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _has_browser() -> bool:
    """Return whether a person is likely to see a browser's window: a terminal, and a display on Linux."""
    display = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display) and sys.stdout.isatty()
