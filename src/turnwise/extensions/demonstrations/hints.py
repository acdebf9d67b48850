"""Play tasks again from the first turns of a demonstration: the harder the task was, the more turns."""

import dataclasses
from typing import Any

import numpy as np

from turnwise.base.streams import Stream
from turnwise.engines.models import Models
from turnwise.environments.hosts import Environments
from turnwise.extensions.demonstrations.library import Demonstrations, alone
from turnwise.extensions.demonstrations.settings import HintsConfig
from turnwise.extensions.stores.replay import with_more
from turnwise.rollout.collectors import make_request
from turnwise.rollout.experience import Experience, Steps, learned_from
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.plays import play_starts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

DIGITS = 9
"""Digits of the number of turns that count, so that 0.3 of 10 turns are 3."""


class Hinted:
    """ADHint's hints by difficulty: each task is played again from the first turns of its demonstration.

        D = 1 - success rate of the task's group                                  its difficulty
        w = clip((w_max - w_min) D + w_min + noise z, 0, 1),   z ~ N(0, 1)        share of the demonstration
        hint = its first floor(w * turns) turns, all but one at most

    The environment plays the hint, and the policy continues, `hinted` times. These trajectories are a separate group:
    hinted and other trajectories have separate baselines. The hint is part of the first prompt, so its tokens have no
    loss and no credit.

    The schedule is reconstructed: the paper's bounds, noise and number of hinted trajectories are not known. Whole
    turns are ours; the paper cuts tokens of a solution. So is to mask all hints: the paper masks those of trajectories
    with a negative advantage, and weights the tokens of the others by their entropy. This weight and that of the
    advantages by the difficulties of both groups are known in words only, and not here.

    A group without usable trajectories, a demonstration or a turn of a hint is not played again.

    Reference: ADHint, arXiv 2512.13095.
    """

    def __init__(
        self,
        source: Steps,
        settings: HintsConfig,
        demonstrations: Demonstrations,
        environments: Environments,
        rollout: RolloutConfig,
        seed: int,
    ):
        self._source, self._settings, self._demonstrations = source, settings, demonstrations
        self._environments, self._rollout, self._seed = environments, rollout, seed
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step, and play its tasks again from hints."""
        experience = self._source.next(collector, models, step, on_turn)
        first = len(experience.numbers)
        successes_G, failures_G = experience.outcomes
        total_G = successes_G + failures_G
        difficulty_G = 1 - successes_G / np.maximum(total_G, 1)
        share_G = hint_shares(difficulty_G, self._settings, np.random.default_rng([self._seed, Stream.HINTS, step]))
        groups, starts = list[int](), list[Start]()
        for group in np.flatnonzero(total_G > 0).tolist():
            start = self._start(experience, group, first + len(starts), float(share_G[group]), models)
            if start is not None:
                groups.append(group)
                starts.append(start)
        played = self._play(starts, collector, models, step, on_turn)
        passing = self._rollout.filter_at(step)
        used_N = learned_from(played, passing, len(starts), first=first, keep_spread=self._rollout.keep_spread)
        metrics = {"hinted": float(len(groups))}
        if (total_G > 0).any():
            metrics["difficulty"] = float(difficulty_G[total_G > 0].mean())
        if played:
            metrics["hint_turns"] = float(np.mean([len(start.turns) for start in starts]))
            metrics["hint_failed_frac"] = float(np.mean([each.failure is not None for each in played]))
        if any(each.usable for each in played):
            metrics["hint_success"] = float(np.mean([each.success for each in played if each.usable]))
        numbers = [experience.numbers[group] for group in groups]
        tasks = [experience.tasks[group] for group in groups]
        given = sum(len(starts[each.group - first].turns) for each in played)
        return with_more(experience, played, metrics, used_N, given_turns=given, tasks=tasks, numbers=numbers)

    def _start(self, experience: Experience, group: int, place: int, share: float, models: Models) -> Start | None:
        number = experience.numbers[group]
        steps, turns, _ = self._demonstrations.played(number, models.policy.policy)
        length = hint_turns(share, len(turns))
        if not length:
            return None
        rewards = [step.reward for step in steps[1 : length + 1]]
        hint = [dataclasses.replace(turn, reward=reward) for turn, reward in zip(turns, rewards, strict=False)]
        name = f"{self._demonstrations.name(number)}, from turn {length}"  # another start, so another task to methods
        following = turns[length].observation
        return Start(experience.tasks[group], place, name, tuple(hint), following)

    def _play(
        self, starts: list[Start], collector: Collector, models: Models, step: int, on_turn: OnTurn
    ) -> list[Trajectory]:
        hinted = self._settings.hinted
        if not starts:
            return []
        every = [start for start in starts for _ in range(hinted)]
        seed = int(np.random.SeedSequence([self._seed, Stream.HINTS, step]).generate_state(1)[0])
        request = make_request(models, self._environments, self._rollout, seed=seed, on_turn=on_turn)
        return [alone(each) for each in play_starts(every, request, collector)]


def hint_shares(
    difficulty_G: np.ndarray, settings: HintsConfig, draws: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the share of the demonstration that is each group's hint, `[groups]`; see `Hinted`."""
    least, most, noise = settings.w_min, settings.w_max, settings.noise
    noise_G = noise * draws.standard_normal(len(difficulty_G))
    return np.clip((most - least) * difficulty_G + least + noise_G, 0.0, 1.0)


def hint_turns(share: float, num_turns: int) -> int:
    """Return the number of turns of a hint: floor(share * num_turns), but at least one is left to the policy."""
    return max(0, min(int(round(share * num_turns, DIGITS)), num_turns - 1))
