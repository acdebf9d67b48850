"""Compare two sets of runs, paired by seed and by task, and give a verdict with its power."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import RunError
from turnwise.lab.diagnostics import statistics
from turnwise.lab.diagnostics.differences import Difference, differences
from turnwise.lab.diagnostics.pairs import Pair, make_pair, mean_of
from turnwise.lab.diagnostics.runs import RunLog, last_step, outcomes, split_finished
from turnwise.train.evaluation.outcomes import Episode

ALL = "all"
MANY = 1000
"""Largest number of additional seeds to report; the estimate is not more precise."""


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """Hold the number of trajectories until held-out success reaches a level. Other runs count the whole budget.

    Attributes:
        level: Success to reach.
        budget: Number of trajectories that every run has played.
        reached: Number of runs of A and of B that reach the level.
        rollouts: Mean number of trajectories of A and of B.
        difference: A minus B; below 0, A needs fewer.
    """

    level: float
    budget: float
    reached: tuple[int, int]
    rollouts: tuple[float, float]
    difference: statistics.Interval


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Hold the comparison of A with B.

    Attributes:
        names: Names of A and B.
        unit: Resampled unit: "seeds, paired", "runs, not paired", or "tasks, paired" for one run each.
        runs: Number of runs of A and of B.
        success: Mean success of A and of B.
        difference: Success of A minus B.
        wins: Probability that A beats B.
        spread: Standard deviation of the differences between pairs; for unpaired runs, `sqrt(var_A + var_B)`.
        pairs: Pairs of runs, if paired.
        efficiency: Trajectories to a success level.
        by_type: Success of A, success of B, and number of episodes, by task type.
        notes: Remarks for the reader.
        sides: Runs of A and of B.
        unequal: Budgets, warm starts and the like in which A and B differ, unless the caller asked for that.
    """

    names: tuple[str, str]
    unit: str
    runs: tuple[int, int]
    success: tuple[float, float]
    difference: statistics.Interval
    wins: statistics.Interval
    spread: float
    pairs: list[Pair]
    efficiency: Efficiency | None
    by_type: dict[str, tuple[float, float, int]]
    notes: list[str]
    sides: tuple[list[RunLog], list[RunLog]]
    unequal: list[str] = dataclasses.field(default_factory=list)

    @property
    def of_methods(self) -> bool:
        """Whether the interval is about the methods. With one run each it is only about these two policies."""
        return not self.unit.startswith("tasks")

    @property
    def verdict(self) -> str:
        """State in words whether a difference is shown."""
        gap = f"{self.difference.text(sign=True)}, 95 %"
        what = "success" if self.of_methods else "success of these two runs, which says nothing about other seeds"
        if self.unequal:
            return (
                f"Not a comparison of methods: A and B differ in {', '.join(self.unequal)}. Difference {gap}, in "
                f"{what}. Compare runs of equal budgets, or ask for this comparison with --unequal."
            )
        if self.difference.shown:
            better = self.names[0] if self.difference.value > 0 else self.names[1]
            return f"Shown: {better} is better. Difference {gap}, in {what}."
        if not math.isfinite(self.difference.high - self.difference.low):
            none = "neither side won a game" if not any(self.success) else "the runs have no spread"
            said = f"Not shown: there is no interval, since {none}. Difference {gap}, in {what}."
            return f"{said} More of each side are needed." if self.of_methods and any(self.success) else said
        said = f"Not shown: the interval of the difference covers zero. Difference {gap}, in {what}."
        if not 0.0 < self.spread < math.inf:
            return said
        runs, arms = min(self.runs), 1 if self.pairs else 2
        needed = statistics.pairs_needed(self.difference.value, self.spread, arms=arms)
        if needed == math.inf:
            return f"{said} At a difference of zero no number of runs would show one."
        found = statistics.detectable(self.spread, runs, arms=arms)
        more = f"{max(0, int(needed) - runs)} more" if needed - runs <= MANY else f"more than {MANY:,}"
        kind = "paired seeds" if self.pairs else "runs of each"
        return (
            f"{said} If the true difference is the one seen, {more} {kind} would detect it with 80 % power; "
            f"these {'seeds' if self.pairs else 'runs'} detect a difference of {found:.3f} or more with 80 % power."
        )


