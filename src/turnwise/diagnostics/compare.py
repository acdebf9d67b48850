"""Is A better than B? Runs paired by seed, their episodes by task, and a verdict that knows its own limits."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.diagnostics.runs import Run, last_step, outcomes, split_finished
from turnwise.diagnostics.statistics import (
    Interval,
    contrast,
    detectable,
    pairs_needed,
    win_probability,
    win_probability_unpaired,
)
from turnwise.errors import RunError
from turnwise.segments import Labels
from turnwise.train.outcomes import Episode

ALL = "all"
MANY = 1000
"""More seeds than that are not counted out: nobody runs them, and the estimate is not that good."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two runs that began alike: the same world and seed.

    Attributes:
        seed: Of both.
        a: Success of A on the episodes that both played to an end.
        b: Success of B on them.
        by_task: `[tasks]` A's success minus B's, a mean over the episodes of a task; a single number where only means were kept.
    """

    seed: int
    a: float
    b: float
    by_task: np.ndarray


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """Trajectories played until held-out success reaches a level; a run that never does counts with the whole budget.

    Attributes:
        level: The success to reach.
        budget: Trajectories that all runs have played.
        reached: How many runs of A, and of B.
        rollouts: Their means.
        difference: A minus B; below 0, A needs fewer.
    """

    level: float
    budget: float
    reached: tuple[int, int]
    rollouts: tuple[float, float]
    difference: Interval


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A against B.

    Attributes:
        names: Of A and B.
        unit: What was resampled: "seeds, paired", "runs, not paired", or "tasks, paired" for one run each.
        runs: How many of A and of B count.
        success: Mean success of each.
        difference: A minus B.
        wins: Probability that A beats B.
        spread: Standard deviation of the differences between pairs; for unpaired runs, `sqrt(var_A + var_B)`.
        pairs: The pairs, if paired.
        efficiency: How many trajectories it takes.
        by_type: Task type to success of A, of B, and their number of episodes.
        notes: What a reader must know.
        sides: The runs of A and B.
    """

    names: tuple[str, str]
    unit: str
    runs: tuple[int, int]
    success: tuple[float, float]
    difference: Interval
    wins: Interval
    spread: float
    pairs: list[Pair]
    efficiency: Efficiency | None
    by_type: dict[str, tuple[float, float, int]]
    notes: list[str]
    sides: tuple[list[Run], list[Run]]

    @property
    def of_methods(self) -> bool:
        """Whether the interval is about the methods; that of one run each is about these two policies alone."""
        return not self.unit.startswith("tasks")

    @property
    def verdict(self) -> str:
        """What may be said."""
        gap = f"{self.difference.text(sign=True)}, 95 %"
        what = "success" if self.of_methods else "success of these two runs, which says nothing about other seeds"
        if self.difference.shown:
            better = self.names[0] if self.difference.value > 0 else self.names[1]
            return f"Shown: {better} is better. Difference {gap}, in {what}."
        if not math.isfinite(self.difference.high - self.difference.low):
            none = "neither side won a game" if not any(self.success) else "the runs give no spread to go by"
            said = f"Not shown: there is no interval, {none}. Difference {gap}, in {what}."
            return f"{said} More of each side are needed." if self.of_methods and any(self.success) else said
        said = f"Not shown: the interval of the difference covers zero. Difference {gap}, in {what}."
        if not 0.0 < self.spread < math.inf:
            return said
        runs, arms = min(self.runs), 1 if self.pairs else 2
        needed = pairs_needed(self.difference.value, self.spread, arms=arms)
        if needed == math.inf:
            return f"{said} At a difference of zero no number of runs would show one."
        found = detectable(self.spread, runs, arms=arms)
        more = f"{max(0, int(needed) - runs)} more" if needed - runs <= MANY else f"more than {MANY:,}"
        kind = "paired seeds" if self.pairs else "runs of each"
        return (f"{said} If the true difference is the one seen, {more} {kind} would show it in four studies of five; "
                f"those at hand show a true difference of {found:.3f} or more that often.")  # fmt: skip


