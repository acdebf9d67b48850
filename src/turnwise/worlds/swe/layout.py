"""Lay a repository out so that no order, time or size tells which file has the bug.

An overlay shows which files were written after the others: by inode, device and time of birth. So the bug is not put
into a copy; the whole repository is written anew in one pass, in a random order, with the bug in it.
"""

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

from turnwise.worlds.swe.workspace import Files

_TIME = 946684800
"""When all files were last written, it seems: in January 2000."""


def lay_out(snapshot: Path, changed: Files, target: Path) -> None:
    """Copy a repository with changes.

    Args:
        snapshot: Its folder.
        changed: Files with other contents than there; None: left out.
        target: An empty folder.
    """
    entries = dict(_entries(snapshot))
    for path, content in changed.items():
        if content is not None:  # a folder that replaces a link: through the link, the file would be written elsewhere
            for place, letter in enumerate(path):
                if letter == "/" and isinstance(entries.get(path[:place], (0, None))[1], str | bytes):
                    del entries[path[:place]]
        mode, _ = entries.pop(path, (0o644, None))
        if content is not None:
            entries[path] = (mode, content)
    paths = list(entries)
    rng = random.SystemRandom()
    rng.shuffle(paths)
    for path in sorted(paths, key=lambda path: isinstance(entries[path][1], str)):  # links last: none is followed
        _write(target / path, *entries[path])
    rng.shuffle(paths)
    for path in [*sorted(paths, key=lambda path: entries[path][1] is None), "."]:  # folders after what is in them
        os.utime(target / path, (_TIME, _TIME), follow_symlinks=False)


Entry = tuple[int, bytes | str | None]
"""Permissions, and a file's content, a link's target, or None: a folder."""


def _entries(snapshot: Path) -> Iterator[tuple[str, Entry]]:
    folders = [""]
    for folder in folders:
        for found in os.scandir(snapshot / folder):
            path = f"{folder}{found.name}"
            if found.is_symlink():
                yield path, (0, os.readlink(found.path))
            elif found.is_dir():
                folders.append(f"{path}/")
                yield path, (0o755, None)
            elif found.is_file():
                yield path, (_mode(Path(found.path)), Path(found.path).read_bytes())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _write(path: Path, mode: int, content: bytes | str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.mkdir(exist_ok=True)
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(content)
        path.chmod(mode)