def compare(
    a: Sequence[RunLog],
    b: Sequence[RunLog],
    *,
    names: tuple[str, str] | None = None,
    step: int | None = None,
    panel: str | None = None,
    level: float | None = None,
    unequal: bool = False,
    name_settings: bool = True,
) -> RunComparison:
    """Compare the runs of two sides.

    Args:
        a: Runs of A.
        b: Runs of B, the baseline.
        names: Names of A and B; default: their methods.
        step: Step to compare after; default: the last step of each finished run.
        panel: Panel of `turnwise eval --panel` to compare on; default: the runs' own evaluations.
        level: Success level of the sample efficiency; default: halfway from B's mean start to B's mean end.
        unequal: Compare runs even if budgets, warm starts or models differ.
        name_settings: Look for settings that differ in addition to the method; the arms of a study name them.

    Raises:
        RunError: The runs have different environments or no common episode, or none is finished.
    """
    if both := {run.folder.path.resolve() for run in a} & {run.folder.path.resolve() for run in b}:
        raise RunError(f"{min(both)} is on both sides; remove it from one")
    notes: list[str] = []
    sides = [_counted(side, name, step, notes) for side, name in ((a, "A"), (b, "B"))]
    names = names or _names(*sides)
    _refuse_other_environments(sides, step, panel)
    keyed_a, keyed_b = _keyed(sides[0], "A", panel), _keyed(sides[1], "B", panel)
    common = sorted(keyed_a.keys() & keyed_b.keys())
    paired = bool(common)
    if paired:
        alone = len(keyed_a) + len(keyed_b) - 2 * len(common)
        if alone:
            notes.append(f"{alone} run{'s' * (alone > 1)} without a partner of the same seed left out")
        sides = [[keyed[key] for key in common] for keyed in (keyed_a, keyed_b)]
    elif sum(map(len, sides)) > 2:
        notes.append("A and B have no seed in common, so runs are not paired; paired runs would need fewer")
    configs = ([run.config for run in side] for side in sides)
    found = differences(*configs, paired=paired) if name_settings else []
    notes += _differing(found, unequal=unequal)
    played = [[outcomes(run, last_step(run, step), panel) for run in side] for side in sides]
    made: dict[str, Any] = {
        "names": names,
        "runs": (len(sides[0]), len(sides[1])),
        "by_type": _by_type(*played),
        "notes": notes,
        "unequal": [] if unequal else [str(one) for one in found if not one.is_of_the_method],
        "sides": (sides[0], sides[1]),
        "efficiency": _efficiency(*sides, paired=paired, level=level),
    }
    if len(sides[0]) == len(sides[1]) == 1:
        return _one_each(sides, played, made)
    if paired:
        return _paired(common, sides, played, made)
    if len({panel or run.environment for side in sides for run in side}) > 1:
        raise RunError(
            "runs of several environments can be compared only if they are paired by seed; compare one environment "
            "at a time"
        )
    return _unpaired(sides, played, made)


def _differing(found: Sequence[Difference], *, unequal: bool) -> list[str]:
    """Name the settings that differ in addition to the credit method."""
    named = [one for one in found if not one.is_of_the_credit and (unequal or one.is_of_the_method)]
    return [f"A and B also differ in {', '.join(map(str, named))}"] if named else []


def _refuse_other_environments(sides: Sequence[Sequence[RunLog]], step: int | None, panel: str | None) -> None:
    """Raise unless both sides were evaluated in the same environments; on a panel, all runs in one."""
    environments = [
        [(run, run.environment if panel is None else run.environment_on(panel, last_step(run, step))) for run in side]
        for side in sides
    ]
    a, b = ({environment for _, environment in side} for side in environments)
    if panel is None and a == b:
        return
    first, environment = environments[0][0]
    other = next(((run, its) for side in environments[::-1] for run, its in side if its != environment), None)
    if other:
        mend = (
            "evaluate them with the same settings" if panel else "use a common --panel, or compare runs of one recipe"
        )
        raise RunError(
            f"these runs were not evaluated in the same environments: {first.folder.path} plays {environment}, "
            f"{other[0].folder.path} plays {other[1]}; {mend}"
        )


def _counted(side: Sequence[RunLog], name: str, step: int | None, notes: list[str]) -> list[RunLog]:
    """Select the runs of a side that can be compared; `notes` gets what was left out or mixed."""
    whole, parts = split_finished(side) if step is None else (list(side), [])
    if parts:
        some = f"{len(parts)} unfinished run{'s' * (len(parts) > 1)} of {name}"
        notes.append(f"{some} left out, such as {parts[0].folder.path}")
    if not whole and not any(run.evaluated for run in side):
        folder = parts[0].folder if parts else side[0].folder
        mend = "export and import it, to compare it as a log" if folder.without_weights else "run `turnwise eval` on it"
        raise RunError(f"no run of {name} has an evaluation, such as {folder.path}; {mend}, with a --panel for both")
    if not whole:
        raise RunError(
            f"no run of {name} is finished, such as {parts[0].folder.path}; resume with `turnwise train --resume`, or "
            "compare at an earlier evaluation with --step"
        )
    labels = sorted({run.label for run in whole})
    if len(labels) > 1:
        notes.append(f"{name} mixes {len(labels)} methods: {', '.join(labels)}")
    return whole


def _names(a: Sequence[RunLog], b: Sequence[RunLog]) -> tuple[str, str]:
    """Name the sides after their methods, or after their folders if the methods are the same."""
    labels = [" / ".join(sorted({run.label for run in side})) for side in (a, b)]
    if labels[0] == labels[1]:
        labels = [side[0].folder.path.name if len(side) == 1 else side[0].folder.path.parent.name for side in (a, b)]
    if labels[0] == labels[1]:
        labels = ["A", "B"]
    return labels[0], labels[1]


