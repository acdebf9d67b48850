"""Write files atomically, and collect provenance."""

import contextlib
import errno
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from turnwise.base.version import __version__

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Error numbers of a full disk."""
_IN_TEXT = re.compile(r"\(os error (\d+)\)|\bcode: (\d+)")  # of libraries in Rust: safetensors and tokenizers
_CUT = re.compile(r"\d+ requested and \d+ written|Not enough free space to write \d+ bytes")  # of NumPy


def refused_by_disk(error: BaseException) -> OSError | None:
    """Return the error of a full disk as OSError with its number, whatever library raised it."""
    if isinstance(error, OSError) and error.errno in FULL:
        return error
    if found := _IN_TEXT.search(str(error)):
        number = int(found[1] or found[2])
        return OSError(number, os.strerror(number)) if number in FULL else None
    if isinstance(error, OSError) and _CUT.match(str(error)):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return refused_by_disk(error.__cause__) if error.__cause__ else None


def describe_refusal(error: OSError, path: Path | None = None) -> str:
    """Say why the disk refuses writes, with the file system if the file is known."""
    path = path or (Path(error.filename) if isinstance(error.filename, str) else None)
    why = "no space left" if error.errno == errno.ENOSPC else (error.strerror or "").lower()
    return f"{why} on {_mount_of(path)}" if path else f"{why} on the disk"


def _mount_of(path: Path) -> Path:
    """Return the root of the file system that a path belongs to."""
    places = [place for place in (path.absolute(), *path.absolute().parents) if place.exists()]
    device = places[0].stat().st_dev
    return [place for place in places if place.stat().st_dev == device][-1]


class Watched:
    """Pass writes on to a file, and keep the system's error, which libraries such as torch hide."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.error: OSError | None = None  # the first error of a write

    def write(self, data: Any) -> int:
        """Write bytes."""
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` in one move, or is deleted after an error."""
    temporary = aside(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_remains(folder: Path, pattern: str = "**/.*.tmp") -> None:
    """Remove the files and folders that killed processes of this machine made aside, by default anywhere in a folder.

    Those of live processes, and of processes on other machines, stay.
    """
    for left in [*folder.glob(pattern)]:
        process = re.search(r"\.(\d+)\.tmp$", left.name)
        if process and left.name.endswith(mine(process[1])) and not _lives(int(process[1])):
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def aside(path: Path) -> Path:
    """Return where this process makes a file or a folder before moving it; another process may make the same one."""
    return path.with_name(f".{path.name}{mine()}")


def mine(process: str = "") -> str:
    """Return how the names of temporary files of a process end, by default of this one."""
    return f".{platform.node()}.{process or os.getpid()}.tmp"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except (PermissionError, FileNotFoundError):  # another user's; a system without /proc
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return stat.rpartition(b")")[2].split()[:1] != [b"Z"]  # it has ended, but its parent has not asked for its status


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
    """Collect once what stays the same while a process runs: asking git and the packages is slow."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    versions: dict[str, str] = {}
    for name in ("torch", "transformers", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # logs are read without the first two
            versions[name] = version(name)

    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "versions": {"turnwise": __version__} | versions,
        "commit": commit,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
