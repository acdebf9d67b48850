"""Train a run that `turnwise demo` shows, and pack it into the package: `python docs/make_demo.py`, a few minutes.

The run is that of its recipe in `turnwise.commands.demo` with seed 0 on one thread. To stay below 3 MB, the archive has
the rollouts of every fifth step, and of the last checkpoint what playing needs, if anything plays it: no optimiser
state.
"""

import argparse
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from turnwise.base.files import write_json
from turnwise.commands.demo import RECIPES
from turnwise.config import load_config
from turnwise.rollout.record import write_table
from turnwise.train.checkpoint import checkpoint_at
from turnwise.train.display import ConsoleDisplay
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.loop import train

FOLDER = Path(__file__).parents[1] / "src" / "turnwise" / "demo"
EVERY = 5
LIMIT = 3_000_000
"""Bytes."""


def main() -> None:
    """Train, unless a finished run is given, and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=tuple(RECIPES), default="household", help="which run")
    parser.add_argument("--run", type=Path, help="pack this finished run instead of training one")
    options = parser.parse_args()
    name = f"{options.name}-demo"
    target = FOLDER / f"{name}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        if options.run is None:
            own = [f"run.name={name}", f"run.folder={folder}/runs", "run.seed=0", "run.threads=1", "run.device=cpu"]
            with ConsoleDisplay() as display:
                options.run = train(load_config(Path(RECIPES[options.name]), own), display=display).path
        pack(RunFolder(options.run), Path(folder) / name, target)
    print(f"{target}: {target.stat().st_size / 1e6:.2f} MB")


def pack(run: RunFolder, copy: Path, target: Path) -> None:
    """Copy what the demo needs, and write it as an archive that is the same for the same run."""
    copy.mkdir()
    for path in (run.metrics_path, run.figure):
        shutil.copy(path, copy)
    record = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    record["config"]["run"] |= {"folder": "runs", "name": copy.name}  # not the temporary folder
    write_json(copy / "config.json", record)
    shutil.copytree(run.evaluations, copy / "evaluations")
    if not record["config"].get("harness"):  # `turnwise play` plays no agents
        last = checkpoint_at(run, None)
        shutil.copytree(last, copy / "checkpoints" / last.name, ignore=shutil.ignore_patterns("state.pt"))
    (copy / "rollouts").mkdir()
    for step, path in by_step(run.rollouts, ".parquet").items():
        if step == 1 or step % EVERY == 0:  # xz packs plain columns twice as well as columns that are packed already
            write_table(copy / "rollouts" / path.name, pq.read_table(path), compression="none", use_dictionary=False)
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(copy, copy.name, filter=_anonymous)
    if target.stat().st_size > LIMIT:
        raise SystemExit(f"{target} has {target.stat().st_size:,} bytes, expected at most {LIMIT:,}; raise EVERY")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and times."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


if __name__ == "__main__":
    main()
