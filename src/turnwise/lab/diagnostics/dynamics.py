"""Run analyses B, C and D of AEM's paper on metrics: entropy under masked gradients, dynamics, cost by stage."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from turnwise.base.errors import RunError
from turnwise.base.figures import LIGHT, arm_colors, whole_numbers
from turnwise.credit.methods.build import build_method
from turnwise.credit.transforms import entropy_coefficient
from turnwise.lab.diagnostics.recredit import read_recorded, recorded_steps
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.show import shade
from turnwise.lab.diagnostics.statistics import contrast

CURVES = (
    ("credit/entropy", "mean token entropy (nats)"),
    ("rollout/success", "success in training"),
    ("credit/positive_frac", "responses with A > 0"),
)
STAGES = ("rollout", "score", "measure", "credit", "update", "weights", "eval")
PAPER_COST = "1.1 %"
ERUPTS = 1.5
"""Entropy has erupted where its mean over three steps is this many times the lowest one before."""
KEEPS = {"positive": "falls", "negative": "rises"}
"""Change of entropy that the theorem predicts if only responses with this sign of A * (alpha - 1) teach."""


def by_label(runs: Sequence[RunLog]) -> dict[str, list[RunLog]]:
    """Group runs by method, in the given order."""
    arms: dict[str, list[RunLog]] = defaultdict(list)
    for run in runs:
        arms[run.label].append(run)
    return dict(arms)


def curve(runs: Sequence[RunLog], name: str, *, beside: Sequence[RunLog] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps that `runs` and `beside` have in common, `[steps]`, and a metric of `runs`, `[runs, steps]`."""
    found = [_by_step(run, name) for run in runs]
    steps = sorted(set.intersection(*map(set, found), *(set(_by_step(run, name)) for run in beside)))
    return np.array(steps), np.array([[values[step] for step in steps] for values in found]).reshape(len(runs), -1)


def _common_curve(runs: Sequence[RunLog], name: str, everyone: Sequence[RunLog]) -> np.ndarray:
    """Return a metric of `runs`, `[runs, steps]`, at the steps that all runs have."""
    steps, values = curve(runs, name, beside=everyone)
    if len(steps) < 3:
        raise RunError(f"these runs have {len(steps)} common steps, expected 3 or more; remove runs with few steps")
    return values


def _by_step(run: RunLog, name: str) -> dict[int, float]:
    return {record["step"]: record[name] for record in run.records if name in record}


def dynamics_figure(arms: Mapping[str, Sequence[RunLog]]) -> Figure:
    """Plot entropy, success and balance of samples by step: mean and 95 % over the runs of each arm."""
    made = Figure(figsize=(13, 3.6), layout="constrained")
    places, colors = made.subplots(1, 3), arm_colors(arms)
    for axes, (name, label) in zip(places, CURVES, strict=True):
        for arm, runs in arms.items():
            steps, values = curve(runs, name)
            axes.plot(steps, values.mean(axis=0), color=colors[arm], label=f"{arm} ({len(runs)})")
            shade(axes, steps, values, colors[arm])
        axes.set(xlabel="step", title=label)
        whole_numbers(axes)
    places[-1].legend(fontsize=8)
    return made


def dynamics_table(arms: Mapping[str, Sequence[RunLog]]) -> list[tuple[str, ...]]:
    """Tabulate means over the first, middle and last third of the common steps, and eruptions, by arm and curve."""
    everyone = [run for runs in arms.values() for run in runs]
    lines: list[tuple[str, ...]] = [
        ("arm", "runs", "what", "first third", "middle", "last", "last - first", "entropy erupts")
    ]
    for arm, runs in arms.items():
        for name, label in CURVES:
            values = _common_curve(runs, name, everyone)
            thirds = [part.mean(axis=1) for part in np.array_split(values, 3, axis=1)]
            change = contrast([thirds[2] - thirds[0]], [1.0]).text(sign=True)
            erupts = f"in {np.count_nonzero(erupted(values))} of {len(runs)}" if name == "credit/entropy" else ""
            lines.append((arm, str(len(runs)), label, *(f"{part.mean():.3f}" for part in thirds), change, erupts))
    return lines


