"""Make the pages and figures of comparisons and studies."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from turnwise.base.errors import RunError
from turnwise.base.figures import LIGHT, arm_colors, save, whole_numbers
from turnwise.base.files import write_text
from turnwise.base.tables import Page, Table, page_as_markdown
from turnwise.lab.diagnostics.arms import arm_table
from turnwise.lab.diagnostics.compare import RunComparison, compare
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.statistics import Interval, contrast, holm
from turnwise.lab.diagnostics.study import Study, finished, slug

SIGNIFICANCE = {"shown": "#111111", "before correction": "#7d7d7d", "not shown": "#c4c4c4"}
"""Greys of differences, since colours belong to arms."""
HOLM = (
    'Each interval has its own 5 %. "p, Holm" counts all comparisons of the study, even without runs: "shown" means '
    'below 0.05 there, "before correction" that only its own interval excludes zero.'
)
ARMS = "Held-out success of each arm, before and after: means over its finished runs, 95 % over runs"


def page(comparison: RunComparison) -> Page:
    """Make the page of a comparison of two sides."""
    a, b = comparison.names
    return [f"# {a} against {b}", comparison.verdict, table([comparison]), *_details(comparison), *_how(comparison)]


def table(comparisons: Sequence[RunComparison], corrected: Sequence[tuple[float, bool]] | None = None) -> Table:
    """Tabulate comparisons.

    Args:
        comparisons: The comparisons.
        corrected: Holm-corrected p-value of each, and whether it is significant, if they are among several.
    """
    alone = [(c.difference.p, c.difference.shown) for c in comparisons]
    several = ("p, Holm",) * (corrected is not None)
    lines: list[Sequence[str]] = [
        ("A", "B", "unit", "runs", "success of A", "of B", "A - B", "P(A beats B)", "", *several)
    ]
    for c, (p, stands) in zip(comparisons, corrected or alone, strict=True):
        size = str(c.runs[0]) if c.runs[0] == c.runs[1] else f"{c.runs[0]}, {c.runs[1]}"
        shown = "shown" if stands else "before correction" if c.difference.shown else "not shown"
        lines.append(
            (
                *c.names,
                c.unit,
                size,
                f"{c.success[0]:.3f}",
                f"{c.success[1]:.3f}",
                c.difference.text(sign=True),
                c.wins.text(2),
                shown,
                *([p_text(p)] * len(several)),
            )
        )
    return lines


def among_all(comparisons: Sequence[RunComparison], planned: int) -> tuple[list[float], list[bool]]:
    """Return each comparison's Holm-corrected p-value, and whether it is significant; one alone keeps its interval.

    Planned ones without runs yet count too.
    """
    lacking = [math.nan] * (planned - len(comparisons))
    p_values = holm([*(c.difference.p for c in comparisons), *lacking])[: len(comparisons)]
    alone = len(comparisons) + len(lacking) == 1
    return p_values, [c.difference.shown and (alone or p < 0.05) for c, p in zip(comparisons, p_values, strict=True)]


def p_text(p: float) -> str:
    """Write a p-value; a dash if it is missing."""
    return "-" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _details(c: RunComparison) -> Page:
    parts: list[str | Table] = []
    if c.notes:
        parts.append("\n".join(f"* {note}" for note in c.notes))
    if c.efficiency:
        e = c.efficiency
        sizes = [f"{count} of {total}" for count, total in zip(e.reached, c.runs, strict=True)]
        head = ("", c.names[0], c.names[1], "A - B")
        parts.append(
            [
                head,
                (f"runs that reach success {e.level:.3f}", *sizes, ""),
                (
                    f"trajectories until then, at most {e.budget:,.0f}",
                    f"{e.rollouts[0]:,.0f}",
                    f"{e.rollouts[1]:,.0f}",
                    e.difference.text(0, sign=True),
                ),
            ]
        )
    if c.by_type:
        body = [(name, f"{a:.3f}", f"{b:.3f}", f"{a - b:+.3f}", str(n)) for name, (a, b, n) in c.by_type.items()]
        parts.append([("task type", *c.names, "A - B", "episodes of both"), *body])
    if len(c.pairs) > 1:
        body = [(str(pair.seed), f"{pair.a:.3f}", f"{pair.b:.3f}", f"{pair.a - pair.b:+.3f}") for pair in c.pairs]
        parts.append([("seed", *c.names, "A - B"), *body])
    return parts


def _how(c: RunComparison) -> Page:
    """Describe how the numbers were computed."""
    lines = [
        "Success is the mean over held-out episodes of a run's last evaluation, or of the step asked for; of a pair, "
        "over the episodes that both completed; of logs, over the tasks, each with the mean of its attempts.",
        f"Intervals are 95 %, over {c.unit.split(',')[0]}; each end is the outer of a stratified bootstrap's "
        "(corrected for few runs) and Student's; that of P(A beats B) is Wilson's, unpaired the outer of it and of a "
        "bootstrap. With several comparisons on one page each has its own 5 %.",
        "More seeds needed: those that give Student's test a power of 0.8 for the observed difference, by the "
        "noncentral t distribution with the standard deviation of the paired differences (unpaired: sqrt(var A + var "
        "B)). The difference is itself uncertain, so this is an order of magnitude.",
        "Trajectories to a level: linear between evaluations; a run that never gets there counts with the whole "
        "budget.",
    ]
    return ["## How", "\n".join(f"* {line}" for line in lines)]


def figure(comparison: RunComparison, colors: Mapping[str, str] | None = None) -> Figure:
    """Plot learning curves of both sides, and the differences of the pairs with their mean.

    Args:
        comparison: Comparison to plot.
        colors: Colours of the arms of a study; default: of these two.
    """
    colors = colors or arm_colors(comparison.names)
    made = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = made.subplots(1, 2, width_ratios=[3, 2])
    for side, name in zip(comparison.sides, comparison.names, strict=True):
        band(left, side, f"{name} ({len(side)})", colors[name])
    left.set(xlabel="trajectories played", ylabel="held-out success", title="mean and 95 % over runs")
    left.legend(loc="best", fontsize=8)
    d = comparison.difference
    right.axvline(0.0, color="#999999", linewidth=1)
    if len(comparison.pairs) > 1:
        values = sorted(pair.a - pair.b for pair in comparison.pairs)
        right.plot(
            values,
            np.linspace(0.25, 1.0, len(values)),
            "o",
            color=LIGHT.pale,
            markersize=4,
            label="pairs with the same seed",
        )
    _interval(right, d, 0.0, "shown", "mean and 95 %")
    right.legend(loc="best", fontsize=8)
    right.set(xlabel="A - B in success", yticks=[], ylim=(-0.2, 1.15), title="shown" if d.shown else "not shown")
    return made


def curves(arms: Mapping[Path, Mapping[str, Sequence[RunLog]]]) -> Figure:
    """Plot learning curves of all arms, one panel per recipe."""
    made = Figure(figsize=(6 * len(arms), 3.6), layout="constrained")
    colors = arm_colors(name for mine in arms.values() for name in mine)
    for axes, (recipe, mine) in zip(made.subplots(1, len(arms), squeeze=False)[0], arms.items(), strict=True):
        for name, runs in mine.items():
            band(axes, runs, f"{name} ({len(runs)})", colors[name])
        axes.set(xlabel="trajectories played", ylabel="held-out success", title=recipe.stem)
        axes.legend(loc="best", fontsize=8)
    return made


def forest(found: Sequence[tuple[Path, RunComparison]], stand: Sequence[bool]) -> Figure:
    """Plot the difference and interval of each comparison, black if significant after Holm correction.

    Args:
        found: Comparisons, each with its recipe, as `results` returns them.
        stand: Whether each is significant after the correction.
    """
    comparisons = [comparison for _, comparison in found]
    made = Figure(figsize=(8, 1.2 + 0.45 * len(comparisons)), layout="constrained")
    axes = made.subplots()
    axes.axvline(0.0, color="#999999", linewidth=1)
    for place, (c, stands) in enumerate(reversed(list(zip(comparisons, stand, strict=True)))):
        kind = "shown" if stands else "before correction" if c.difference.shown else "not shown"
        _interval(axes, c.difference, place, kind, {"shown": "shown, all counted"}.get(kind, kind))
    several = len({recipe for recipe, _ in found}) > 1
    names = [
        f"{recipe.stem}: " * several + f"{c.names[0]} - {c.names[1]} ({min(c.runs)})" for recipe, c in reversed(found)
    ]
    axes.set(
        xlabel="difference in held-out success, 95 %",
        yticks=range(len(comparisons)),
        yticklabels=names,
        ylim=(-0.6, len(comparisons) - 0.4),
    )
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    made.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), fontsize=8)
    return made


def _interval(axes, d: Interval, place: float, kind: str, label: str) -> None:
    color = SIGNIFICANCE[kind]
    if math.isfinite(d.high - d.low):
        axes.plot([d.low, d.high], [place, place], color=color, linewidth=2, solid_capstyle="butt")
    axes.plot([d.value], [place], "D", color=color, markersize=6, label=label)


def band(axes, runs: Sequence[RunLog], label: str, color: str) -> None:
    """Plot mean success over runs by trajectories played, with a 95 % band for several runs."""
    curves = [run.curve() for run in runs]
    common = sorted(set.intersection(*(set(curve[0].tolist()) for curve in curves)))
    at = [[int(np.flatnonzero(curve[0] == step)[-1]) for step in common] for curve in curves]
    rollouts = np.mean([curve[1][places] for curve, places in zip(curves, at, strict=True)], axis=0)
    success = np.array([curve[2][places] for curve, places in zip(curves, at, strict=True)])
    whole_numbers(axes)
    axes.plot(rollouts, success.mean(axis=0), color=color, marker="o", markersize=3, label=label)
    shade(axes, rollouts, success, color)


def shade(axes, x: np.ndarray, values: np.ndarray, color: str) -> None:
    """Draw the 95 % band of the mean over runs; `values` is `[runs, points]`."""
    if len(values) > 1:
        ends = [contrast([column], [1.0], draws=1000) for column in values.T]
        known = [math.isfinite(end.high - end.low) for end in ends]
        axes.fill_between(
            x, [end.low for end in ends], [end.high for end in ends], where=known, color=color, alpha=0.15, linewidth=0
        )


def write(folder: Path, stem: str, page: Page, made: Figure) -> Path:
    """Write STEM.md and STEM.png atomically and return the Markdown file.

    Raises:
        RunError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(made, folder / f"{stem}.png")
        write_text(folder / f"{stem}.md", f"{page_as_markdown(page)}\n![{stem}]({stem}.png)\n")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None
    return folder / f"{stem}.md"


