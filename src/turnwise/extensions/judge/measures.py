"""Measure what a judge thinks of trajectories: their place in the group's tournament, and the progress of each turn."""

import functools
from collections.abc import Sequence

import numpy as np

from turnwise.credit.segments import Segments
from turnwise.credit.shaping import tournament
from turnwise.extensions.judge.cases import Ask, Case, Comparison, Rating, task_of, told
from turnwise.extensions.judge.rounds import at_once
from turnwise.measures.base import Columns, Played, measure
from turnwise.rollout.trajectory import Trajectory


@measure(provides=("rank",), model="judge")
def rank(step: Played, columns: Columns) -> Columns:
    """Rank the trajectories of each group by a tournament of pairwise judgements, each in both orders; 0 is best.

    The tournaments of all groups go on at the same time. The anchor is the first trajectory of the group. A judgement
    that fails is 5 to 5.

    Reference: ArenaRL, arXiv 2601.06487.
    """
    judge = step.judge
    play = getattr(tournament, judge.settings.tournament)
    groups = Segments.from_sorted_ids(np.array([trajectory.group for trajectory in step.trajectories]))

    def compete(members: Sequence[Trajectory], ask: Ask) -> np.ndarray:
        texts = [told(one, observations=judge.settings.observations) for one in members]
        task = task_of(members[0])

        def compare(pairs: Sequence[tuple[int, int]]) -> Sequence[tuple[float, float] | None]:
            return ask([Comparison(task, texts[a], texts[b]) for a, b in pairs])

        return play(tournament.Arena(compare, len(members)))

    bounds = zip(groups.offsets[:-1].tolist(), groups.offsets[1:].tolist(), strict=True)
    jobs = [functools.partial(compete, step.trajectories[begin:end]) for begin, end in bounds]
    return {"rank": step.turns_of_trajectories.broadcast(np.concatenate(at_once(jobs, judge)))}


@measure(provides=("progress",), model="judge")
def progress(step: Played, columns: Columns) -> Columns:
    """Rate each trajectory before its first response and after each one: the increase by the response, in points of 10.

        progress_t = phi(after response t) - phi(before it)

    The sum over a trajectory is what its last rating exceeds its first one by, whatever lies between. A rating that
    fails repeats the one before it; a first one that fails is 0.

    Reference: the incremental distance reward of MICA, arXiv 2603.06194; the wording of the question is ours.
    """
    judge = step.judge
    cases: list[Case] = []
    for one in step.trajectories:
        for num_turns in range(len(one.turns) + 1):
            cases.append(Rating(task_of(one), told(one, num_turns, observations=judge.settings.observations)))
    ratings = np.array([np.nan if verdict is None else verdict for verdict in judge(cases)], dtype=np.float64)
    states = Segments.from_lengths([len(one.turns) + 1 for one in step.trajectories])
    failed = np.isnan(ratings) & (states.positions > 0)
    last_known = np.maximum.accumulate(np.where(failed, 0, np.arange(len(ratings))))
    gain = np.diff(np.nan_to_num(ratings[last_known]))
    return {"progress": np.delete(gain, states.offsets[1:-1] - 1)}