def compare(a: Sequence[Run], b: Sequence[Run], *, names: tuple[str, str] | None = None, step: int | None = None,
            panel: str | None = None, level: float | None = None) -> Comparison:  # fmt: skip
    """Compare the runs of two sides.

    Args:
        a: Runs of A.
        b: Runs of B, the baseline.
        names: What to call them; default after their methods.
        step: Compare after this step; default: after the last step of each run, unfinished runs being left out.
        panel: Use the episodes of `turnwise eval --panel`; default: those of the runs' own evaluations.
        level: Success for the sample efficiency; default: half way from B's mean start to B's mean end.

    Raises:
        RunError: Nothing can be compared: other worlds, no episode in common, no finished run.
    """
    if both := {run.folder.path.resolve() for run in a} & {run.folder.path.resolve() for run in b}:
        raise RunError(f"{min(both)} is on both sides; a run cannot be compared with itself")
    notes: list[str] = []
    sides = [_counted(side, name, step, notes) for side, name in ((a, "A"), (b, "B"))]
    names = names or _names(*sides)
    _refuse_other_worlds(sides, step, panel)
    keyed_a, keyed_b = _keyed(sides[0], "A", panel), _keyed(sides[1], "B", panel)
    common = sorted(keyed_a.keys() & keyed_b.keys())
    paired = bool(common)
    if paired:
        alone = len(keyed_a) + len(keyed_b) - 2 * len(common)
        if alone:
            notes.append(f"{alone} run{'s' * (alone > 1)} without a partner of the same seed left out")
        sides = [[keyed[key] for key in common] for keyed in (keyed_a, keyed_b)]
    elif sum(map(len, sides)) > 2:
        notes.append("no seed is common to A and B, so that runs are not paired: pairing would need fewer of them")
    played = [[outcomes(run, last_step(run, step), panel) for run in side] for side in sides]
    made: dict[str, Any] = {
        "names": names,
        "runs": (len(sides[0]), len(sides[1])),
        "by_type": _by_type(*played),
        "notes": notes,
        "sides": (sides[0], sides[1]),
        "efficiency": _efficiency(*sides, paired=paired, level=level),
    }
    if len(sides[0]) == len(sides[1]) == 1:
        return _one_each(sides, played, made)
    if paired:
        return _paired(common, sides, played, made)
    if len({panel or run.world for side in sides for run in side}) > 1:
        raise RunError(
            "runs of several worlds can be compared when they are paired by seed only; compare one world at a time"
        )
    return _unpaired(sides, played, made)


def _refuse_other_worlds(sides: Sequence[Sequence[Run]], step: int | None, panel: str | None) -> None:
    """Raise unless both sides have played the same, and on a panel every run."""
    worlds = [
        [(run, run.world if panel is None else run.world_on(panel, last_step(run, step))) for run in side]
        for side in sides
    ]
    a, b = ({world for _, world in side} for side in worlds)
    if panel is None and a == b:
        return
    first, world = worlds[0][0]
    other = next(((run, its) for side in worlds[::-1] for run, its in side if its != world), None)
    if other:
        mend = "evaluate them alike" if panel else "use a common --panel, or compare runs of one recipe"
        raise RunError(f"these runs were not evaluated in the same worlds: {first.folder.path} plays {world}, "
                       f"{other[0].folder.path} plays {other[1]}; {mend}")  # fmt: skip


def _counted(side: Sequence[Run], name: str, step: int | None, notes: list[str]) -> list[Run]:
    """The runs of a side that can be compared; the notes say what was left out or mixed."""
    whole, parts = split_finished(side) if step is None else (list(side), [])
    if parts:
        some = f"{len(parts)} unfinished run{'s' * (len(parts) > 1)} of {name}"
        notes.append(f"{some} left out, such as {parts[0].folder.path}")
    if not whole:
        raise RunError(f"no run of {name} is finished, such as {parts[0].folder.path}; go on with `turnwise train --resume`, or "
                       "compare at an earlier evaluation with --step")  # fmt: skip
    labels = sorted({run.label for run in whole})
    if len(labels) > 1:
        notes.append(f"{name} mixes {len(labels)} methods: {', '.join(labels)}")
    return whole


def _names(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, str]:
    """After their methods, or their folders where the methods are the same."""
    labels = [" / ".join(sorted({run.label for run in side})) for side in (a, b)]
    if labels[0] == labels[1]:
        labels = [side[0].folder.path.name if len(side) == 1 else side[0].folder.path.parent.name for side in (a, b)]
    if labels[0] == labels[1]:
        labels = ["A", "B"]
    return labels[0], labels[1]


def _keyed(side: Sequence[Run], name: str, panel: str | None) -> dict[tuple[str, int], Run]:
    keyed: dict[tuple[str, int], Run] = {}
    for run in side:
        key = panel or run.world, run.config.run.seed
        if key in keyed:
            raise RunError(f"{keyed[key].folder.path} and {run.folder.path} of {name} have the same seed {key[1]}, so that they are no "
                           "independent runs; leave one out")  # fmt: skip
        keyed[key] = run
    return keyed


def _pair(seed: int, a: dict, b: dict, runs: tuple[Run, Run]) -> Pair:
    common = sorted(a.keys() & b.keys())
    if not common:
        if min(len(a), len(b)) > 1:
            raise RunError(
                f"{runs[0].folder.path} and {runs[1].folder.path} have no episode in common; evaluate both with one --panel"
            )
        means = _mean(a), _mean(b)  # of one, only the mean was kept
        return Pair(seed, *means, np.array([means[0] - means[1]]))
    success = np.array([[side[episode]["success"] for episode in common] for side in (a, b)], dtype=np.float64)
    tasks = Labels.of(np.unique([task for task, _, _ in common], return_inverse=True)[1])
    return Pair(seed, float(success[0].mean()), float(success[1].mean()), tasks.mean(success[0] - success[1]))


