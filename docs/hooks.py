"""Hooks of mkdocs: fill the navigation from folders, lead links to source files to the repository, title code."""

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#|/)([^)\s#]+)")
NAMED_FILE = re.compile(r"^```python (\w+\.py)$", re.MULTILINE)
BRANCH = "main"


def on_config(config: Any) -> Any:
    """Replace `folder/*` in the navigation by the pages of the folder that are named nowhere else."""
    folder = Path(config.docs_dir)
    named = set(_named(config.nav))
    config.nav = [_filled(entry, folder, named) for entry in config.nav]
    return config


def _named(entry: Any) -> list[str]:
    """Every page that the navigation names."""
    if isinstance(entry, str):
        return [entry]
    return [name for part in (entry.values() if isinstance(entry, dict) else entry) for name in _named(part)]


def _filled(entry: Any, folder: Path, named: set[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _filled(inner, folder, named) for title, inner in entry.items()}
    if not isinstance(entry, list):
        return entry
    pages = []
    for inner in entry:
        if isinstance(inner, str) and inner.endswith("/*"):
            found = sorted(page.relative_to(folder).as_posix() for page in folder.joinpath(inner[:-2]).rglob("*.md"))
            pages += [page for page in found if page not in named]
        else:
            pages.append(_filled(inner, folder, named))
    return pages


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to files that are not pages to the repository, and give blocks that are files a title."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", here, match[1]))
        path = Path(config.docs_dir).parent / target
        inside = target.startswith("docs/") and files.get_file_from_path(target.removeprefix("docs/"))
        if (inside and inside.inclusion.is_included()) or not path.exists():
            return match[1]  # a link that leads nowhere stays, and fails the strict build
        kind = "tree" if path.is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/{BRANCH}/{target}"

    return LINK.sub(lead, NAMED_FILE.sub(r'```python title="\1"', markdown))


def on_post_page(output: str, **_: Any) -> str:
    """Keep the theme from asking GitHub for the repository's stars: a page asks the network for nothing."""
    return output.replace(' data-md-component="source"', "")
