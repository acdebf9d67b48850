"""Continuations that begin in copies: a trajectory is replayed once, and nothing else changes."""

import copy
from typing import Any

import numpy as np
import pytest
from tests.rollout.playing import POLICY, always
from tests.rollout.playing import play as play_tasks
from tests.rollout.test_starts import Moody
from tests.trees.counting import Awaited, Broken, Copied, Counting

from turnwise.base.blocking import blocking
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.workers import WorkerEnvironments
from turnwise.extensions.continuations.play import Continuations
from turnwise.extensions.continuations.settings import ContinuationsConfig
from turnwise.rollout.settings import RolloutConfig

TASKS, NUMBER = [0, 1], 3


def service(environments: Environments, *, context="append", engine=None, **settings: Any) -> Continuations:
    rollout = RolloutConfig.model_validate({"groups": 2, "group_size": 2, "max_new_tokens": 3, "context": context})
    models = Models(policy=NamedModel(POLICY, engine or LocalEngine(POLICY.model)))
    return Continuations(ContinuationsConfig(number=NUMBER, **settings), rollout, environments, models, 0)


def played(context="append"):
    window = 1 if context == "window" else None
    engine = LocalEngine(POLICY.model)
    return play_tasks(engine, TASKS, Counting, group_size=2, seed=3, window=window)


def steps_once(trajectories) -> int:
    """Steps up to the last response of each trajectory, which a replay of all its states takes."""
    return sum(len(each.turns) - 1 for each in trajectories)


def steps_played_on(trajectories) -> int:
    """Steps of all continuations after the states that they begin in; a first state is shared by its group."""
    later = sum(turns for each in trajectories for turns in range(1, len(each.turns)))
    return NUMBER * (later + len(TASKS) * len(trajectories[0].turns))


@pytest.mark.parametrize("context", ["append", "window"])
@pytest.mark.parametrize("environment", [Copied, Awaited])
def test_each_trajectory_is_replayed_once_and_the_returns_are_those_of_replays(environment, context, tmp_path):
    trajectories = played(context)
    replays = service(InProcessEnvironments(Counting), context=context)
    expected = replays(trajectories, TASKS)
    told = replays.finish(tmp_path / "replays.parquet")
    environments = InProcessEnvironments(environment)
    copies = service(environments, context=context, at_once=5)
    Counting.steps = 0
    np.testing.assert_array_equal(copies(trajectories, TASKS), expected)
    assert Counting.steps == steps_once(trajectories) + steps_played_on(trajectories)
    assert copies.finish(tmp_path / "copies.parquet")["continued_env_steps"] == Counting.steps
    assert told["continued_env_steps"] > 1.4 * Counting.steps
    assert len(np.unique(expected)) > 1
    assert not environments._environments, "copies are released"
    assert copies.finish(tmp_path / "nothing.parquet")["continued_env_steps"] == 0.0


def test_workers_copy_too(tmp_path):
    trajectories = played()
    expected = service(InProcessEnvironments(Counting))(trajectories, TASKS)
    environments = WorkerEnvironments(Copied, workers=1)  # in a fresh process, which counts from 0
    try:
        copies = service(environments)
        np.testing.assert_array_equal(copies(trajectories, TASKS), expected)
        assert not environments._lives
    finally:
        blocking(environments.aclose())
    in_worker = max(one.info["steps"] for one in copies._played)
    assert copies.finish(tmp_path / "step.parquet")["continued_env_steps"] == in_worker
    assert in_worker == steps_once(trajectories) + steps_played_on(trajectories)


def test_only_states_that_are_continued_are_replayed():
    trajectories = played()
    copies = service(InProcessEnvironments(Copied), turns=2)
    Counting.steps = 0
    copies(trajectories, TASKS)
    turns = len(trajectories[0].turns)
    assert Counting.steps == 4 * 1 + NUMBER * (2 * turns + 4 * (turns - 1))


def test_where_a_copy_raises_the_continuations_replay(tmp_path):
    trajectories = played()
    expected = service(InProcessEnvironments(Counting))(trajectories, TASKS)
    environments = InProcessEnvironments(Broken)
    copies = service(environments)
    np.testing.assert_array_equal(copies(trajectories, TASKS), expected)
    assert copies.finish(tmp_path / "step.parquet")["continued_failed_frac"] == 0.0
    assert not environments._environments


class Copyable(Moody):
    def copy(self) -> "Copyable":
        return copy.copy(self)


@pytest.mark.parametrize("turns", [None, 3])  # the replay differs in the middle, or in its last state
def test_a_state_that_the_replay_does_not_find_is_not_continued(turns):
    engine = always("red")
    trajectories = play_tasks(engine, TASKS, Copyable, group_size=1, seed=3)
    return_RK = service(InProcessEnvironments(Copyable), engine=engine, turns=turns)(trajectories, TASKS)
    assert np.isfinite(return_RK[[0, 1, 2, 5, 6]]).all()
    assert np.isnan(return_RK[7:]).all()


class Tallied(Copied):
    copies = 0

    def copy(self) -> "Tallied":
        Tallied.copies += 1
        return copy.copy(self)


def test_continuations_themselves_are_not_copied():
    trajectories = played()
    asked = service(InProcessEnvironments(Tallied))
    asked(trajectories, TASKS)
    assert Tallied.copies == sum(len(each.turns) for each in trajectories) + len(asked._played)
