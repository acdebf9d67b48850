"""Measure the fidelity of methods on several environments, and build docs/leaderboard from the kept data.

    python studies/leaderboard.py                   # play what is missing, then write the pages
    python studies/leaderboard.py --only household  # only some environments; may be repeated
    python studies/leaderboard.py --page            # write the pages from docs/leaderboard/data alone

The pages are README.md, and table.html, which sorts and filters; leaderboard.html next to this file is its form.

It can be stopped at any time: finished cells are kept in docs/leaderboard/data, runs and returns in runs/leaderboard.
"""

import argparse
import dataclasses
import html
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import load_config
from turnwise.diagnostics.costs import token_services
from turnwise.diagnostics.fidelity_run import fidelity_method, measure_run
from turnwise.diagnostics.fidelity_show import as_json
from turnwise.diagnostics.noise import Noise
from turnwise.diagnostics.statistics import Interval
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean
from turnwise.files import write_text
from turnwise.tables import Page, Table, page_as_markdown, wrapped
from turnwise.train.display import ConsoleDisplay
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "leaderboard"
PLAN = FOLDER / "plan.toml"
WHENS = ("start", "middle", "end")
DIGITS = 4
"""Digits after the point that are kept."""
FORM = Path(__file__).with_suffix(".html")
"""Form of table.html."""
TITLE, ABOUT = "Leaderboard: which credit is closest to the truth?", "A training with GRPO made the policies."
"""Title of a page, and who played, unless the plan says."""
INTERVALS = {
    "fidelity": ("fidelity",),
    "minus_first": ("minus_first",),
    "gradient": ("gradient", "fidelity"),
    "gradient_minus_first": ("gradient", "minus_first"),
    "transfer": ("gradient", "transfer", "transfer"),
    "transfer_minus_first": ("gradient", "transfer", "minus_first"),
    "drift": ("drift", "drift"),
    "drift_minus_first": ("drift", "minus_first"),
}
"""Where the data has the intervals that table.html shows."""
LIMITS = (
    "Fidelity is not learning: nothing here was trained with any method but GRPO.",
    "Entropy drift is a first-order rate in a table of independent states: shared weights are left out.",
    "Each cell is one policy of one seed, of a tiny model.",
    "Intervals are over a few groups, so that most differences are not significant.",
    "Intervals are not corrected for the number of comparisons: of 40 without any difference, two lie apart by chance, "
    "and four to six where rewards are rare, for there they are too short.",
    "Times are those of the credit alone, on one processor with a few hundred responses: not those of a training step.",
    "A critic is ridge regression on other groups of the same policy; in training its weights are of earlier steps.",
    "Methods that need probes, forks or a second model are left out: the column of extra tokens is 0 throughout.",
    "Options are each method's defaults, except those in its name.",
    "Success is that of the groups that were played, without an interval. The signal has one standard error, and times "
    "have the ends of their rounds, where the rest has 95 % intervals.",
)
"""What the numbers of any plan do not say; a plan may add `limits` of its own."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One environment at one time of training."""

    environment: str
    when: str
    data: dict[str, Any]

    def interval(self, method: str, *path: str) -> Interval | None:
        """Return an interval from the data, such as that of ("gradient", "fidelity"); None if it is not there.

        A method that gave no credit has a fidelity of 0, and nothing else.
        """
        found: Any = self.data
        for name in (*path, method):
            found = (found or {}).get(name)
        return Interval(**found) if found and (path == ("fidelity",) or self.has_credit(method)) else None

    def has_credit(self, method: str) -> bool:
        """Return whether a method gave any credit: if not, nothing varies with the groups."""
        found = self.data.get("fidelity", {}).get(method)
        return not (found and found["low"] == found["high"] == 0)

    def signal(self, method: str) -> Noise | None:
        """Return signal and noise of one group's gradient; None if fewer than two groups have a gradient."""
        found = (self.data["gradient"] or {}).get("noise", {}).get(method)
        return Noise(**found) if found and found["error"] else None

    def time(self, method: str, first: str) -> list[float] | None:
        """Return the time of a method's credit by that of the first: best by best, least and most of one round."""
        times = self.data.get("milliseconds") or {}
        if not {method, first} <= times.keys():
            return None
        rounds = [one / other for one, other in zip(times[method], times[first], strict=True)]
        return [min(times[method]) / min(times[first]), min(rounds), max(rounds)]

    def milliseconds(self, method: str) -> list[float] | None:
        """Return the time of a method's credit per 1,000 responses: the best, the best again, and the worst round."""
        times = (self.data.get("milliseconds") or {}).get(method)
        return [min(times), min(times), max(times)] if times else None


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

    With `seeds`, there is an environment for every seed, such as "household-1" for a policy of seed 1.

    Raises:
        ConfigError: The other plan has no such environment.
    """
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    if "like" in plan:
        other = read_plan(path.parent / plan.pop("like"))
        picked = {name: environment(other, name) for name in plan.pop("environments", other["environments"])}
        own = ("about", "title", "command", "limits")  # what a page says of itself
        plan = {**{key: value for key, value in other.items() if key not in own}, **plan, "environments": picked}
    if "seeds" in plan:
        plan["environments"] = {
            f"{name}-{seed}": {**of, "settings": [*of["settings"], f"run.seed={seed}"]}
            for seed in plan["seeds"]
            for name, of in plan["environments"].items()
        }
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
                    on_progress=lambda done, total, what=f"histories of {path.stem}": display.count(what, done, total),
                )
                write_text(path, as_lines(rounded({"groups": groups, **as_json(found)})) + "\n")
        display.count("environments of the leaderboard", len(names), len(names))


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
    folder, config = RunFolder.open(path)
    finished = (folder.checkpoints / f"step-{config.run.steps:06d}").is_dir()  # saved after the last evaluation
    return (folder if finished else train(config, resume=path)), middle


def rounded(value: Any) -> Any:
    """Round every number and leave out p-values, which no page shows, so that the data stays small and readable."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if name != "p"}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def write_page(plan: Mapping[str, Any], folder: Path) -> None:
    """Write README.md and table.html of the leaderboard from its data.

    Raises:
        ConfigError: There is no data.
    """
    cells = [
        Cell(name, when, json.loads(path.read_text(encoding="utf-8")))
        for name in plan["environments"]
        for when in WHENS
        if (path := folder / "data" / f"{name}-{when}.json").exists()
    ]
    if not cells:
        raise ConfigError(f"{folder / 'data'} has no data; run without --page to make it")
    write_text(folder / "README.md", page_as_markdown(page(plan, cells)))
    write_text(folder / "table.html", sortable(plan, cells))


