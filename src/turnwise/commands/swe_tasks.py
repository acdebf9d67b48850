"""Define `turnwise make-swe-tasks`, which makes software repair tasks from released packages."""

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from turnwise.base.cache import check_writable
from turnwise.base.terminal import say
from turnwise.commands.common import count, natural


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("make-swe-tasks", help="make bugs to repair, for the environment 'swe'")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the tasks; default: SWE_DATA, or the cache, where the environment looks",
    )
    parser.add_argument("--packages", metavar="A,B", help="packages to break; default: all known ones")
    parser.add_argument("--per-package", type=count, default=40, help="tasks per package; default: 40")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the choice of bugs; default: 0")
    parser.add_argument("--jobs", type=count, help="parallel test runs; default: number of cores")
    parser.set_defaults(run=_make)


def _make(options: argparse.Namespace) -> int:
    from turnwise.worlds.swe.bubblewrap import check_bubblewrap
    from turnwise.worlds.swe.make.build import Maker
    from turnwise.worlds.swe.make.packages import fetch, fetch_tools, find_packages
    from turnwise.worlds.swe.make.subject import Subject
    from turnwise.worlds.swe.repositories import DATA_VARIABLE, made_folder
    from turnwise.worlds.swe.tasks import load_tasks, write_tasks

    check_bubblewrap()
    packages = find_packages([name.strip() for name in options.packages.split(",")] if options.packages else [])
    folder = options.output or Path(os.environ.get(DATA_VARIABLE) or made_folder()).expanduser()
    check_writable(folder)
    jobs = options.jobs or os.cpu_count() or 1
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    tools, every = fetch_tools(folder), []
    for package in packages:
        part = folder / "parts" / f"{package.name}-{package.version}-{options.per_package}-{options.seed}.jsonl"
        begun = time.monotonic()
        if not part.exists():
            aside = folder / "tried" / f"{package.name}-{package.version}"
            subject = Subject(package, fetch(package, folder), tools, aside)
            made = Maker(subject, seed=options.seed, jobs=jobs).tasks(options.per_package)
            write_tasks(part, made)
        tasks = load_tasks(part)
        every += tasks
        tiers = Counter(task.tier for task in tasks)
        shown = ", ".join(f"tier {tier}: {number}" for tier, number in sorted(tiers.items()))
        say(
            f"{package.name} {package.version}: {len(tasks)} tasks ({shown}), {time.monotonic() - begun:.0f} s",
            flush=True,
        )
    write_tasks(folder / "tasks.jsonl", every)
    say(f"{len(every)} tasks in {folder}")
    return 0
