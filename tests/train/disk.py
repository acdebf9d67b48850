"""Fills the disk under a training, and starts a second one beside it: `python -m tests.train.disk FOLDER`.

Lives are forks of one process that has trained once, as in `tests.train.signals`. Each is the command line itself.
"""

import json
import resource
import sys
from pathlib import Path

from tests.toys import small_config
from tests.train.kills import whole
from tests.train.signals import SETTINGS, ended, training

from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


def told(folder: Path, process: int) -> dict:
    """Exit code of a life of that folder, and what it said."""
    return {"code": ended(process), "err": (folder / "err").read_text()}


def full_disk(folder: Path, largest: int, expected: dict) -> dict:
    """Train where no file can grow beyond so many bytes, then where there is room again."""
    limit = (largest, largest)
    full = told(folder, training(folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)))
    again, found = told(folder, training(folder)), whole(folder)
    del found["names"]  # of the figure, which only the command makes
    return {"full": full, "again": again, "differing": [name for name in found if found[name] != expected[name]]}


def main(folder: Path) -> dict:
    """Give what each life said; the first training is undisturbed, and warms the others."""
    SETTINGS.clear()
    SETTINGS.update({"run": {"steps": 40}, "checkpoint": {"every": 10, "keep": 1}, "evaluate": {"every": 20}})
    run = train(small_config(folder, **SETTINGS))
    largest = max(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    lines, expected = run.metrics_path.stat().st_size, whole(folder)
    with RunFolder(run.path).locked():
        second = told(folder, training(folder))
    return {
        "largest": largest,
        "lines": lines,
        "checkpoint": full_disk(folder / "checkpoint", largest // 2, expected),
        "metrics": full_disk(folder / "metrics", (largest + lines) // 2, expected),
        "second": second,
        "afterwards": told(folder, training(folder)),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