def sortable(plan: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """Compose the page that sorts and filters: the form with the numbers, one per line."""
    first = plan["methods"][0]
    services = {method: token_services(fidelity_method(method)) for method in plan["methods"]}
    told: list[dict[str, Any]] = []
    for cell in cells:
        methods: dict[str, dict[str, Any]] = {}
        for method in plan["methods"]:
            found = {key: cell.interval(method, *path) for key, path in INTERVALS.items()}
            signal = cell.signal(method)
            numbers = {key: [one.value, one.low, one.high] if one else None for key, one in found.items()}
            times = {"time": cell.time(method, first), "milliseconds": cell.milliseconds(method)}
            numbers |= {"signal": list(signal.share) if signal else None, **times}
            if numbers["fidelity"]:
                numbers["fidelity"] = numbers["fidelity"] if cell.has_credit(method) else None
                methods[method] = {key: one for key, one in rounded(numbers).items() if one}
                methods[method]["services"] = services[method]
        about = {key: cell.data[key] for key in ("step", "success", "groups", "histories", "continuations")}
        told.append({"environment": cell.environment, "when": cell.when, **about, "methods": methods})
    data = as_lines({"first": first, "whens": WHENS, "cells": told}).replace("</", "<\\/")
    limits = "\n".join(wrapped(f"  <li>{html.escape(text)}</li>") for text in limits_of(plan))
    form = FORM.read_text(encoding="utf-8")
    about = wrapped(f"  <p>{html.escape(plan.get('about', ABOUT).replace('`', ''), quote=False)}</p>")
    texts = {"TITLE": html.escape(plan.get("title", TITLE)), "ABOUT": about, "COMMAND": html.escape(plan["command"])}
    for mark, text in texts.items():
        form = form.replace(mark, text)
    return form.replace("LIMITS", limits).replace("DATA", data)


def limits_of(plan: Mapping[str, Any]) -> list[str]:
    """Return what the numbers of a plan do not say."""
    return [*LIMITS, *plan.get("limits", [])]


def as_lines(value: Any) -> str:
    """Write JSON with a line per entry; lists and entries of plain numbers and names stay on one."""
    if isinstance(value, dict) and any(isinstance(one, (dict, list)) for one in value.values()):
        return "{" + ",".join(f"\n{json.dumps(name)}:{as_lines(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ",".join(map(as_lines, value)) + "]"
    return json.dumps(value, allow_nan=False)


def page(plan: Mapping[str, Any], cells: Sequence[Cell]) -> Page:
    """Compose the page."""
    first, docs = plan["methods"][0], plan.get("docs", "..")
    missing = [name for name in plan["environments"] if name not in {cell.environment for cell in cells}]
    lacking = f" Not measured yet: {', '.join(missing)}." if missing else ""
    parts: list[str | Table] = [
        f"# {plan.get('title', TITLE)}",
        "Fidelity is the cosine between a method's advantages and the true ones, estimated by fresh continuations "
        f"([how]({docs}/how-to/fidelity.md)). All methods of a table see the same trajectories. "
        f"{plan.get('about', ABOUT)}{lacking} Estimates are corrected for noise, "
        "so they can pass 1 where little is known. A history is a trajectory up to a turn; `+peers` and `+visits` are "
        f"[critics that see the group]({docs}/tutorials/03-a-critic-for-turns.md#3-a-critic-in-a-recipe). Rows are "
        f"sorted by how much more often they are above {first} than below. [Compare a method of yours]({docs}/how-to/"
        "fidelity.md#the-leaderboard); read [the limits](#what-it-does-not-say) first.",
        f"`{plan['command']}` plays what is missing and writes this page; with "
        "`--page` it writes it from the data beside it alone.",
        "**[The same in one table that sorts and filters](table.html)**, with time and extra tokens. Open it on the "
        "site or in a clone; it needs no network.",
        f"## Told apart from {first}",
        "In how many of the cells (an environment at the start, the middle or the end of training) the 95 % interval "
        f"of the difference to {first}, paired by group, lies above or below zero. Not corrected for the number of "
        "comparisons: of 40 without any difference, two lie apart by chance, and four to six where rewards are rare, "
        "for there intervals are too short.",
        told_apart(plan, cells),
    ]
    if "show" in plan:
        parts += [f"## {plan['show']} minus {first}", differences(plan, cells)]
    for cell in cells:
        about = (
            f"Step {cell.data['step']}, success {cell.data['success']:.2f}, {cell.data['groups']} groups, "
            f"{cell.data['histories']} histories, {cell.data['continuations']} continuations each. 95 % intervals over "
            "groups."
        )
        parts += [f"## {cell.environment}, {cell.when}", about, cell_table(plan, cell)]
    parts += [
        "## What it does not say",
        " ".join(limits_of(plan)),
    ]
    return parts


def told_apart(plan: Mapping[str, Any], cells: Sequence[Cell]) -> Table:
    """Count by method the cells in which it is above or below the first method."""
    first, *others = plan["methods"]
    rows = []
    for method in others:
        differences = [one for cell in cells if (one := cell.interval(method, "minus_first"))]
        if not differences:
            continue
        gradient = [one for cell in cells if (one := cell.interval(method, "gradient", "minus_first"))]
        counts = [sum(one.low > 0 for one in differences), sum(one.high < 0 for one in differences)]
        counts += [sum(one.low > 0 for one in gradient), sum(one.high < 0 for one in gradient)]
        transfer = [one for cell in cells if (one := cell.interval(method, *INTERVALS["transfer_minus_first"]))]
        counts += [sum(one.low > 0 for one in transfer), sum(one.high < 0 for one in transfer)]
        rows.append((method, *map(str, counts), str(len(differences))))
    rows.sort(key=lambda row: int(row[2]) - int(row[1]))
    return [
        (
            "method",
            f"above {first}",
            f"below {first}",
            "gradient above",
            "gradient below",
            "transfer above",
            "transfer below",
            "cells",
        ),
        *rows,
    ]


def differences(plan: Mapping[str, Any], cells: Sequence[Cell]) -> Table:
    """Tabulate the differences of one method, `show` in the plan, to the first method in all cells."""
    names = {"minus_first": "fidelity", "gradient_minus_first": "of the gradient", "transfer_minus_first": "transfer"}
    rows = []
    for cell in cells:
        found = [cell.interval(plan["show"], *INTERVALS[name]) for name in names]
        texts = [one.text(sign=True) if one else "-" for one in found]
        rows.append((cell.environment, cell.when, f"{cell.data['success']:.2f}", *texts))
    return [("environment", "time", "success", *names.values()), *rows]


def cell_table(plan: Mapping[str, Any], cell: Cell) -> Table:
    """Tabulate the methods in one cell, best first."""
    first = plan["methods"][0]
    rows = []
    for method in plan["methods"]:
        one = cell.interval(method, "fidelity")
        if one is None:
            continue
        signal = cell.signal(method)
        texts = [
            text.text(sign=name in ("minus_first", "drift"))
            if (text := cell.interval(method, *INTERVALS[name]))
            else "-"
            for name in ("minus_first", "gradient", "transfer", "drift")
        ]
        fidelity = one.text() if cell.has_credit(method) else "no credit"
        rows.append((one.value, (method, fidelity, *texts, signal.share_text() if signal else "-")))
    rows.sort(key=lambda row: -row[0])
    head = (
        "method",
        "fidelity",
        f"minus {first}",
        "of the gradient",
        "transfer",
        "entropy drift",
        "signal of one group",
    )
    return [head, *(row for _, row in rows)]


if __name__ == "__main__":
    sys.exit(main())
