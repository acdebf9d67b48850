"""Keep plans, and repositories with bugs, in the cache: made once per task, by one thread while others wait.

An overlay shows which files were written after the others: by inode, device and time of birth. So the bug is not put
into a copy: the entire repository is rewritten in one pass, in random order, with the bug in it.
"""

import dataclasses
import hashlib
import json
import os
import platform
import random
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from turnwise.base.cache import cache_folder, made_aside
from turnwise.base.errors import DataError
from turnwise.worlds.swe.plan import TaskPlan
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.workspace import Files

_TIME = 946684800
"""The time at which all files appear to have been written: January 2000."""


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
                yield path, (stat.S_IMODE(found.stat().st_mode), Path(found.path).read_bytes())


def _write(path: Path, mode: int, content: bytes | str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.mkdir(exist_ok=True)
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(content)
        path.chmod(mode)


_FORM = 2
"""Changes with what a plan is."""
_PLAN = "plan.json"
_READ = TypeAdapter(TaskPlan)
_locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def kept_plan(task: SweTask, where: str, make: Callable[[], TaskPlan]) -> TaskPlan:
    """Load the plan of a task, or make and keep it."""
    folder = _folder("plans", task, f"{where} {platform.python_version()}")
    with _locks[folder]:
        if not folder.is_dir():
            with made_aside(folder) as aside:
                (aside / _PLAN).write_bytes(_READ.dump_json(make()))
        try:
            return _READ.validate_json((folder / _PLAN).read_bytes())
        except (OSError, ValidationError):
            raise DataError(f"swe: {folder / _PLAN} is damaged; remove {folder}, and it is recreated") from None


def laid_out(task: SweTask, snapshot: Path, make: Callable[[], Files]) -> Path:
    """Return the repository as the agent gets it, as a folder."""
    folder = _folder("laid", task, str(snapshot))
    with _locks[folder]:
        if not folder.is_dir():
            with made_aside(folder) as aside:
                lay_out(snapshot, make(), aside)
        return folder


def _folder(kind: str, task: SweTask, where: str) -> Path:
    key = json.dumps([_FORM, where, dataclasses.asdict(task)], sort_keys=True)
    return cache_folder() / "swe" / kind / hashlib.sha256(key.encode()).hexdigest()[:32]
