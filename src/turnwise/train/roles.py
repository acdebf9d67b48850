"""Learn from the turns of each role separately, if each has its own adapter."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from turnwise.rollout.experience import Experience
from turnwise.rollout.trajectory import Trajectory, Turn


def by_role(experience: Experience, roles: Sequence[str]) -> tuple[Experience, np.ndarray | slice]:
    """Divide the trajectories that a step learns from by role, in separate groups.

    So each role is compared only with itself. A reward for another role's turn counts for the role's last turn before
    it, or for its first one: every role has the return of the whole trajectory.

    Returns:
        The divided experience, all of which is used, and the index of each response in it.
    """
    if not roles:
        return experience, slice(None)
    turns = [(number, place) for number, each in enumerate(experience.used) for place in range(len(each.turns))]
    divided: list[tuple[Trajectory, list[tuple[int, int]]]] = []
    for number, trajectory in enumerate(experience.used):
        for rank, role in enumerate(roles):
            own = [place for place, turn in enumerate(trajectory.turns) if turn.extras.get("actor", "") == role]
            if own:
                group = trajectory.group * len(roles) + rank
                part = dataclasses.replace(trajectory, turns=_own_turns(trajectory.turns, own), group=group)
                divided.append((part, [(number, place) for place in own]))
    divided.sort(key=lambda each: each[0].group)  # stable: groups are adjacent
    placed = {turn: place for place, turn in enumerate(turn for _, own in divided for turn in own)}
    parts = [part for part, _ in divided]
    tasks = [task for task in experience.tasks for _ in roles]
    numbers = [number for number in experience.numbers for _ in roles]
    result = Experience(parts, np.ones(len(parts), dtype=bool), experience.metrics, tasks, numbers)
    return result, np.array([placed[turn] for turn in turns])


def _own_turns(turns: Sequence[Turn], own: Sequence[int]) -> list[Turn]:
    """Return a role's own turns with all rewards of a trajectory."""
    reward = dict.fromkeys(own, 0.0)
    for place, turn in enumerate(turns):
        reward[max((each for each in own if each <= place), default=own[0])] += turn.reward
    return [dataclasses.replace(turns[place], reward=reward[place]) for place in own]
