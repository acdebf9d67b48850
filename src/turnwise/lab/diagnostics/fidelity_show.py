"""Show the fidelity of methods as tables, a figure and JSON."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from turnwise.base.figures import LIGHT
from turnwise.lab.diagnostics.fidelity import Fidelities
from turnwise.lab.diagnostics.fidelity_gradient import PERFECT
from turnwise.lab.diagnostics.fidelity_record import equal_columns
from turnwise.lab.diagnostics.fidelity_run import FIFTHS, PLAYS_ON, FidelityOfRun
from turnwise.lab.diagnostics.statistics import Interval

MOST = 4
"""Methods that are compared by kind of response: more do not fit beside each other."""


def fidelity_table(found: FidelityOfRun) -> list[tuple[str, ...]]:
    """Tabulate fidelity by method, best first, and the difference to the first method."""
    first = next(iter(found.fidelities.by_method))
    gradient = found.gradient
    further = ("gradient", f"gradient minus {first}", "transfer", f"transfer minus {first}", "signal of one group")
    rows: list[tuple[str, ...]] = [
        ("method", "fidelity", f"minus {first}", "needed", "entropy drift", *(further if gradient else ()))
    ]
    for names in equal_methods(found):
        name, one = names[0], found.fidelities.by_method[names[0]]
        needed = f"{one.value**-2:.1f} x" if one.low > 0 else "not seen"
        drift = found.drift.by_method[name].text(sign=True) if found.drift else "-"
        row = (" = ".join(names), one.text(), _above(found.fidelities, name), needed, drift)
        if gradient:
            row = (*row, *_both(gradient.fidelities, name), *_both(gradient.transfer, name))
            row = (*row, gradient.noise[name].share_text())
        rows.append(row)
    if gradient:
        row = (PERFECT, "1", "-", "1 x", "-", "1", "-", *_both(gradient.transfer, PERFECT))
        rows.append((*row, gradient.noise[PERFECT].share_text()))
    return rows


def equal_methods(found: FidelityOfRun) -> list[list[str]]:
    """List the methods, best first; those that gave every response the same credit are one entry."""
    known = (
        equal_columns(found.responses)
        if found.responses is not None
        else [[name] for name in found.fidelities.by_method]
    )
    return sorted(known, key=lambda names: -found.fidelities.by_method[names[0]].value)


def _both(fidelities: Fidelities | None, name: str) -> tuple[str, str]:
    """Write a cosine and its difference to that of the first method; dashes if unknown."""
    if fidelities is None:
        return "-", "-"
    return fidelities.by_method[name].text(), _above(fidelities, name)


def _above(fidelities: Fidelities, name: str) -> str:
    """Write the difference to the first method."""
    above = fidelities.above_first.get(name)
    return above.text(sign=True) if above else "-"


def importance_table(found: FidelityOfRun) -> list[tuple[str, ...]]:
    """Tabulate how much is decided by which responses, and the coefficient of modulation by entropy."""
    rows: list[tuple[str, ...]] = [("responses", "share", "mean A*^2", "mean alpha")]
    for one in found.importance:
        rows.append((one.kind, f"{one.share:.0%}", one.square.text(4), f"{one.alpha:.3f}"))
    return rows


def places_table(found: FidelityOfRun) -> list[tuple[str, ...]]:
    """Tabulate where credit is close to the truth: fidelity of the first method, and what others have above it.

    Empty if more than `MOST` methods give different credit.
    """
    order = list(found.fidelities.by_method)
    first, *others = sorted((min(same, key=order.index) for same in equal_methods(found)), key=order.index)
    if not 1 <= len(others) < MOST:
        return []
    rows: list[tuple[str, ...]] = [("responses", first, *(f"{name} - {first}" for name in others))]
    for one in found.importance:
        if there := one.fidelities:
            rows.append((one.kind, there.by_method[first].text(), *(_above(there, name) for name in others)))
    return rows


def verdict(found: FidelityOfRun) -> str:
    """State in one sentence whether modulation by entropy favours the responses that decide more."""
    surest, least_sure = (
        next((one for one in found.importance if one.kind == f"entropy, {name} fifth"), None)
        for name in (FIFTHS[0], FIFTHS[-1])
    )
    if surest is None or least_sure is None:
        return "Entropies hardly differ, so modulation by entropy changes little here."
    if surest.square.low > least_sure.square.high:
        finding = "The surest fifth of responses decides more than the most uncertain one"
        return f"{finding}: modulation favours the right ones."
    if surest.square.high < least_sure.square.low:
        finding = "The most uncertain fifth of responses decides more than the surest one"
        return f"{finding}: modulation favours the wrong ones."
    return "Whether the surest or the most uncertain responses decide more is not shown: their intervals overlap."


def lacking_lines(found: FidelityOfRun) -> list[str]:
    """List what could not be measured: values whose continuations failed, gradients, methods; empty if nothing."""
    lines: list[str] = []
    if found.failed:
        diverged = f" ({found.diverged} since their replays diverged)" if found.diverged else ""
        lines.append(
            f"{found.failed} of {found.histories * found.continuations} continuations failed{diverged} and are left "
            f"out; the true advantage of {found.unknown} responses is unknown."
        )
    if found.gradient and not found.gradient.fidelities:
        lines.append("True gradients are not significantly different from zero; try more --groups or --continuations.")
    playing = sorted(name for name, cause in found.left_out.items() if cause == PLAYS_ON)
    if playing:
        lines.append(f"Not measured, since they continue from every turn themselves: {', '.join(playing)}; name them")
    if others := sorted(found.left_out.keys() - set(playing)):
        lines.append(f"Not measured, for lack of columns, or of tasks for a critic: {', '.join(others)}")
    return lines


def critics_lines(found: FidelityOfRun) -> list[str]:
    """State in one line how much critics explain; empty if no method needed one."""
    shares = [f"{share:.2f} from the {what}" for what, share in found.explained.items()]
    return [f"Share of the variance of true values that a critic explains: {', '.join(shares)}."] if shares else []


def fidelity_figure(found: FidelityOfRun) -> Figure:
    """Plot fidelity by method, and the mean squared true advantage by fifth of entropy next to the coefficient."""
    by_method = sorted(found.fidelities.by_method.items(), key=lambda item: item[1].value)
    made = Figure(figsize=(10.5, max(4.0, 1.2 + 0.24 * len(by_method))), layout="constrained")
    left, right = made.subplots(1, 2, width_ratios=[3, 2])
    values = [one.value for _, one in by_method]
    reach = _reach([one for _, one in by_method])
    left.errorbar(values, range(len(values)), xerr=reach, fmt="o", color=LIGHT.main, markersize=4, capsize=2)
    left.axvline(0, color="0.6", linewidth=1)
    left.set(
        yticks=range(len(values)),
        yticklabels=[name for name, _ in by_method],
        xlabel="fidelity: cosine with the true advantages, 95 % over groups",
        title=f"step {found.step}, success {found.success:.2f}",
    )
    fifths = [one for one in found.importance if one.kind.startswith("entropy")]
    places = range(len(fifths))
    right.bar(places, [one.square.value for one in fifths], color=LIGHT.pale, label="mean A*^2")
    reach = _reach([one.square for one in fifths])
    right.errorbar(places, [one.square.value for one in fifths], yerr=reach, fmt="none", ecolor=LIGHT.ink, capsize=2)
    right.set(
        xticks=places,
        xticklabels=[one.kind[len("entropy, ") : -len(" fifth")].replace("most ", "most\n") for one in fifths],
        xlabel="fifth of response entropy",
        ylabel="mean A*^2: how much is decided",
        title="which responses decide",
    )
    other = right.twinx()
    other.plot(places, [one.alpha for one in fifths], "o-", color=LIGHT.other, label="mean alpha")
    other.set_ylabel("mean alpha")
    handles = [axes.get_legend_handles_labels() for axes in (right, other)]
    right.legend([h for pair in handles for h in pair[0]], [t for pair in handles for t in pair[1]], loc="upper center")
    return made


def _reach(intervals: Sequence[Interval]) -> list[list[float]]:
    """Return the lengths of error bars, below and above; an estimate corrected for noise may lie outside of its own."""
    reach = [(one.value - one.low, one.high - one.value) for one in intervals]
    return [[max(0.0, end) for end in ends] for ends in zip(*reach, strict=True)]


def as_json(found: FidelityOfRun) -> dict[str, Any]:
    """Convert to plain data."""

    def plain(intervals: Mapping[str, Interval]) -> dict[str, dict[str, float]]:
        return {name: dataclasses.asdict(one) for name, one in intervals.items()}

    def both(fidelities: Fidelities, name: str) -> dict[str, Any]:
        return {name: plain(fidelities.by_method), "minus_first": plain(fidelities.above_first)}

    by_kind = bool(places_table(found))
    gradient = found.gradient and {
        **(both(found.gradient.fidelities, "fidelity") if found.gradient.fidelities else {}),
        "transfer": found.gradient.transfer and both(found.gradient.transfer, "transfer"),
        "noise": {name: dataclasses.asdict(one) for name, one in found.gradient.noise.items()},
    }
    return {
        **{name: getattr(found, name) for name in ("step", "success", "groups", "histories")},
        **{name: getattr(found, name) for name in ("failed", "diverged", "unknown", "continuations")},
        **both(found.fidelities, "fidelity"),
        "drift": found.drift and both(found.drift, "drift"),
        "explained": {what: share for what, share in found.explained.items() if math.isfinite(share)},
        "extra_tokens": found.extra_tokens,
        "milliseconds": found.milliseconds,
        "importance": [
            {"kind": one.kind, "share": one.share, "square": dataclasses.asdict(one.square), "alpha": one.alpha}
            | (both(one.fidelities, "fidelity") if one.fidelities and by_kind else {})
            for one in found.importance
        ],
        "gradient": gradient,
        "left_out": found.left_out,
    }
