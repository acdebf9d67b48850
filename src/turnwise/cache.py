"""Where things are kept that can be made again."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnwise.errors import RunError


def cache_folder() -> Path:
    """TURNWISE_CACHE, or turnwise in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("TURNWISE_CACHE") or Path(base) / "turnwise")


def check_writable(folder: Path, *, mend: str = "") -> None:
    """Make sure, before work is done, that its result can be written there; makes nothing yet.

    Raises:
        RunError: It cannot; ends with `mend`.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror}{mend}") from None


@contextmanager
def held(folder: Path, otherwise: str) -> Iterator[None]:
    """Have a folder to oneself until the end of the block, or of this process, however it ends.

    Raises:
        RunError: Another process has it; says `otherwise`.
    """
    from filelock import FileLock, Timeout

    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{otherwise}; wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def made_aside(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target` in one move; nothing is left of it when another process was first, or on an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        yield temporary
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