def _among_verdict(c: RunComparison, p: float, stands: bool) -> str:
    """Format the verdict of one of several comparisons."""
    said = f"* {c.names[0]} against {c.names[1]}: {c.verdict}"
    if c.difference.shown and not stands:
        said += f" Not significant after Holm correction: p {p_text(p)}."
    return said


def results(study: Study, arms: dict[Path, dict[str, list[RunLog]]] | None = None) -> list[tuple[Path, RunComparison]]:
    """Compare the finished arms of a study, by recipe. `arms` is the result of `finished`, if already known."""
    return [
        (recipe, compare(arms[a], arms[b], names=(a, b), name_settings=False))
        for recipe, arms in (finished(study) if arms is None else arms).items()
        for a, b in study.config.compare
        if a in arms and b in arms
    ]


def write_study(study: Study) -> tuple[Path, Page] | None:
    """Write a study's page and figure, and a page per comparison; return the page's file and the page.

    Returns None if no run is finished. Without comparisons, the page has one line per arm.
    """
    arms = finished(study)
    if not arms:
        return None
    found = results(study, arms)
    parts: list[str | Table] = [f"# {study.name}"]
    planned = len(study.config.compare) * len(study.config.recipes)
    p_values, stand = among_all([comparison for _, comparison in found], planned)
    colors = arm_colors(study.config.methods)
    for recipe in arms:
        own = [place for place, (of, _) in enumerate(found) if of == recipe]
        mine, corrected = [found[place][1] for place in own], [(p_values[place], stand[place]) for place in own]
        parts += [f"## {recipe.stem}"]
        for c in mine:
            stem = f"{recipe.stem}-{slug(c.names[0])}-against-{slug(c.names[1])}"
            write(study.folder / "comparisons", stem, page(c), figure(c, colors))
        if mine:
            verdicts = "\n".join(_among_verdict(c, *each) for c, each in zip(mine, corrected, strict=True))
            parts += [table(mine, corrected if planned > 1 else None), *[HOLM] * (planned > 1), verdicts]
        made = arm_table(arms[recipe])
        parts += [f"{ARMS}, and after by task type." if made[0][4:] else f"{ARMS}.", made]
    parts += filter(None, [study.config.notes.strip()])
    drawn = forest(found, stand) if found else curves(arms)
    return write(study.folder, "study", parts, drawn), parts
