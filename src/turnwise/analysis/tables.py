"""Tables of bias and drift, for the terminal and for Markdown."""

from collections.abc import Iterable, Sequence

from turnwise.analysis.bias import Measurement, Row
from turnwise.analysis.drift import REGIMES, Drift
from turnwise.analysis.worlds import WORLDS
from turnwise.tables import Table

NOISE = "variance, RLOO = 1"


def summary(rows: Iterable[Row]) -> Table:
    """All worlds in one line a method: the worst direction, and the noise from the best world to the worst."""
    table: list[Sequence[str]] = [("method", "expected gradient", "cosine", "worst in", "bias", "raw bias", NOISE, "K")]
    for row in rows:
        worst, noise, sizes = row.worst, [m.noise_vs_rloo for m in row.measured], [m.size for m in row.measured]
        table.append((
            row.name,
            declared(row),
            f"{worst.cosine:.3f}",
            "-" if worst.bias < 5e-4 else worst.world,
            f"{max(m.bias for m in row.measured):.3f}",
            f"{max(m.raw_bias for m in row.measured):.2f}",
            _between(_short(min(noise)), _short(max(noise))),
            _between(str(min(sizes)), str(max(sizes))),
        ))  # fmt: skip
    return table


def in_one_world(rows: Iterable[Row]) -> Table:
    """Every method's direction, length and noise in the first of its worlds; a line of dashes if it has none."""
    table: list[Sequence[str]] = [("method", "expected gradient", "cosine", "bias", "raw bias", "length", NOISE, "K")]
    for row in rows:
        if not row.measured:
            table.append((row.name, declared(row), *["-"] * 6))
            continue
        m = row.measured[0]
        numbers = (f"{m.cosine:.3f}", f"{m.bias:.3f}", f"{m.raw_bias:.2f}", f"{m.factor:.2f}", _short(m.noise_vs_rloo))
        table.append((row.name, declared(row), *numbers, str(m.size)))
    return table


def across_worlds(rows: Sequence[Row], value: str) -> Table:
    """One property of `Measurement`, methods by worlds."""
    worlds = [name for name in WORLDS if any(m.world == name for row in rows for m in row.measured)]
    table: list[Sequence[str]] = [("method", *worlds)]
    for row in rows:
        measured: dict[str, Measurement] = {m.world: m for m in row.measured}
        table.append((row.name, *(_short(getattr(measured[w], value)) if w in measured else "-" for w in worlds)))
    return table


def drifts(measured: Iterable[Drift]) -> Table:
    """Drift of entropy, a line a setting; the last columns are what AEM adds."""
    table: list[Sequence[str]] = [(
        "policy", "advantage", "regime", "sets", "predicted", "natural step", "plain step",
        "AEM: through A < 0", "through A > 0", "in all", "natural step", "plain step", "as meant",
    )]  # fmt: skip
    for d in measured:
        numbers = (d.predicted, d.natural, d.plain, d.aem_failures, d.aem_successes, d.aem, d.aem_natural, d.aem_plain)
        shown = (f"{round(x, 3) + 0.0:+.3f}" for x in numbers)  # no -0.000
        agree = f"{d.agree:.0%}" if REGIMES[d.regime][2] else "-"
        table.append((d.policy, d.advantage, d.regime, str(d.num_sets), *shown, agree))
    return table


def declared(row: Row) -> str:
    """What the method says of its gradient, in a word or two."""
    gradient = row.method.gradient
    return "-" if gradient is None else gradient.kind if gradient.kind == "biased" else str(gradient)


def _short(number: float) -> str:
    return f"{number:.2f}" if abs(number) < 10 else f"{number:.0f}"


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
