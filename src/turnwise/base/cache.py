"""Manage the cache folder, whose content can be recreated."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnwise.base.errors import RunError
from turnwise.base.files import mine, remove_remains


def cache_folder() -> Path:
    """Return the cache folder: TURNWISE_CACHE, or `turnwise` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("TURNWISE_CACHE") or Path(base) / "turnwise")


def check_writable(folder: Path, *, mend: str = "") -> None:
    """Check that a folder is writable, or can be created. Creates nothing.

    Args:
        folder: Folder to check; need not exist.
        mend: End of the error message: what to do.

    Raises:
        RunError: The folder is not writable.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise RunError(f"cannot write into {folder}: {error.strerror or error}{mend}") from None


@contextmanager
def held(folder: Path, otherwise: str) -> Iterator[None]:
    """Lock a folder for this process until the `with` statement or the process ends.

    Args:
        folder: Folder to lock; created if missing.
        otherwise: Start of the error message if another process holds the lock.

    Raises:
        RunError: Another process holds the lock, or its file cannot be opened.
    """
    from filelock import FileLock, Timeout

    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{otherwise}; wait for it, or stop it") from None
    except OSError as error:  # such as a link in its place
        raise RunError(f"cannot lock {folder}: {lock.lock_file}: {error.strerror or error}; remove that file") from None
    try:
        with _folder_locked(folder, otherwise):
            yield
    finally:
        lock.release()


@contextmanager
def _folder_locked(folder: Path, otherwise: str) -> Iterator[None]:
    """Lock the folder itself, since the other lock's file may be deleted."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{otherwise}; wait for it, or stop it") from None
        except OSError:  # such as on NFS, which locks no folders
            pass
        yield
    finally:
        os.close(handle)


@contextmanager
def made_aside(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` in one move.

    The folder is deleted if another process created `target` first, or on an error; after a kill, by the next call for
    a folder next to it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_remains(target.parent, ".*.tmp")
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=mine(), dir=target.parent))
    try:
        yield temporary
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
