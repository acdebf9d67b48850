"""Keep plans, and repositories with bugs, in the cache: made once per task, by one thread while others wait."""

import dataclasses
import hashlib
import json
import platform
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from turnwise.base.cache import cache_folder, made_aside
from turnwise.base.errors import DataError
from turnwise.worlds.swe.layout import lay_out
from turnwise.worlds.swe.plan import Plan
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.workspace import Files

_FORM = 2
"""Changes with what a plan is."""
_PLAN = "plan.json"
_READ = TypeAdapter(Plan)
_locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def kept_plan(task: SweTask, where: str, make: Callable[[], Plan]) -> Plan:
    """Load the plan of a task, or make and keep it.

    Args:
        task: The task.
        where: The snapshot and the interpreter that it is made with.
        make: Makes the plan.
    """
    folder = _folder("plans", task, f"{where} {platform.python_version()}")
    with _locks[folder]:
        if not folder.is_dir():
            with made_aside(folder) as aside:
                (aside / _PLAN).write_bytes(_READ.dump_json(make()))
        try:
            return _READ.validate_json((folder / _PLAN).read_bytes())
        except (OSError, ValidationError):
            raise DataError(f"swe: {folder / _PLAN} is damaged; remove {folder}, and it is made anew") from None


def laid_out(task: SweTask, snapshot: Path, make: Callable[[], Files]) -> Path:
    """Return the repository as the agent gets it, as a folder.

    Args:
        task: The task.
        snapshot: The repository before the bug.
        make: Makes the files that differ from the snapshot.
    """
    folder = _folder("laid", task, str(snapshot))
    with _locks[folder]:
        if not folder.is_dir():
            with made_aside(folder) as aside:
                lay_out(snapshot, make(), aside)
        return folder


def _folder(kind: str, task: SweTask, where: str) -> Path:
    key = json.dumps([_FORM, where, dataclasses.asdict(task)], sort_keys=True)
    return cache_folder() / "swe" / kind / hashlib.sha256(key.encode()).hexdigest()[:32]