def _keyed(side: Sequence[RunLog], name: str, panel: str | None) -> dict[tuple[str, int], RunLog]:
    keyed: dict[tuple[str, int], RunLog] = {}
    for run in side:
        key = panel or run.environment, run.config.run.seed
        if key in keyed:
            raise RunError(
                f"{keyed[key].folder.path} and {run.folder.path} of {name} have the same seed {key[1]}, so they "
                "are not independent; remove one"
            )
        keyed[key] = run
    return keyed


def _paired(common: Sequence[tuple[str, int]], sides, played, made) -> RunComparison:
    runs = zip(*sides, strict=True)
    pairs = [make_pair(key[1], a, b, two, made["notes"]) for key, a, b, two in zip(common, *played, runs, strict=True)]
    strata: dict[str, list[Pair]] = defaultdict(list)
    for (environment, _), pair in zip(common, pairs, strict=True):
        strata[environment].append(pair)
    samples = [np.array([pair.a - pair.b for pair in stratum]) for stratum in strata.values()]
    every = np.concatenate(samples)
    within = [sample - sample.mean() for sample in samples]
    freedom = len(every) - len(samples)
    spread = math.sqrt(sum(float(part @ part) for part in within) / freedom) if freedom else math.inf
    return RunComparison(
        unit="seeds, paired"
        if len(strata) == 1
        else f"seeds, paired, within each of {len(strata)} environments of equal weight",
        success=(_over(strata, "a"), _over(strata, "b")),
        difference=statistics.contrast(samples, [1 / len(samples)] * len(samples)),
        wins=statistics.win_probability(every),
        spread=spread,
        pairs=pairs,
        **made,
    )


def _over(strata: dict[str, list[Pair]], side: str) -> float:
    return float(np.mean([np.mean([getattr(pair, side) for pair in stratum]) for stratum in strata.values()]))


def _unpaired(sides, played, made) -> RunComparison:
    a, b = (np.array([mean_of(episodes) for episodes in side]) for side in played)
    known = min(len(a), len(b)) > 1
    return RunComparison(
        unit="runs, not paired",
        success=(float(a.mean()), float(b.mean())),
        difference=statistics.contrast([a, b], [1.0, -1.0]),
        wins=statistics.win_probability_unpaired(a, b),
        spread=math.sqrt(a.var(ddof=1) + b.var(ddof=1)) if known else math.inf,
        pairs=[],
        **made,
    )


def _one_each(sides, played, made) -> RunComparison:
    """Compare two policies on the same tasks. The interval is over tasks and only about these two policies."""
    two = sides[0][0], sides[1][0]
    pair = make_pair(two[0].config.run.seed, played[0][0], played[1][0], two, made["notes"])
    return RunComparison(
        unit="tasks, paired",
        success=(pair.a, pair.b),
        difference=statistics.contrast([pair.by_task], [1.0]),
        wins=statistics.win_probability(pair.by_task),
        spread=math.inf,
        pairs=[pair],
        **made,
    )


def _by_type(
    a: Sequence[dict[Episode, Mapping[str, Any]]], b: Sequence[dict[Episode, Mapping[str, Any]]]
) -> dict[str, tuple[float, float, int]]:
    """Compute the mean success of each side by task type, over all its episodes."""
    wins: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate((a, b)):
        for episodes in side:
            for row in episodes.values():
                if row.get("task_type"):
                    wins[row["task_type"]][number].append(row["success"])
    return {
        name: (float(np.mean(one)), float(np.mean(other)), len(one) + len(other))
        for name, (one, other) in sorted(wins.items())
        if one and other
    }


def rollouts_to(run: RunLog, level: float) -> float:
    """Compute trajectories until held-out success reaches a level; linear between evaluations, infinite if never."""
    _, rollouts, success = run.curve()
    above = np.flatnonzero(success >= level)
    if not len(above):
        return math.inf
    first = int(above[0])
    if first == 0:
        return float(rollouts[0])
    share = (level - success[first - 1]) / (success[first] - success[first - 1])
    return float(rollouts[first - 1] + share * (rollouts[first] - rollouts[first - 1]))


def _efficiency(a: Sequence[RunLog], b: Sequence[RunLog], *, paired: bool, level: float | None) -> Efficiency | None:
    """Compare the trajectories to a level; None if B gained nothing and no level was given."""
    curves = [[run.curve() for run in side] for side in (a, b)]
    if level is None:
        start, end = (float(np.mean([curve[2][place] for curve in curves[1]])) for place in (0, -1))
        if end <= start:
            return None
        level = (start + end) / 2
    budget = min(float(curve[1][-1]) for side in curves for curve in side)
    taken = [np.array([rollouts_to(run, level) for run in side]) for side in (a, b)]
    capped = [np.minimum(side, budget) for side in taken]
    difference = (
        statistics.contrast([capped[0] - capped[1]], [1.0]) if paired else statistics.contrast(capped, [1.0, -1.0])
    )
    reached = int((taken[0] <= budget).sum()), int((taken[1] <= budget).sum())
    return Efficiency(level, budget, reached, (float(capped[0].mean()), float(capped[1].mean())), difference)
