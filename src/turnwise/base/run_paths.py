"""Find run folders by their paths, before imports that take longer than the answer that a path is wrong."""

from collections.abc import Iterable
from pathlib import Path

from turnwise.base.errors import DataError, RunError, did_you_mean

SETTINGS = "config.json"


def is_one_name(text: str) -> bool:
    """Return whether a text can only name a file or folder inside another folder."""
    return text.isprintable() and text.strip() not in ("", ".", "..") and not {"/", "\\"} & set(text)


def refuse_missing(path: Path) -> None:
    """Raise if a path leads nowhere.

    Raises:
        DataError: It cannot be read.
    """
    try:
        path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def nearest_run(path: Path) -> str:
    """Return which run next to a path may be meant, as a sentence to append; "" if there is none."""
    beside = [other.parent.name for other in path.absolute().parent.glob(f"*/{SETTINGS}")]
    return did_you_mean(path.name, beside) if path.name not in ("", *beside) else ""


def read_settings(path: Path) -> bytes:
    """Return a run's configuration as it is on disk.

    Raises:
        RunError: The path has no run; the error names similar ones in the same folder.
    """
    try:
        return (path / SETTINGS).read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"{path} is not a run folder: cannot read {SETTINGS} ({why}).{nearest_run(path)}") from None


def runs_inside(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders at paths, each a run or a folder of runs, in order.

    Raises:
        RunError: A path contains no run.
    """
    found: list[Path] = []
    for path in paths:
        inside = [path] if (path / SETTINGS).exists() else sorted(p.parent for p in path.glob(f"*/{SETTINGS}"))
        if not inside:
            near = did_you_mean(path.name, [p.name for p in path.parent.glob("*") if p.is_dir()] if path.name else [])
            raise RunError(f"{path} is neither a run folder nor a folder of runs.{'' if path.exists() else near}")
        found += inside
    return found
