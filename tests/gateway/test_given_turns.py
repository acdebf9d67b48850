"""Trajectories of harnesses that begin with given turns: forks, continuations, trees; and replays that diverge."""

import itertools
from typing import Any

import numpy as np
import pytest

from tests.gateway.asking import ask, suite, user
from tests.gateway.test_agents import ROLLOUT, SAME, models_of
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.extensions.continuations.play import Continuations
from turnwise.extensions.continuations.settings import ContinuationsConfig
from turnwise.extensions.gateway.agents import Harnesses
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.plays import play_starts, play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import fork
from turnwise.rollout.trajectory import Trajectory

MODELS = models_of("tiny")
TASKS = suite.tasks("train")[:3]
NATIVE = InProcessEnvironments(suite.environment)


def harness(name: str = "tests.gateway.asking:play_household") -> Environments:
    return Harnesses(HarnessConfig(run=name))


def same(one: Trajectory, other: Trajectory) -> None:
    assert one.failure is other.failure is None
    assert (one.success, one.reward, one.shared) == (other.success, other.reward, other.shared)
    assert len(one.turns) == len(other.turns)
    for turn, twin in zip(one.turns, other.turns, strict=True):
        assert [getattr(turn, name) for name in SAME] == [getattr(twin, name) for name in SAME]
        np.testing.assert_allclose(turn.behavior_logprobs, twin.behavior_logprobs, atol=1e-4)


def games(environments: Environments) -> list[Trajectory]:
    return play_tasks(make_collector(ROLLOUT, environments, suite.task_name), MODELS, TASKS, seed=7)


@pytest.mark.parametrize("token", [0, 1])
def test_a_fork_of_a_harness_is_that_of_its_environment(token):
    forked = []
    for environments in (NATIVE, harness()):
        played = games(environments)
        starts = [
            fork(each, turn, TASKS[each.group], token if len(each.turns[turn].response_ids) > token else 0)
            for each in played
            for turn in range(len(each.turns))
        ]
        forked.append(play_starts(MODELS, starts, environments, ROLLOUT, seed=3))
        for start, trajectory in zip(starts, forked[-1], strict=True):
            assert trajectory.failure is None
            assert trajectory.shared == len(start.turns)
            assert all(mine is given for mine, given in zip(trajectory.turns, start.turns, strict=False))
            if start.token:
                turn, parent = trajectory.turns[trajectory.shared], start.begun
                assert parent is not None
                assert (turn.begun, turn.origin) == (start.token, parent)
                assert turn.response_ids[: start.token] == parent.response_ids[: start.token]
    assert len(forked[0]) > 10
    for one, other in zip(*forked, strict=True):
        same(one, other)


@pytest.mark.parametrize("rule", ["tree_grpo", "arpo", "treerl"])
def test_trees_of_a_harness_are_those_of_its_environment(rule):
    options = {"starts": 2, "tokens": 1} if rule == "treerl" else {}
    rollout = RolloutConfig.model_validate(
        {"group_size": 6, "max_new_tokens": 6, "collector": {"name": "branching", "rule": rule, **options}}
    )
    trees = [
        play_tasks(make_collector(rollout, environments, suite.task_name), MODELS, TASKS[:2], seed=1)
        for environments in (NATIVE, harness())
    ]
    assert any(each.shared for each in trees[0])
    for one, other in zip(*trees, strict=True):
        same(one, other)
        assert one.tree == other.tree


def test_values_by_continuation_of_a_harness_are_those_of_its_environment():
    values = []
    for environments in (NATIVE, harness()):
        go_on = Continuations(ContinuationsConfig(number=4), ROLLOUT, environments, MODELS, seed=0)
        values.append(go_on(games(environments)[:3], TASKS))
    assert len(values[0]) > 5
    assert np.isfinite(values[0]).all()
    np.testing.assert_array_equal(*values)


def test_a_fork_of_another_task_is_refused_at_its_first_message():
    for environments in (NATIVE, harness()):
        played = games(environments)[0]
        for turn in (0, 1):
            (other,) = play_starts(MODELS, [fork(played, turn, TASKS[2])], environments, ROLLOUT, seed=0)
            assert "the replay " in (other.failure or ""), turn


COUNT = itertools.count()


def ask_otherwise_each_time(task: Any, endpoint: Any) -> float:
    messages = [user(f"go {next(COUNT)}")]
    for _ in range(3):
        messages += [ask(endpoint, messages), user("look")]
    return 1.0


PATIENCE = iter([4, 1])


def give_up_the_second_time(task: Any, endpoint: Any) -> float:
    messages = [user("look")]
    for _ in range(next(PATIENCE)):
        messages += [ask(endpoint, messages), user("look")]
    return 1.0


def keep_a_diary(task: Any, endpoint: Any) -> float:
    """Puts a number that changes into an earlier message; the last one stays the same."""
    messages = [user(f"go {next(COUNT)}"), {"role": "assistant", "content": "look"}, user("look")]
    for _ in range(2):
        messages += [ask(endpoint, messages), user("look")]
    return 1.0


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("ask_otherwise_each_time", r"the replay diverged before turn 1: its last message is 'go \d+', before it was"),
        ("give_up_the_second_time", r"the replay diverged before turn 2: it ended, where it had gone on before"),
        ("keep_a_diary", r"the replay diverged before turn 1: its prompt differs from token \d+ on"),
    ],
)
def test_a_replay_that_diverges_fails_with_the_turn_and_the_first_difference_and_is_counted(name, cause):
    environments = harness(f"tests.gateway.test_given_turns:{name}")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    assert first.failure is None
    (again,) = play_starts(MODELS, [fork(first, 2 if name[0] == "g" else 1, 0)], environments, ROLLOUT, seed=1)
    with pytest.raises(AssertionError, match=cause):
        raise AssertionError(again.failure)
    assert not again.usable
    assert rollout_metrics([first, again])["diverged"] == 1


def test_a_harness_that_catches_the_refusal_and_reports_a_reward_fails_all_the_same():
    environments = harness("tests.gateway.test_given_turns:lie_after_a_refusal")
    collector = make_collector(RolloutConfig(group_size=1, max_new_tokens=6), environments, str)
    (first,) = play_tasks(collector, MODELS, [0], seed=0)
    (again,) = play_starts(MODELS, [fork(first, 1, 0)], environments, ROLLOUT, seed=1)
    assert again.failure is not None
    assert again.reward == first.turns[0].reward == 0


def lie_after_a_refusal(task: Any, endpoint: Any) -> float:
    messages = [user(f"go {next(COUNT)}")]
    for _ in range(2):
        try:
            messages += [ask(endpoint, messages), user("look")]
        except RuntimeError:
            return 1.0
    return 1.0
