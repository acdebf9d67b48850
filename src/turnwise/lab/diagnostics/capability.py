"""Compare pass@k before and after training: what reinforcement learning adds to what sampling can find anyway.

Training often raises pass@1 and lowers pass@256: it makes what the policy could already do more likely, and forgets
rare solutions (Yue et al., arXiv 2504.13837; the debate is summarised in arXiv 2510.04028).
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from turnwise.base.errors import ConfigError, RunError
from turnwise.base.figures import arm_colors
from turnwise.base.streams import Stream
from turnwise.base.tables import Table
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.statistics import DRAWS, Interval, contrast, interval_of_draws
from turnwise.train.checkpoint import checkpoint_at
from turnwise.train.evaluation.panels import task_digest
from turnwise.train.evaluation.pass_at_k import budgets, pass_at_k
from turnwise.train.evaluation.play import common_failure

CONCURRENT = 512
"""Trajectories played at once, or those of one task if more."""
WHEN = ("before", "after")


@dataclasses.dataclass(frozen=True)
class TaskOutcomes:
    """Outcomes of the tasks for the policy of one checkpoint."""

    step: int  # step of the checkpoint
    tasks: Sequence[str]  # names of the tasks
    successes: np.ndarray  # `[tasks]` int
    trajectories: np.ndarray  # `[tasks]` int, those that did not fail


@dataclasses.dataclass(frozen=True)
class Capability:
    """pass@k of one arm."""

    runs: Sequence[Path]  # folders of the arm's runs, one per training seed
    played: Sequence[tuple[TaskOutcomes, TaskOutcomes]]  # per run, the policy before and after training
    k: Sequence[int]  # values of k
    before: Sequence[Interval]  # interval of every k
    after: Sequence[Interval]  # likewise
    change: Sequence[Interval]  # after minus before, paired by run and task
    solved: np.ndarray  # `[2, 2]` tasks by whether a trajectory solved them before and after; the mean over runs


def check_runs(runs: Sequence[RunLog], steps: Sequence[int | None], temperature: float | None = None) -> None:
    """Check before playing that all runs have their checkpoints, one environment and one temperature.

    Raises:
        TurnwiseError: A checkpoint is missing, or two runs differ.
    """
    for run in runs:
        for step in steps:
            checkpoint_at(run.folder, step)

    def played(run: RunLog) -> dict[str, Any]:
        identity = run.config.environment.identity()
        return identity | ({"temperature": run.config.rollout.temperature} if temperature is None else {})

    first = played(runs[0])
    for run in runs[1:]:
        if differing := [name for name, value in played(run).items() if value != first[name]]:
            name = differing[0]
            raise ConfigError(
                f"{runs[0].folder.path} and {run.folder.path} differ in {name}: {first[name]} and {played(run)[name]}; "
                + ("give --temperature" if name == "temperature" else "compare runs of one environment")
            )


def play_checkpoint(
    run: RunLog,
    step: int | None,
    *,
    tasks: int,
    samples: int,
    split: str | None = None,
    temperature: float | None = None,
    seed: int = 0,
    device: torch.device | None = None,
    on_trajectory: Callable[[int, int], None] = lambda done, total: None,
) -> TaskOutcomes:
    """Play held-out tasks many times each with the policy of a checkpoint.

    Args:
        run: The run.
        step: Step of the checkpoint; default: the last.
        tasks: Number of tasks, evenly spaced over the split.
        samples: Independent trajectories per task.
        split: Split of the environment; default: the run's held-out one.
        temperature: Sampling temperature; default: that of training.
        seed: Seed of the sampling.
        device: Device of the policy; default: the CPU.
        on_trajectory: Called with the number of trajectories done and of all.

    Raises:
        TurnwiseError: There is no such checkpoint or split, the policy would be greedy, or a task could not be played.
    """
    temperature = run.config.rollout.temperature if temperature is None else temperature
    if temperature == 0.0:
        raise ConfigError("a greedy policy repeats itself, so pass@k would be pass@1; set --temperature above 0")
    with contextlib.closing(Stage.open(run.folder, step, device)) as stage:
        chosen = stage.held_out(tasks, split)
        names = [stage.suite.task_name(task) for task in chosen]
        at_once = max(1, CONCURRENT // samples)
        successes, usable = np.zeros((2, len(chosen)), dtype=np.int64)
        for start in range(0, len(chosen), at_once):
            drawn = int(np.random.SeedSequence([seed, Stream.PASS_AT_K, start]).generate_state(1)[0])
            trajectories = stage.play_tasks(
                chosen[start : start + at_once], seed=drawn, group_size=samples, temperature=temperature
            )
            group = np.array([trajectory.group for trajectory in trajectories]) + start
            played = np.array([trajectory.usable for trajectory in trajectories])
            won = np.array([trajectory.success for trajectory in trajectories]) & played
            successes += np.bincount(group[won], minlength=len(chosen))
            usable += np.bincount(group[played], minlength=len(chosen))
            if not usable[start : start + at_once].all():
                task = names[start + int(np.argmin(usable[start : start + at_once]))]
                raise RunError(f"no trajectory of task {task!r} could be played: {common_failure(trajectories)}")
            on_trajectory(min(start + at_once, len(chosen)) * samples, len(chosen) * samples)
    return TaskOutcomes(stage.step, names, successes, usable)


def capability_of(
    runs: Sequence[RunLog], played: Sequence[tuple[TaskOutcomes, TaskOutcomes]], *, draws: int = DRAWS, seed: int = 0
) -> Capability:
    """Estimate pass@k of an arm before and after, and the change, with 95 % bootstrap intervals.

    Each draw takes tasks with replacement, and runs where there are several; both policies of a run are drawn together,
    so the change is paired. The spread over tasks includes the noise of each task's trajectories. Draws of few runs
    cannot leave their range, so with several runs each end is the wider of the bootstrap's and Student's over runs.

    Args:
        runs: Runs of the arm.
        played: What `play_checkpoint` returned before and after training, per run, on the same tasks.
        draws: Number of bootstrap resamples.
        seed: Seed of the bootstrap.
    """
    most = min(int(each.trajectories.min()) for pair in played for each in pair)
    k = budgets(most)
    chance = np.array([[pass_at_k(each.successes, each.trajectories, k) for each in pair] for pair in played])
    num_runs, _, num_tasks, _ = chance.shape  # [runs, 2, tasks, k]
    generator = np.random.default_rng(seed)
    task_weight = generator.multinomial(num_tasks, np.full(num_tasks, 1 / num_tasks), size=draws) / num_tasks
    run_weight = generator.multinomial(num_runs, np.full(num_runs, 1 / num_runs), size=draws) / num_runs
    drawn = np.zeros((draws, 2, len(k)))
    for one, weight in zip(chance, run_weight.T, strict=True):
        drawn += weight[:, None, None] * np.einsum("dt,wtk->dwk", task_weight, one)
    mean, num = chance.mean(axis=(0, 2)), num_runs if num_runs > 1 else num_tasks
    of_runs = chance.mean(axis=2).swapaxes(0, 1)  # [2, runs, k]
    before, after = (_intervals(of_runs[when], mean[when], drawn[:, when], num, least=0.0) for when in (0, 1))
    solved = np.array([[each.successes > 0 for each in pair] for pair in played])  # [runs, 2, tasks]
    counts = [[((solved[:, 0] == b) & (solved[:, 1] == a)).sum(axis=1).mean() for a in (0, 1)] for b in (0, 1)]
    return Capability(
        [run.folder.path for run in runs],
        played,
        k,
        before,
        after,
        _intervals(of_runs[1] - of_runs[0], mean[1] - mean[0], drawn[:, 1] - drawn[:, 0], num),
        np.array(counts),
    )


def _intervals(
    of_runs: np.ndarray, value: np.ndarray, drawn: np.ndarray, num: int, *, least: float = -1.0
) -> list[Interval]:
    found = []
    for own, values in zip(of_runs.T, np.concatenate([value[None], drawn]).T, strict=True):
        wide = interval_of_draws(values, num)
        student = contrast([own], [1.0])  # infinite for one run, or for runs that agree
        if np.isfinite(student.high) and np.isfinite(wide.high):
            wide = Interval(wide.value, min(wide.low, student.low), max(wide.high, student.high))
        found.append(wide.within(least, 1.0))
    return found


def capability_table(arms: Mapping[str, Capability]) -> Table:
    """Tabulate pass@k before and after training, and the change, by arm and k."""
    lines: list[Sequence[str]] = [("arm", "runs", "k", "before", "after", "after - before", "difference")]
    for arm, one in arms.items():
        for k, before, after, change in zip(one.k, one.before, one.after, one.change, strict=True):
            verdict = "not shown" if not change.shown else "gained" if change.value > 0 else "lost"
            texts = before.text(), after.text(), change.text(sign=True)
            lines.append((arm, str(len(one.runs)), str(k), *texts, verdict))
    return lines


def solved_table(arms: Mapping[str, Capability]) -> Table:
    """Tabulate the tasks that any trajectory solved before training, after it, or both."""
    lines: list[Sequence[str]] = [("arm", "tasks", "solved by both", "before only", "after only", "by neither")]
    for arm, one in arms.items():
        (neither, after), (before, both) = one.solved
        counts = [f"{number:.1f}".removesuffix(".0") for number in (both, before, after, neither)]
        lines.append((arm, str(len(one.played[0][0].tasks)), *counts))
    return lines


def capability_figure(arms: Mapping[str, Capability]) -> Figure:
    """Plot pass@k by k, dashed before and solid after training, with 95 % bands."""
    made = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes, colors = made.subplots(), arm_colors(arms)
    for arm, one in arms.items():
        for when, curve, style in zip(WHEN, (one.before, one.after), ("--", "-"), strict=True):
            axes.plot(one.k, [each.value for each in curve], style, color=colors[arm], label=f"{arm}, {when}")
            low, high = np.array([[each.low, each.high] for each in curve]).T
            known = np.isfinite(high)
            axes.fill_between(one.k, low, high, where=known, color=colors[arm], alpha=0.12, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="k (trajectories per task)", ylabel="pass@k", ylim=(0, 1.02))
    axes.legend(fontsize=8)
    return made


def as_json(arms: Mapping[str, Capability]) -> dict[str, Any]:
    """Describe curves and counts as JSON; everything can be recomputed from the counts."""

    def record(played: TaskOutcomes) -> dict[str, Any]:
        counts = {"successes": played.successes.tolist(), "trajectories": played.trajectories.tolist()}
        return {"step": played.step, "tasks": list(played.tasks), "digest": task_digest(played.tasks), **counts}

    def ends(curve: Sequence[Interval]) -> list[list[float | None]]:
        return [[v if np.isfinite(v) else None for v in (each.value, each.low, each.high)] for each in curve]

    return {
        arm: {
            "k": list(one.k),
            "before": ends(one.before),
            "after": ends(one.after),
            "change": ends(one.change),
            "runs": [
                {"run": str(path), **{when: record(each) for when, each in zip(WHEN, pair, strict=True)}}
                for path, pair in zip(one.runs, one.played, strict=True)
            ],
        }
        for arm, one in arms.items()
    }
