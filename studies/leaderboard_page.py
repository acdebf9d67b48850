"""Compose the pages of the leaderboard, or of another plan, from kept data: README.md, and table.html from its form."""

import dataclasses
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.diagnostics.fidelity_run import fidelity_method
from turnwise.diagnostics.noise import Noise
from turnwise.diagnostics.paid import paid_measures
from turnwise.diagnostics.statistics import Interval, contrast, holm
from turnwise.errors import ConfigError
from turnwise.files import write_text
from turnwise.tables import Page, Table, page_as_markdown, wrapped

WHENS = ("start", "middle", "end")
DIGITS = 4
"""Digits after the point that are kept."""
FORM = Path(__file__).with_name("leaderboard.html")
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
    "Extra tokens are those that the credit alone computes, per response: of probes, of a pass of the first policy, of "
    "continuations. A critic computes none.",
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
    free = {method: not paid_measures(fidelity_method(method)) for method in plan["methods"]}
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
                tokens = cell.data.get("extra_tokens", {}).get(method, 0.0 if free[method] else None)
                methods[method]["tokens"] = tokens if tokens is None else round(tokens, 1)
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
    if "seeds" in plan:
        parts += [
            "## Over policies",
            "Mean fidelity over policies of several seeds, and the mean difference with its 95 % interval over them, "
            "the wider of bootstrap and Student's t at each end. p is Student's, after Holm over all rows. A policy "
            "counts where fidelity could be measured for both.",
            over_policies(plan, cells),
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


def over_policies(plan: Mapping[str, Any], cells: Sequence[Cell]) -> Table:
    """Tabulate the mean difference to the first method over the policies of each environment."""
    first, *others = plan["methods"]
    rows: list[tuple[str, ...]] = []
    found: list[Interval] = []
    for name, when in dict.fromkeys((cell.environment.rpartition("-")[0], cell.when) for cell in cells):
        mine = [cell for cell in cells if (cell.environment.rpartition("-")[0], cell.when) == (name, when)]
        for method in others:
            measured = [cell for cell in mine if cell.interval(method, "minus_first")]
            if not measured:
                continue
            of_methods = [
                [one.value for cell in measured if (one := cell.interval(which, "fidelity"))]
                for which in (method, first)
            ]
            found.append(contrast([np.subtract(*of_methods)], [1.0]))
            means = [f"{np.mean(values):.3f}" for values in of_methods]
            rows.append((name, when, method, str(len(measured)), *means, found[-1].text(sign=True)))
    corrected = holm([one.p for one in found])
    head = ("environment", "time", "method", "policies", "fidelity", f"of {first}", "difference", "p")
    shown = ("-" if math.isnan(p) else f"{p:.3f}" for p in corrected)
    return [head, *((*row, p) for row, p in zip(rows, shown, strict=True))]


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
