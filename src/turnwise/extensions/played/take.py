"""Learn in each step from the tokens that it has played, even of half-played trajectories (T-PPO)."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from turnwise.extensions.step_budget.line import Line
from turnwise.models.format import Format
from turnwise.rollout.experience import Experience, lag_metrics, outcomes
from turnwise.rollout.flight import Flight
from turnwise.rollout.metrics import rollout_metrics, shares_of_turns
from turnwise.rollout.pool import Pool
from turnwise.rollout.trajectory import Trajectory, Turn


class PlayedTokens:
    """Learn from exactly the tokens that a step has played, even of half-played trajectories (T-PPO).

    A step divides its budget among the trajectories in progress. With a budget of tokens it may end inside a response,
    which the next step continues with its own weights. A group that has ended makes room for another task in the next
    step.
    """

    async def take(self, pool: Pool, step: int) -> Experience:
        """Collect the experience of a step; see `Take.take`."""
        settings, fmt = pool.settings, pool.format
        await self._fill(pool, step)
        spent = await pool.spent_ahead()
        trajectories: list[Trajectory] = []
        whole: list[tuple[int, Trajectory]] = []
        numbers: list[int] = []
        for flight in pool.flights:
            windows = [self._window(flight, number, fmt, whole) for number in flight.watched]
            if new := [window for window in windows if window is not None]:
                trajectories += [dataclasses.replace(window, group=len(numbers)) for window in new]
                numbers.append(flight.number)
        done = [flight for flight in pool.flights if flight.done]
        for number, flight in enumerate(done):
            for trajectory in flight.trajectories:
                trajectory.group = number
        of_done = [each for flight in done for each in flight.trajectories]
        pool.learn(done)
        observed = np.array([flight.number for flight in done], dtype=np.int64)
        pool.selector.observe(observed, *outcomes(of_done, len(done)))
        metrics = self._metrics(pool, trajectories, [each for _, each in whole], step) | {"spent": float(spent)}
        for flight in done:
            pool.flights.remove(flight)
        used_N = np.array([each.usable for each in trajectories], dtype=bool)
        tasks = [pool.tasks[each] for each in numbers]
        if settings.max_lag and step < pool.last_step:
            await self._fill(pool, step + 1)
            pool.spend_ahead()
        return Experience(trajectories, used_N, metrics, tasks, numbers, whole=whole)

    @staticmethod
    async def _fill(pool: Pool, step: int) -> None:
        """Start groups until the configured number is in progress."""
        left = max(1, pool.last_step - step + 1) * pool.settings.groups
        await pool.start(step, min(pool.settings.in_progress, left) - len(pool.flights))

    def _window(
        self, flight: Flight, number: int, fmt: Format, whole: list[tuple[int, Trajectory]]
    ) -> Trajectory | None:
        """Return what is new of a trajectory since the last step, whose other turns are marked as learned.

        An ended trajectory comes complete, since a critic learns its return at all of its turns. Of one that continues,
        earlier tokens are part of the first prompt. None: nothing is new.
        """
        line, into, learned = flight.lines[number], flight.watched[number], flight.learned[number]
        if into.ended and not learned.finished:
            whole.append((flight.number, into))
        version_T = [each.generation.version for each in line.sampled for _ in each.generation.token_ids]
        if learned.finished or not (into.ended or len(version_T) > sum(learned.ends[-1:])):
            return None
        turns = cut(_turns(into, line, fmt), learned.ends, version_T, fmt)
        learned.ends.append(len(version_T))
        learned.finished = bool(into.ended)
        if into.ended:
            return dataclasses.replace(into, turns=turns)
        first = next(place for place, turn in enumerate(turns) if not turn.extras["learned"])
        context = [*_context(turns[:first]), *turns[first].prompt_ids]
        if not turns[first].fresh:
            turns[first] = dataclasses.replace(turns[first], prompt_ids=context, fresh=True)
        return dataclasses.replace(into, turns=turns[first:], ended="unfinished")

    def _metrics(
        self, pool: Pool, trajectories: Sequence[Trajectory], ended: Sequence[Trajectory], step: int
    ) -> dict[str, float]:
        """Return metrics of what the step played, with success, reward and turns of the trajectories that ended."""
        is_new = lambda turn: not turn.extras["learned"]  # noqa: E731
        new = [dataclasses.replace(each, turns=[*filter(is_new, each.turns)]) for each in trajectories]
        metrics = rollout_metrics(new) | lag_metrics(new, step)
        metrics["env_steps"] -= sum(
            not flight.watched[number].ended and flight.lines[number].open is not None
            for flight in pool.flights
            for number in flight.watched
        )
        # of a response that is cut, the last piece alone tells whether it is valid
        metrics |= shares_of_turns([turn for each in new for turn in each.turns if turn.extras.get("whole", True)])
        of_ended = rollout_metrics(ended)
        for name in ("trajectories", "success", "reward", "turns"):
            metrics[name] = of_ended[name]
        counts = {"ended": len(ended), "unfinished": pool.num_unfinished}
        return metrics | {name: float(count) for name, count in counts.items()}


def _turns(into: Trajectory, line: Line, fmt: Format) -> list[Turn]:
    """Return the turns so far, with the first tokens of the response that waits inside."""
    turns = [turn for turn in into.turns if turn.response_ids]
    if line.open is not None:
        waiting = dataclasses.replace(into.turns[-1], response_ids=[], behavior_logprobs=[])
        waiting.add(line.open)
        waiting.put(whole=False)
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
                version=version_T[start + a],
            ).put(learned=bool(ends) and start + b <= ends[-1], state=None if a else turn.extras.get("state"))
            if len(bounds) > 2:
                piece.response = fmt.text(piece.response_ids)
            if not last:
                piece.reward, piece.valid, piece.truncated = 0.0, True, False
                piece.put(whole=False)
            pieces.append(piece)
        start = end
    return pieces


def _context(turns: Sequence[Turn]) -> list[int]:
    """Return the tokens of the conversation after these turns."""
    ids: list[int] = []
    for turn in turns:
        ids = [*([] if turn.fresh else ids), *turn.prompt_ids, *turn.response_ids]
    return ids
