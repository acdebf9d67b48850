"""The documentation as a site: built strictly, complete, and served by nothing but files."""

import functools
import html
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import turnwise as tw
from tests.needs import needs
from tests.report.browser import PATIENCE_MS, chromium
from turnwise.commands.cli import _parser

pytestmark = needs("mkdocs")

ROOT = Path(__file__).parents[1]
ASSET = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
IMPORTED = re.compile(r"url\([\"']?((?:https?:)?//[^)]+)|@import\s+[\"']((?:https?:)?//[^\"']+)")


def build(folder: Path, *, docs: Path = ROOT) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=docs, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_asks_the_network_for_anything(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        canonical = re.sub(r"<link rel=\"?canonical[^>]*>", "", page.read_text())
        assert not ASSET.findall(canonical), f"{page.relative_to(site)} loads from the network"
    for style in site.rglob("*.css"):
        assert not IMPORTED.findall(style.read_text()), f"{style.relative_to(site)} loads from the network"


def test_the_search_index_finds_pages_that_exist(site):
    text = (site / "search" / "search_index.js").read_text()
    found = [entry for entry in json.loads(text.partition("=")[2])["docs"] if "advantage" in entry["text"].lower()]
    assert len(found) > 50
    page = functools.cache(lambda path: html.unescape((site / path).read_text()))  # many entries lie in one page
    for entry in found:
        path, _, anchor = entry["location"].partition("#")
        assert not anchor or f'id="{anchor}"' in page(path)


def test_search_works_on_files_in_a_browser(site):
    with chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "reference" / "methods.html").as_uri())
        page.fill("input.md-search__input", "advantage")
        page.wait_for_selector(".md-search-result__link", timeout=PATIENCE_MS)
        assert page.locator(".md-search-result__link").count() > 5
        assert asked
        assert all(url.startswith("file:") for url in asked)


def test_the_api_has_every_public_name(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split()[0].rpartition(".")[2] for line in zlib.decompress(inventory).decode().splitlines()}
    own_pages = {page.stem for page in (site / "reference" / "methods").glob("*.html")}
    assert set(tw.METHODS) <= own_pages
    assert set(tw.__all__) <= documented | own_pages


def test_every_command_has_its_heading(site):
    page = (site / "reference" / "commands.html").read_text()
    (commands,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    for name in commands:
        assert f'id="turnwise-{name}"' in page


def test_links_to_source_files_lead_to_the_repository(site):
    page = (site / "explanation" / "aem.html").read_text()
    assert "https://github.com/turnwise-rl/turnwise/blob/main/src/turnwise/credit/methods/aem.py" in page


def test_a_broken_link_fails_the_build(tmp_path):
    """On a site of one page with our configuration."""
    targets = ("nowhere.md", "index.md#nowhere", "../src/nowhere.py")
    (tmp_path / "docs").mkdir()
    for name in ("hooks.py", "assets"):
        (tmp_path / "docs" / name).symlink_to(ROOT / "docs" / name)
    (tmp_path / "docs" / "index.md").write_text("# Home\n" + "".join(f"\n[a link]({target})\n" for target in targets))
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(settings.partition("\nnav:")[0] + "\nnav: [index.md]\n")
    done = build(tmp_path / "site", docs=tmp_path)
    assert done.returncode == 1
    for target in targets:
        assert target.removeprefix("index.md") in done.stdout + done.stderr
