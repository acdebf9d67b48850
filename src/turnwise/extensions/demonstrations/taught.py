"""Decide which groups of a step are taught by a demonstration."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from turnwise.engines.models import Models
from turnwise.extensions.demonstrations.library import Demonstrations
from turnwise.extensions.demonstrations.settings import TaughtConfig
from turnwise.rollout.experience import Experience, Steps
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What a step learns by demonstration."""

    left_N: np.ndarray  # `[trajectories that the step learns from]` bool, those that the policy terms leave out
    demonstrations: Sequence[Trajectory]  # trajectories to imitate, one per taught group


class Taught:
    """Hybrid post-training (HPT): find a demonstration for each group with at most `gate` successes.

    A taught group's own trajectories are left out of the policy terms, even if its task has no demonstration, unless
    the settings keep them. They are still measured, credited and recorded, and a critic learns their returns. The same
    holds for a dropped group that is taught. Replays of a store do not count as successes of a group.

    Reference: Lv et al., Towards a Unified View of LLM Post-Training, arXiv 2509.04419; code
    TsinghuaC3I/Unify-Post-Training.
    """

    def __init__(self, source: Steps, settings: TaughtConfig, demonstrations: Demonstrations):
        self._source, self._settings, self._demonstrations = source, settings, demonstrations
        self.lesson = Lesson(np.zeros(0, dtype=bool), [])  # that of the last step
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Collect the experience of a step, and choose its lesson."""
        experience = self._source.next(collector, models, step, on_turn)
        policy = models.policy.policy
        successes_G, failures_G = experience.outcomes
        few_G = (successes_G <= self._settings.gate) & (successes_G + failures_G > 0)
        asked = [experience.numbers[group] for group in np.flatnonzero(few_G).tolist()]
        found = [self._demonstrations.trajectory(task, policy.format, policy.max_context) for task in asked]
        given = [each for each in found if each is not None]
        taught_G = np.append(few_G, np.zeros(experience.further, dtype=bool))
        taught_N = np.array([each.usable and taught_G[each.group] for each in experience.trajectories], dtype=bool)
        used_N = experience.used_N | taught_N
        left_N = ~experience.used_N if self._settings.beside else ~experience.used_N | taught_N
        self.lesson = Lesson(left_N[used_N], given)
        metrics = {
            "taught_frac": len(given) / len(few_G),
            "undemonstrated_frac": (len(asked) - len(given)) / len(few_G),
        }
        return dataclasses.replace(experience, used_N=used_N, metrics=experience.metrics | metrics)
