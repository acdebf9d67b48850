"""Measure what limits on turns save and lose, from one set of held-out trajectories without a limit.

Draws do not depend on a limit, so a limited trajectory is a prefix of the unlimited one. Every limit is thus exact on
the same trajectories, and differences are paired.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from turnwise.base.errors import RunError
from turnwise.base.tables import Table
from turnwise.extensions.turn_budget.budget import quantile_of, turns_within
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.statistics import Interval, contrast
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.evaluation.play import common_failure
from turnwise.train.folder import by_step


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit on turns, extended by `extend` turns while the trajectory makes progress; 0: never."""

    turns: int
    extend: int = 0

    @property
    def name(self) -> str:
        """Describe the limit."""
        return f"{self.turns}, extended by {self.extend}" if self.extend else str(self.turns)


@dataclasses.dataclass(frozen=True)
class Spent:
    """What trajectories achieved and used, `[trajectories]` each."""

    success: np.ndarray  # whether the trajectory succeeded
    turns: np.ndarray  # responses
    written: np.ndarray  # generated tokens
    read: np.ndarray  # tokens of the prompts, the whole prompt at every turn

    def cost(self, prices: tuple[float, float]) -> np.ndarray:
        """Return the price of each trajectory, for prices per million tokens read and written."""
        return (self.read * prices[0] + self.written * prices[1]) / 1e6


def spent(trajectories: Sequence[Trajectory], limit: Limit | None = None) -> Spent:
    """Compute what trajectories played without a limit would have achieved and used with one."""
    rows = []
    for trajectory in trajectories:
        turns = len(trajectory.turns) if limit is None else turns_within(trajectory, limit.turns, limit.extend)
        context, written, read = 0, 0, 0
        for turn in trajectory.turns[:turns]:
            context = len(turn.prompt_ids) if turn.fresh else context + len(turn.prompt_ids)
            read += context
            written += len(turn.response_ids)
            context += len(turn.response_ids)
        rows.append((trajectory.success and turns == len(trajectory.turns), turns, written, read))
    return Spent(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))


def play_unlimited(
    run: RunLog,
    step: int | None,
    *,
    tasks: int,
    seed: int = 0,
    temperature: float | None = None,
    device: torch.device | None = None,
) -> list[Trajectory]:
    """Play held-out tasks once each without a limit, with the policy of a checkpoint; return the usable trajectories.

    Raises:
        RunError: There is no such checkpoint, or no trajectory could be played.
    """
    with contextlib.closing(Stage.open(run.folder, step, device, limited=False)) as stage:
        played = stage.play_tasks(
            stage.held_out(tasks),
            seed=seed,
            group_size=1,
            temperature=stage.config.evaluate.temperature if temperature is None else temperature,
        )
    if not any(trajectory.usable for trajectory in played):
        raise RunError(f"no trajectory could be played: {common_failure(played)}")
    return [trajectory for trajectory in played if trajectory.usable]


def past_quantile(run: RunLog, quantile: float) -> int:
    """Return a quantile of the turns of the last recorded training step.

    Raises:
        RunError: No rollouts are kept.
    """
    paths = list(by_step(run.folder.rollouts, ".parquet").values())
    trajectories = read_rollouts(paths[-1])[0] if paths else []
    counts = [len(trajectory.turns) for trajectory in trajectories if trajectory.usable]
    if not counts:
        raise RunError(f"{run.folder.path} keeps no rollouts to take a quantile of turns from; give --limit TURNS")
    return quantile_of(counts, quantile)


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a limit saves and loses."""

    limit: Limit | None  # the limit; None: no limit
    spent: Spent  # what the trajectories achieved and used under it
    success: Interval  # difference of success to no limit, paired by task
    read_frac: float  # share of the read tokens that it saves
    written_frac: float  # share of the generated tokens
    turns_frac: float  # share of the turns


def compare_limits(trajectories: Sequence[Trajectory], limits: Mapping[str, Limit]) -> dict[str, Saved]:
    """Compare limits on the same trajectories; the first result, "none", has no limit."""
    whole = spent(trajectories)
    found = {}
    for name, limit in {"none": None, **limits}.items():
        one = spent(trajectories, limit)
        shares = [
            1 - float(part.sum() / total.sum())
            for part, total in ((one.read, whole.read), (one.written, whole.written), (one.turns, whole.turns))
        ]
        found[name] = Saved(limit, one, contrast([one.success - whole.success], [1.0]), *shares)
    return found


def budget_table(found: Mapping[str, Saved], prices: tuple[float, float] | None = None) -> Table:
    """Tabulate success, its loss, and what is saved by each limit."""
    of_tokens = "tokens read", "tokens written"
    money = ("cost per task", "saved") if prices else ()
    lines: list[Sequence[str]] = [
        ("limit", "turns", "success", "success lost", *(f"{of} saved" for of in ("turns", *of_tokens)), *money)
    ]
    whole = found["none"].spent
    for name, one in found.items():
        lost = "-" if one.limit is None else _lost(one)
        saved = (
            ["-"] * 3 if one.limit is None else [f"{x:.0%}" for x in (one.turns_frac, one.read_frac, one.written_frac)]
        )
        cells = [name, f"{one.spent.turns.mean():.1f}", f"{one.spent.success.mean():.3f}", lost, *saved]
        if prices:
            cost, before = one.spent.cost(prices).mean(), whole.cost(prices).mean()
            cells += [f"{cost:.6f}", "-" if one.limit is None else f"{1 - cost / before:.0%}"]
        lines.append(cells)
    return lines


def _lost(one: Saved) -> str:
    """Write the loss of success; no trajectory gains from a limit."""
    if one.success.value == 0.0:
        return "none"
    return Interval(-one.success.value, -one.success.high, -one.success.low).text()
