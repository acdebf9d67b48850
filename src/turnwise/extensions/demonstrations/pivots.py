"""Train on single turns at pivotal states of demonstrations, without the environment."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import RunError
from turnwise.base.imports import import_named
from turnwise.base.streams import Stream
from turnwise.engines.models import Models
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.demonstrations.library import Demonstrations, alone
from turnwise.extensions.demonstrations.settings import PivotsConfig
from turnwise.models.policy import Policy
from turnwise.rollout.collectors import make_request
from turnwise.rollout.experience import Experience, Steps, outcomes, spreads
from turnwise.rollout.groups import Collector, OnTurn
from turnwise.rollout.metrics import costs, rollout_metrics
from turnwise.rollout.plays import play_starts
from turnwise.rollout.selection import kept, widest
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

TOLERANCE = 1e-6
"""Largest difference of two numbers in equal tool calls."""
Equal = Callable[[str, str], bool]
"""Function from the policy's action and the expert's to whether they are equivalent."""


def same_action(one: str, other: str) -> bool:
    """Return whether two actions are the same text except for white space, or the same JSON (numbers within 1e-6).

    JSON that is nested too deep to be read, or holds numbers too large to be compared, is not the same.
    """
    if " ".join(one.split()) == " ".join(other.split()):
        return True
    try:
        return _same(json.loads(one), json.loads(other))
    except (ValueError, OverflowError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or math.isclose(one, other, rel_tol=0.0, abs_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


@dataclasses.dataclass(frozen=True)
class PivotState:
    """A turn of a demonstration at which the policy gives one response."""

    steps: tuple[Step, ...]  # what the demonstration answered, up to this turn
    action: str  # the expert's response


class OneTurn:
    """Play a demonstration up to a state, regardless of the responses, and judge the response there.

    Its reward is 1 if it does what the expert does, else 0.
    """

    def __init__(self, state: PivotState, equal: Equal):
        self._state, self._equal, self._at = state, equal, 0

    def start(self) -> Step:
        """Return the first step of the demonstration."""
        return self._answer()

    def step(self, response: str) -> Step:
        """Continue with the next step, or judge the response at the state."""
        if self._at < len(self._state.steps):
            return self._answer()
        right = bool(self._equal(response, self._state.action))
        return Step(observation="", reward=float(right), terminated=True, info={"success": right})

    def _answer(self) -> Step:
        self._at += 1
        return dataclasses.replace(self._state.steps[self._at - 1], reward=0.0)


class Pivots:
    """PivotRL: groups of single responses at the states of demonstrations where the policy is undecided.

        profile:  `profile` responses of the policy at every state of some tasks' demonstrations, each 1 if it does the
                  same as the expert's and 0 otherwise; mean mu(s), variance var(s)
        pivots:   states with var(s) > 0 and mu(s) < lambda_diff
        step:     `rollout.groups` pivots, reshuffled each epoch, `rollout.group_size` responses each

    The turns before a state are the demonstration's and part of the prompt. The environment is asked only to check the
    demonstrations and to evaluate. The next profile, of other tasks and the then current policy, is due when a step's
    mean reward reaches `reprofile`; the paper says when rewards saturate.

    Args:
        source: Of the run; only its state is kept.
        settings: The `[demonstrations]` of a recipe.
        demonstrations: Demonstrations of the tasks.
        rollout: The `[rollout]` of a recipe.
        seed: Seed of the run.

    Raises:
        ConfigError: `settings.equal` cannot be imported.

    Reference: PivotRL, arXiv 2603.21383; recipes in NVIDIA-NeMo/Gym and NVIDIA-NeMo/RL.
    """

    def __init__(
        self,
        source: Steps,
        settings: PivotsConfig,
        demonstrations: Demonstrations,
        rollout: RolloutConfig,
        seed: int,
    ):
        self._source, self._settings, self._demonstrations = source, settings, demonstrations
        self._rollout, self._seed = rollout, seed
        equal: Equal = import_named(settings.equal) if settings.equal else same_action
        self._environments = InProcessEnvironments(lambda state: OneTurn(state, equal))
        self.pivots = np.zeros((0, 2), dtype=np.int64)
        self._profiles, self._cursor, self._due = 0, 0, True

    def next(self, collector: Collector, models: Models, step: int, on_turn: OnTurn = None) -> Experience:
        """Play responses at pivots, after a profile where one is due.

        Raises:
            RunError: A profile finds no pivot.
        """
        profile, metrics = self._profile(models, step, on_turn) if self._due else ([], {})
        states = [self._next_pivot() for _ in range(self._rollout.groups)]
        played = self._play(states, self._rollout.group_size, models, [self._seed, Stream.PIVOTS, step, 1], on_turn)
        kept_G = kept(self._rollout.filter_at(step), *outcomes(played, len(states)))
        kept_frac = kept_G.mean()
        metrics |= rollout_metrics(played, kept_frac=kept_frac, filled_frac=kept_frac) | costs([*profile, *played])
        metrics["pivots"] = float(len(self.pivots))
        mean = np.mean([each.reward for each in played if each.usable] or [0.0])
        self._due = self._settings.reprofile is not None and bool(mean >= self._settings.reprofile)
        if self._rollout.keep_spread is not None:
            kept_G = kept_G & widest(spreads(played, kept_G), self._rollout.keep_spread)
            metrics["filled_frac"] = float(kept_G.mean())
        used_N = np.array([each.usable and kept_G[each.group] for each in played], dtype=bool)
        return Experience(played, used_N, metrics, numbers=[task for task, _ in states])

    def _next_pivot(self) -> tuple[int, int]:
        epoch, place = divmod(self._cursor, len(self.pivots))
        self._cursor += 1
        order = np.random.default_rng([self._seed, Stream.PIVOTS, self._profiles, epoch]).permutation(len(self.pivots))
        task, turn = self.pivots[order[place]].tolist()
        return task, turn

    def _profile(self, models: Models, step: int, on_turn: OnTurn) -> tuple[list[Trajectory], dict[str, float]]:
        """Choose pivots, and return the responses at all states with their metrics."""
        settings, policy = self._settings, models.policy.policy
        self._profiles, self._cursor = self._profiles + 1, 0
        draws = np.random.default_rng([self._seed, Stream.PIVOTS, 0, self._profiles])
        chosen = draws.permutation(self._demonstrations.numbers)[: settings.tasks].tolist()
        states = [(task, turn) for task in chosen for turn in self._demonstrations.imitated(task, policy)]
        played = self._play(states, settings.profile, models, [self._seed, Stream.PIVOTS, step, 0], on_turn)
        successes_G, failures_G = outcomes(played, len(states))
        mean_G = successes_G / np.maximum(successes_G + failures_G, 1)
        pivotal_G = (successes_G > 0) & (failures_G > 0) & (mean_G < settings.lambda_diff)
        if not pivotal_G.any():
            raise RunError(
                f"the profile of {len(states)} states of {len(chosen)} tasks found no pivot: at each, the policy gives "
                f"the expert's response always or never, or not below lambda_diff={settings.lambda_diff:g}; raise "
                "demonstrations.tasks or demonstrations.profile"
            )
        self.pivots = np.array(states)[pivotal_G]
        mean = float(mean_G.mean())
        metrics = {"profiled": float(len(states)), "profile_success": mean, "pivot_frac": float(pivotal_G.mean())}
        return played, metrics

    def _play(
        self, states: Sequence[tuple[int, int]], size: int, models: Models, seed: list[int], on_turn: OnTurn
    ) -> list[Trajectory]:
        policy = models.policy.policy
        starts = [start for group, state in enumerate(states) for start in [self._start(group, state, policy)] * size]
        number = int(np.random.SeedSequence(seed).generate_state(1)[0])
        request = make_request(models, self._environments, self._rollout, seed=number, on_turn=on_turn)
        return [alone(each) for each in play_starts(starts, request)]

    def _start(self, group: int, state: tuple[int, int], policy: Policy) -> Start:
        task, turn = state
        steps, turns, found = self._demonstrations.played(task, policy)
        at = PivotState(tuple(steps[: turn + 1]), found.turns[turn].response)
        return Start(at, group, f"{self._demonstrations.name(task)}, turn {turn + 1}", tuple(turns[:turn]))

    def state_dict(self) -> dict[str, Any]:
        """Return the source's state, the pivots, and which comes next."""
        own = {"pivots": self.pivots, "profiles": self._profiles, "next": self._cursor, "due": self._due}
        return {**self._source.state_dict(), "pivot_rl": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        own = state["pivot_rl"]
        self.pivots, self._profiles, self._cursor, self._due = (
            own[name] for name in ("pivots", "profiles", "next", "due")
        )
        self._source.load_state_dict({name: value for name, value in state.items() if name != "pivot_rl"})
