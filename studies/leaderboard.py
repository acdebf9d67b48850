"""Measure the fidelity of methods on several environments, and build docs/leaderboard from the kept data.

    python studies/leaderboard.py                   # play what is missing, then write the pages
    python studies/leaderboard.py --only household  # only some environments; may be repeated
    python studies/leaderboard.py --page            # write the pages from docs/leaderboard/data alone

The pages are README.md, and table.html, which sorts and filters; `leaderboard_page` composes them.

It can be stopped at any time: finished cells are kept in docs/leaderboard/data, runs and returns in runs/leaderboard.
"""

import argparse
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leaderboard_page import WHENS, as_lines, rounded, write_page
from leaderboard_pool import kept_audit

from turnwise.base.errors import ConfigError, RunError, TurnwiseError, did_you_mean
from turnwise.base.files import write_text
from turnwise.config import load_config
from turnwise.lab.diagnostics.audit_show import audit_run
from turnwise.lab.diagnostics.differences import settings_of
from turnwise.lab.diagnostics.fidelity_run import fidelity_method, measure_run
from turnwise.lab.diagnostics.fidelity_show import as_json, equal_methods
from turnwise.lab.diagnostics.study import FREE
from turnwise.train.display import ConsoleDisplay
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "leaderboard"
PLAN = FOLDER / "plan.toml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", action="store_true", help="write the page from the kept data, play nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="environment to play; may be repeated")
    parser.add_argument("--plan", type=Path, default=PLAN, help="another plan than docs/leaderboard/plan.toml")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="another folder than docs/leaderboard")
    parser.add_argument("--runs", type=Path, default=Path("runs/leaderboard"), help="folder of the runs")
    options = parser.parse_args(arguments)
    try:
        plan = read_plan(options.plan)
        plan.setdefault("command", command(options.plan, options.folder))
        if not options.page:
            play(plan, options.folder / "data", options.runs, options.only or list(plan["environments"]))
        write_page(plan, options.folder)
    except TurnwiseError as error:
        print(f"leaderboard: {error}", file=sys.stderr)
        return 2
    return 0


def command(plan: Path, folder: Path) -> str:
    """Return the command that plays a plan and writes its page."""
    options = (("plan", plan, PLAN), ("folder", folder, FOLDER))
    chosen = [f"--{name} {given}" for name, given, usual in options if given != usual]
    return " ".join(["python studies/leaderboard.py", *chosen])


def read_plan(path: Path) -> dict[str, Any]:
    """Read a plan; one that is `like` another changes what it names, and picks `environments` from the other's.

    With `seeds`, there is an environment for every seed, such as "household-1" for a policy of seed 1. `seeds = []` is
    one policy, whatever the other plan has.

    Raises:
        ConfigError: The other plan has no such environment.
    """
    plan = merged(path)
    if plan.get("seeds"):
        plan["environments"] = {
            f"{name}-{seed}": {**of, "settings": [*of["settings"], f"run.seed={seed}"]}
            for name, of in plan["environments"].items()
            for seed in plan["seeds"]
        }
    else:
        plan.pop("seeds", None)
    return plan


def merged(path: Path) -> dict[str, Any]:
    """Return a plan with what it takes from the one that it is `like`."""
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    if "like" in plan:
        other = merged(path.parent / plan.pop("like"))
        picked = {name: environment(other, name) for name in plan.pop("environments", other["environments"])}
        own = ("about", "title", "command", "limits")  # what a page says of itself
        plan = {**{key: value for key, value in other.items() if key not in own}, **plan, "environments": picked}
    return plan


def environment(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an environment of a plan.

    Raises:
        ConfigError: There is no such environment.
    """
    if name not in plan["environments"]:
        raise ConfigError(f"the plan has no environment {name!r}.{did_you_mean(name, plan['environments'])}")
    return plan["environments"][name]


def play(plan: Mapping[str, Any], data: Path, runs: Path, names: Sequence[str]) -> None:
    """Train a run per environment, and measure it at its start, middle and end; what is there is kept.

    Raises:
        ConfigError: The plan has no such environment, or an unknown method or one that needs options.
    """
    for name in names:
        environment(plan, name)  # raises before anything is played
    for method in plan["methods"]:
        fidelity_method(method)
    data.mkdir(parents=True, exist_ok=True)
    with ConsoleDisplay() as display:
        begun = hours()
        for done, name in enumerate(names):
            display.count("environments of the leaderboard", done, len(names))
            folder, middle = trained(plan, name, runs)
            for when, step in zip(WHENS, (0, middle, None), strict=True):
                if when not in plan.get("whens", WHENS):
                    continue
                path = data / f"{name}-{when}.json"
                if path.exists():
                    continue
                groups = plan["environments"][name].get("groups", plan["groups"])
                found = measure_run(
                    folder,
                    plan["methods"],
                    step=step,
                    groups=groups,
                    continuations=plan["continuations"],
                    gradient=True,
                    on_turn=display.turn,
                    on_progress=lambda done, total, what=f"histories of {path.stem}": display.count(what, done, total),
                )
                kept = {"groups": groups, **as_json(found), "equal": equal_methods(found)}
                kept |= {"audit": kept_audit(audit_run(found)), "hours": hours() - begun}
                begun = hours()
                write_text(path, as_lines(rounded(kept)) + "\n")
        display.count("environments of the leaderboard", len(names), len(names))


def hours() -> float:
    """Return the processor hours of this process and of those that it has waited for."""
    return sum(os.times()[:4]) / 3600


def trained(plan: Mapping[str, Any], name: str, runs: Path) -> tuple[RunFolder, int]:
    """Train the run of an environment, resume it, or take it as it is if it is finished; also return its middle."""
    of = plan["environments"][name]
    given = [*plan["settings"], *of["settings"], f"run.folder={runs}", f"run.name={name}"]
    steps = load_config(Path(of["recipe"]), given).run.steps
    middle = max(steps // 2, 1)
    config = load_config(Path(of["recipe"]), [*given, f"checkpoint.every={middle}", "checkpoint.keep=3"])
    path = runs / name
    if not path.exists():
        return train(config), middle
    asked = settings_of(config, irrelevant=FREE)
    folder, config = RunFolder.open(path)
    there = settings_of(config, irrelevant=FREE)
    if changed := [each for each in sorted(there | asked) if there.get(each) != asked.get(each)]:
        raise RunError(
            f"{path} was trained with other settings: {changed[0]} is {there.get(changed[0])!r} there and "
            f"{asked.get(changed[0])!r} in the plan; choose another folder with --runs"
        )
    finished = (folder.checkpoints / f"step-{config.run.steps:06d}").is_dir()  # saved after the last evaluation
    return (folder if finished else train(config, resume=path)), middle


if __name__ == "__main__":
    sys.exit(main())
