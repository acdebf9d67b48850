"""Write files atomically, and collect provenance."""

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise import __version__


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` in one move, or is deleted after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may write the same file
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_remains(folder: Path) -> None:
    """Remove what `replacing` left anywhere in a folder in processes that were killed. Others' files stay."""
    for left in folder.rglob(".*.tmp"):
        name = re.fullmatch(r"\..+\.(\d+)\.tmp", left.name)
        if name and not _lives(int(name[1])):
            left.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Replace a file's content atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def provenance() -> dict[str, Any]:
    """Collect time, versions, commit and machine."""
    return {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **_code_and_machine()}


@functools.cache
def _code_and_machine() -> Mapping[str, Any]:
    """Collect what stays the same for the life of a process, once: asking git and the packages takes long."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "versions": {"turnwise": __version__}
        | {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
        "commit": commit,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