def _mean(played: dict) -> float:
    return float(np.mean([row["success"] for row in played.values()])) if played else math.nan


def _paired(common: Sequence[tuple[str, int]], sides, played, made) -> Comparison:
    runs = zip(*sides, strict=True)
    pairs = [_pair(key[1], a, b, two) for key, a, b, two in zip(common, *played, runs, strict=True)]
    strata: dict[str, list[Pair]] = defaultdict(list)
    for (world, _), pair in zip(common, pairs, strict=True):
        strata[world].append(pair)
    samples = [np.array([pair.a - pair.b for pair in stratum]) for stratum in strata.values()]
    every = np.concatenate(samples)
    within = [sample - sample.mean() for sample in samples]
    freedom = len(every) - len(samples)
    spread = math.sqrt(sum(float(part @ part) for part in within) / freedom) if freedom else math.inf
    return Comparison(
        unit="seeds, paired" if len(strata) == 1 else f"seeds, paired, within each of {len(strata)} worlds of equal weight",
        success=(_over(strata, "a"), _over(strata, "b")),
        difference=contrast(samples, [1 / len(samples)] * len(samples)),
        wins=win_probability(every),
        spread=spread,
        pairs=pairs,
        **made,
    )  # fmt: skip


def _over(strata: dict[str, list[Pair]], side: str) -> float:
    return float(np.mean([np.mean([getattr(pair, side) for pair in stratum]) for stratum in strata.values()]))


def _unpaired(sides, played, made) -> Comparison:
    a, b = (np.array([_mean(episodes) for episodes in side]) for side in played)
    known = min(len(a), len(b)) > 1
    return Comparison(
        unit="runs, not paired",
        success=(float(a.mean()), float(b.mean())),
        difference=contrast([a, b], [1.0, -1.0]),
        wins=win_probability_unpaired(a, b),
        spread=math.sqrt(a.var(ddof=1) + b.var(ddof=1)) if known else math.inf,
        pairs=[],
        **made,
    )


def _one_each(sides, played, made) -> Comparison:
    """Two policies on the same tasks: the interval is over tasks, whose repetitions share what is hard in them, and about these two alone."""
    two = sides[0][0], sides[1][0]
    pair = _pair(two[0].config.run.seed, played[0][0], played[1][0], two)
    return Comparison(
        unit="tasks, paired",
        success=(pair.a, pair.b),
        difference=contrast([pair.by_task], [1.0]),
        wins=win_probability(pair.by_task),
        spread=math.inf,
        pairs=[pair],
        **made,
    )


def _by_type(
    a: Sequence[dict[Episode, Mapping[str, Any]]], b: Sequence[dict[Episode, Mapping[str, Any]]]
) -> dict[str, tuple[float, float, int]]:
    """Mean success of each side by task type, over all its episodes."""
    wins: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate((a, b)):
        for episodes in side:
            for row in episodes.values():
                if row.get("task_type"):
                    wins[row["task_type"]][number].append(row["success"])
    return {name: (float(np.mean(one)), float(np.mean(other)), len(one) + len(other))
            for name, (one, other) in sorted(wins.items()) if one and other}  # fmt: skip


def rollouts_to(run: Run, level: float) -> float:
    """Trajectories played until held-out success first reaches a level, linear between evaluations; infinite if it never does."""
    _, rollouts, success = run.curve()
    above = np.flatnonzero(success >= level)
    if not len(above):
        return math.inf
    first = int(above[0])
    if first == 0:
        return float(rollouts[0])
    share = (level - success[first - 1]) / (success[first] - success[first - 1])
    return float(rollouts[first - 1] + share * (rollouts[first] - rollouts[first - 1]))


def _efficiency(a: Sequence[Run], b: Sequence[Run], *, paired: bool, level: float | None) -> Efficiency | None:
    """None where there is nothing to reach: B gained nothing, and no level was given."""
    curves = [[run.curve() for run in side] for side in (a, b)]
    if level is None:
        start, end = (float(np.mean([curve[2][place] for curve in curves[1]])) for place in (0, -1))
        if end <= start:
            return None
        level = (start + end) / 2
    budget = min(float(curve[1][-1]) for side in curves for curve in side)
    taken = [np.array([rollouts_to(run, level) for run in side]) for side in (a, b)]
    capped = [np.minimum(side, budget) for side in taken]
    difference = contrast([capped[0] - capped[1]], [1.0]) if paired else contrast(capped, [1.0, -1.0])
    reached = int((taken[0] <= budget).sum()), int((taken[1] <= budget).sum())
    return Efficiency(level, budget, reached, (float(capped[0].mean()), float(capped[1].mean())), difference)
