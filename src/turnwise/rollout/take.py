"""Decide what a step learns from: whole groups that pass a filter."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from turnwise.rollout.experience import Experience, lag_metrics, outcomes, spreads
from turnwise.rollout.flight import Flight
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.pool import Pool
from turnwise.rollout.selection import kept, widest
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory


class WholeGroups:
    """Learn from `rollout.groups` groups that pass `rollout.filter`, whose trajectories have all ended.

    A dropped group is replaced by one of another task. A step plays at most `rollout.max_batches` times
    `rollout.groups` groups. It ends early if `rollout.groups` groups in a row have no usable trajectory, because more
    would fail too.

    With a step budget, more groups are in flight than a step learns from. The step plays until its budget is spent,
    and learns from the oldest complete ones. While there are too few, it takes another budget. What a run learns from
    does not depend on the budget: it learns from each task once, in steps of equal size, however long they take.
    """

    async def take(self, pool: Pool, step: int) -> Experience:
        """Collect the experience of a step; see `Take.take`."""
        settings, spent = pool.settings, 0
        group_filter, wanted = settings.filter_at(step), settings.groups
        await self._fill(pool, step)
        if settings.step_budget:
            spent += await pool.spent_ahead()
        taken, kept_G, usable_G = list[Flight](), list[bool](), list[bool]()
        passed = 0
        while passed < wanted and len(taken) < self._most(settings, step):
            if not pool.flights:
                break
            flight = pool.complete() if settings.step_budget else await pool.first()
            if flight is None:
                spent += await pool.spend()
                continue
            pool.flights.remove(flight)
            taken.append(flight)
            played = [dataclasses.replace(each, group=0) for each in flight.trajectories]
            kept_G.append(bool(kept(group_filter, *outcomes(played, 1))[0]))
            usable_G.append(any(each.usable for each in played))
            passed += kept_G[-1] or group_filter == "none"
            if not any(usable_G[-wanted:]) and len(usable_G) >= wanted:
                break
            room = self._most(settings, step) + settings.max_lag * settings.groups - len(taken) - len(pool.flights)
            if not kept_G[-1] and group_filter != "none" and room > 0:
                await pool.start(max(flight.step, step), 1)  # a step that is over has no draws left
        if not (settings.step_budget or settings.max_lag):
            await pool.end()  # what a step that ends early has not taken
        experience = self._learned(pool, step, taken, np.array(kept_G, dtype=bool), spent)
        if settings.step_budget and settings.max_lag and step < pool.last_step:
            await self._fill(pool, step + 1)
            pool.spend_ahead()
        return experience

    @staticmethod
    def _most(settings: RolloutConfig, step: int) -> int:
        return settings.groups * (1 if settings.filter_at(step) == "none" else settings.max_batches)

    async def _fill(self, pool: Pool, step: int) -> None:
        """Start the groups of this step, and of the later ones that are played ahead."""
        settings, last = pool.settings, max(step, pool.last_step)
        if settings.step_budget:
            left = (last - step + 1) * settings.groups
            await pool.start(step, min(settings.in_progress, left) - len(pool.flights))
            return
        for number in range(step, min(step + settings.max_lag, last) + 1):
            await pool.start(number, (number - step + 1) * settings.groups - len(pool.flights))

    def _learned(self, pool: Pool, step: int, taken: Sequence[Flight], kept_G: np.ndarray, spent: int) -> Experience:
        settings, trajectories = pool.settings, list[Trajectory]()
        for number, flight in enumerate(taken):
            for trajectory in flight.trajectories:
                trajectory.group = number
                trajectories.append(trajectory)
        numbers = [flight.number for flight in taken]
        pool.learn(taken)
        pool.selector.observe(np.array(numbers, dtype=np.int64), *outcomes(trajectories, len(taken)))
        used_G = kept_G.copy()
        if settings.keep_spread is not None:
            used_G &= widest(spreads(trajectories, used_G), settings.keep_spread)
        metrics = rollout_metrics(
            trajectories,
            batches=math.ceil(len(taken) / settings.groups),
            kept_frac=float(kept_G.mean()),
            filled_frac=used_G.sum() / settings.groups,
        )
        if settings.samples_earlier:
            metrics |= lag_metrics(trajectories, step)
        if settings.step_budget:
            metrics |= {"unfinished": float(pool.num_unfinished), "spent": float(spent)}
        used_N = np.array([each.usable and used_G[each.group] for each in trajectories], dtype=bool)
        return Experience(trajectories, used_N, metrics, [pool.tasks[each] for each in numbers], numbers)