def erupted(values: np.ndarray) -> np.ndarray:
    """Return which runs' entropy, `[runs, steps]`, erupts; agents' entropy does so in cycles (arXiv 2605.27954)."""
    mean_of_three = np.stack([values[:, :-2], values[:, 1:-1], values[:, 2:]]).mean(axis=0)
    return (mean_of_three / np.minimum.accumulate(mean_of_three, axis=1)).max(axis=1) >= ERUPTS


def masked_table(runs: Sequence[RunLog]) -> list[tuple[str, ...]]:
    """Tabulate whether entropy changed as the theorem predicts, by `method.keep`.

    Raises:
        RunError: No run has `method.keep`, or the runs have fewer than 3 steps in common.
    """
    arms: dict[str, list[RunLog]] = defaultdict(list)
    for run in runs:
        arms[str(run.config.method.options.get("keep", "all"))].append(run)
    if not set(arms) & set(KEEPS):
        raise RunError(
            "none of these runs masked its gradients; train some with method.keep=positive and method.keep=negative, "
            "as `turnwise study studies/aem-masked.toml` does"
        )
    lines: list[tuple[str, ...]] = [
        ("kept: sign of A (alpha - 1)", "runs", "entropy at first", "at last", "change", "theorem", "agrees")
    ]
    for keep, kept in sorted(arms.items()):
        values = _common_curve(kept, "credit/entropy", runs)
        edge = max(1, values.shape[1] // 5)
        first, last = values[:, :edge].mean(axis=1), values[:, -edge:].mean(axis=1)
        change, said = contrast([last - first], [1.0]), KEEPS.get(keep, "-")
        agrees = "-" if said == "-" else "yes" if (change.value < 0) == (said == "falls") else "no"
        agrees += ", interval covers 0" if said != "-" and not change.shown else ""
        lines.append(
            (keep, str(len(kept)), f"{first.mean():.3f}", f"{last.mean():.3f}", change.text(sign=True), said, agrees)
        )
    return lines


def cost_table(run: RunLog, *, repeats: int = 5) -> list[tuple[str, ...]]:
    """Tabulate seconds per step by stage, and the cost of AEM, timed on the run's own batches.

    Raises:
        RunError: No step learned anything.
    """
    steps = [record for record in run.records if "time/rollout_s" in record]
    if not steps:
        raise RunError(f"{run.folder.path} has no training step yet; train it first")
    seconds = {stage: sum(record.get(f"time/{stage}_s", 0.0) for record in steps) / len(steps) for stage in STAGES[:-1]}
    total = sum(seconds.values())
    lines: list[tuple[str, ...]] = [("stage", "seconds per step", "share", "paper")]
    lines += [(stage, f"{spent:.4f}", f"{spent / total:.2%}", "-") for stage, spent in seconds.items()]
    lines.append(("whole step", f"{total:.4f}", "100%", "-"))
    own = aem_seconds(run, repeats=repeats)
    lines.append(("AEM alone, in credit", f"{own:.4f}", f"{own / total:.3%}", PAPER_COST))
    return lines


def aem_seconds(run: RunLog, *, repeats: int = 5, batches: int = 5) -> float:
    """Measure the median seconds that AEM adds to the credit of a step, over some recorded steps."""
    steps = recorded_steps(run.folder)
    chosen = [steps[place] for place in np.linspace(0, len(steps) - 1, min(batches, len(steps))).astype(int)]
    spent = []
    for recorded in filter(
        None,
        (read_recorded(run.folder, step, invalid_penalty=run.config.environment.invalid_penalty) for step in chosen),
    ):
        base_R = build_method("grpo", {})(recorded.batch)
        for _ in range(repeats):
            start = time.perf_counter()
            _ = base_R * entropy_coefficient(recorded.batch)
            spent.append(time.perf_counter() - start)
    if not spent:
        raise RunError(f"{run.folder.path} has no recorded step that learned anything; choose another run")
    return float(np.median(spent))


def cost_figure(run: RunLog, table: Sequence[Sequence[str]]) -> Figure:
    """Plot seconds per step by stage."""
    made = Figure(figsize=(6, 2.8), layout="constrained")
    axes = made.subplots()
    lines = [line for line in table[1:] if line[0] != "whole step"]
    names, values = [line[0] for line in lines], [float(line[1]) for line in lines]
    axes.barh(names[::-1], values[::-1], color=LIGHT.main)
    axes.set(
        xlabel="seconds per step", title=f"{run.folder.path.name}: AEM {lines[-1][2]} of a step (paper: {PAPER_COST})"
    )
    return made
