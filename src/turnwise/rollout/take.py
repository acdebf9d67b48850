"""Say what a step learns from: whole groups that pass a filter, or the tokens that it has played."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from turnwise.models.format import Format
from turnwise.rollout.experience import Experience, lag_metrics, outcomes, spreads
from turnwise.rollout.line import Line
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.pool import Flight, Pool, Take
from turnwise.rollout.selection import kept, widest
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn


def make_take(settings: RolloutConfig) -> Take:
    """Make what the settings ask for."""
    return PlayedTokens() if settings.learns_played else WholeGroups()


class WholeGroups:
    """Learn from `rollout.groups` groups that pass `rollout.filter`, whose trajectories have all ended.

    A group that is dropped is replaced by one of another task. A step plays at most `rollout.max_batches` times
    `rollout.groups` groups. It ends early if so many in a row as it learns from have no usable trajectory, because
    further ones would fail too.

    With a step budget, more groups are in flight than a step learns from. The step plays until its budget is spent,
    and learns from those that are complete, the oldest ones. While there are fewer, it takes a further budget, since
    there is nothing to learn yet. What a run learns from does not depend on the budget: it learns from each task once,
    in steps of equal size, however long they take.
    """

    async def take(self, pool: Pool, step: int) -> Experience:
        """Collect the experience of a step; see `Take.take`."""
        settings, spent = pool.settings, 0
        group_filter, wanted = settings.filter_at(step), settings.groups
        await self._fill(pool, step)
        if settings.step_budget:
            spent += await pool.spent_ahead()
        taken: list[Flight] = []
        kept_G: list[bool] = []
        usable_G: list[bool] = []
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
            if not kept_G[-1] and group_filter != "none":
                await pool.start(flight.step if settings.max_lag else step, 1)
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


class PlayedTokens:
    """Learn from each token that a step has played, also of half-played trajectories, and from no other (T-PPO).

    A step divides its budget among the trajectories in progress. With a budget of tokens it may end inside a response,
    which goes on from there in the next step, on its weights. A group that has ended makes room for another task in the
    next step.
    """

    async def take(self, pool: Pool, step: int) -> Experience:
        """Collect the experience of a step; see `Take.take`."""
        settings, fmt = pool.settings, pool.format
        left = max(1, pool.last_step - step + 1) * settings.groups
        await pool.start(step, min(settings.in_progress, left) - len(pool.flights))
        spent = await pool.spend()
        trajectories: list[Trajectory] = []
        ended: list[Trajectory] = []
        numbers: list[int] = []
        for flight in pool.flights:
            windows = [self._window(flight, number, fmt, ended) for number in flight.watched]
            if new := [window for window in windows if window is not None]:
                trajectories += [dataclasses.replace(window, group=len(numbers)) for window in new]
                numbers.append(flight.number)
        done = [flight for flight in pool.flights if flight.done]
        for number, flight in enumerate(done):
            for trajectory in flight.trajectories:
                trajectory.group = number
        whole = [each for flight in done for each in flight.trajectories]
        pool.learn(done)
        observed = np.array([flight.number for flight in done], dtype=np.int64)
        pool.selector.observe(observed, *outcomes(whole, len(done)))
        metrics = self._metrics(pool, trajectories, ended, step) | {"spent": float(spent)}
        pool.flights = [flight for flight in pool.flights if flight not in done]
        used_N = np.array([each.usable for each in trajectories], dtype=bool)
        return Experience(trajectories, used_N, metrics, [pool.tasks[each] for each in numbers], numbers)

    def _window(self, flight: Flight, number: int, fmt: Format, ended: list[Trajectory]) -> Trajectory | None:
        """Return what is new of a trajectory since the last step, whose other turns are marked as learned.

        A trajectory that has ended comes whole, since a critic learns its return at all of its turns. Of one that goes
        on, earlier tokens are part of the first prompt. None: nothing is new.
        """
        line, into, learned = flight.lines[number], flight.watched[number], flight.learned[number]
        if into.ended and not learned.told:
            ended.append(into)
        version_T = [each.generation.version for each in line.sampled for _ in each.generation.token_ids]
        if learned.told or not (into.ended or len(version_T) > sum(learned.ends[-1:])):
            return None
        turns = cut(_turns(into, line, fmt), learned.ends, version_T, fmt)
        learned.ends.append(len(version_T))
        learned.told = bool(into.ended)
        if into.ended:
            return dataclasses.replace(into, turns=turns)
        first = next(place for place, turn in enumerate(turns) if not turn.learned)
        context = [*_context(turns[:first]), *turns[first].prompt_ids]
        if not turns[first].fresh:
            turns[first] = dataclasses.replace(turns[first], prompt_ids=context, fresh=True)
        return dataclasses.replace(into, turns=turns[first:], ended="unfinished")

    def _metrics(
        self, pool: Pool, trajectories: Sequence[Trajectory], ended: Sequence[Trajectory], step: int
    ) -> dict[str, float]:
        """Return metrics of what the step played, with success, reward and turns of the trajectories that ended."""
        new = [
            dataclasses.replace(each, turns=[turn for turn in each.turns if not turn.learned]) for each in trajectories
        ]
        told = rollout_metrics(new) | lag_metrics(new, step)
        told["env_steps"] -= sum(
            not flight.watched[number].ended and flight.lines[number].open is not None
            for flight in pool.flights
            for number in flight.watched
        )
        of_ended = rollout_metrics(ended)
        for name in ("trajectories", "success", "reward", "turns"):
            told[name] = of_ended[name]
        counts = {"ended": len(ended), "unfinished": pool.num_unfinished}
        return told | {name: float(count) for name, count in counts.items()}


def _turns(into: Trajectory, line: Line, fmt: Format) -> list[Turn]:
    """Return the turns so far, with the first tokens of the response that waits inside."""
    turns = [turn for turn in into.turns if turn.response_ids]
    if line.open is not None:
        waiting = dataclasses.replace(into.turns[-1], response_ids=[], behavior_logprobs=[])
        waiting.add(line.open)
        turns.append(dataclasses.replace(waiting, response=fmt.text(waiting.response_ids), truncated=False))
    return turns


def cut(turns: Sequence[Turn], ends: Sequence[int], version_T: Sequence[int], fmt: Format) -> list[Turn]:
    """Cut turns where steps ended, and mark those before the last of these ends as learned.

    The reward of a response is on its last piece, and so is its validity.

    Args:
        turns: Turns of a trajectory.
        ends: Generated tokens at the ends of the steps.
        version_T: `[tokens]` version of the weights that sampled each token.
        fmt: Decodes the pieces.
    """
    pieces: list[Turn] = []
    start = 0
    for turn in turns:
        end = start + len(turn.response_ids)
        bounds = [0, *(each - start for each in dict.fromkeys(ends) if start < each < end), end - start]
        for a, b in itertools.pairwise(bounds):
            last, part = b == end - start, slice(a, b)
            entropies = turn.behavior_entropies
            piece = dataclasses.replace(
                turn,
                prompt_ids=[] if a else turn.prompt_ids,
                fresh=turn.fresh and not a,
                response_ids=turn.response_ids[part],
                behavior_logprobs=turn.behavior_logprobs[part],
                behavior_entropies=None if entropies is None else entropies[part],
                behavior_state=None if a else turn.behavior_state,
                version=version_T[start + a],
                learned=bool(ends) and start + b <= ends[-1],
            )
            if len(bounds) > 2:
                piece.response = fmt.text(piece.response_ids)
            if not last:
                piece.reward, piece.valid, piece.truncated = 0.0, True, False
            pieces.append(piece)
        start = end
    return pieces


def _context(turns: Sequence[Turn]) -> list[int]:
    """Return the tokens of the conversation after these turns."""
    ids: list[int] = []
    for turn in turns:
        ids = [*([] if turn.fresh else ids), *turn.prompt_ids, *turn.response_ids]
    return ids
