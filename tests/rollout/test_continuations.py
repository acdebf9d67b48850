"""Continuations: the policy plays on from every turn, and what that gives and costs is what it should be."""

import re

import numpy as np
import pytest
import torch
from tests.rollout.playing import FORMAT, POLICY, always
from tests.rollout.playing import play as play_tasks
from tests.rollout.test_starts import Long, Moody
from tests.toys import Colors, trajectory

from turnwise.base.errors import RunError
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.continuations.measures import continued
from turnwise.extensions.continuations.play import Continuations
from turnwise.extensions.continuations.settings import ContinuationsConfig
from turnwise.measures import Played
from turnwise.rollout.record import read_table
from turnwise.rollout.settings import RolloutConfig

ROLLOUT = RolloutConfig(groups=2, group_size=2, max_new_tokens=3)


def service(kind=Long, *, engine=None, seed=0, version=0, rollout=ROLLOUT, **settings) -> Continuations:
    models = Models(policy=NamedModel(POLICY, engine or LocalEngine(POLICY.model), version=version))
    return Continuations(ContinuationsConfig(**settings), rollout, InProcessEnvironments(kind), models, seed)


def played(kind=Long, *, engine=None, group_size=2):
    return play_tasks(engine or LocalEngine(POLICY.model), [0, 1], kind, group_size=group_size, seed=3)


def test_with_one_possible_continuation_the_return_is_what_is_left():
    trajectories = played(engine=always("red"))
    return_RK = service(engine=always("red"), number=3)(trajectories, [0, 1])
    to_go = [sum(later.reward for later in one.turns[at:]) for one in trajectories for at in range(len(one.turns))]
    assert {0.0, 1.0, 2.0} == set(to_go)
    np.testing.assert_array_equal(return_RK, np.repeat(to_go, 3).reshape(-1, 3))


def test_the_policy_plays_on():
    """With one token per response, the mean of many continuations is the probability of the token that is paid."""
    (one,) = play_tasks(LocalEngine(POLICY.model), [1], Colors, group_size=1)
    prompt = torch.tensor([one.turns[0].prompt_ids])
    with torch.no_grad():
        chance = POLICY.model(prompt).logits[0, -1].softmax(-1)
    (right,) = FORMAT.tokenizer.encode(Colors.color(1, 0), add_special_tokens=False)
    exact, number = float(chance[right]), 2000
    assert 0.02 < exact < 0.98
    mean = service(Colors, rollout=RolloutConfig(max_new_tokens=1), number=number)([one], [1]).mean()
    assert abs(mean - exact) < 4 * np.sqrt(exact * (1 - exact) / number)


def test_draws_depend_on_seed_step_and_place_only():
    trajectories = played()
    first = service(number=4)(trajectories, [0, 1])
    assert len(np.unique(first[0])) > 1, "continuations of a state differ"
    np.testing.assert_array_equal(service(number=4, at_once=3)(trajectories, [0, 1]), first)
    assert (service(number=4, seed=1)(trajectories, [0, 1]) != first).any()
    assert (service(number=4, version=1)(trajectories, [0, 1]) != first).any(), "each step has its own draws"


def test_a_history_that_trajectories_share_is_continued_once():
    trajectories = played(engine=always("red"), group_size=4)
    asked = service(number=2)
    return_RK = asked(trajectories, [0, 1])
    assert return_RK.shape == (2 * 4 * 5, 2)
    np.testing.assert_array_equal(return_RK[:5], return_RK[5:10])  # all four trajectories of a group are the same


def test_two_measures_that_ask_about_the_same_trajectories_pay_once():
    trajectories, asked = played(), service(number=2)
    first, cost = asked(trajectories, [0, 1]), asked.num_tokens
    assert asked(trajectories, [0, 1]) is first
    assert asked.num_tokens == cost
    asked([*trajectories[:2]], [0, 1])
    assert asked.num_tokens > cost


def test_costs_are_counted(tmp_path):
    trajectories = played(engine=always("red"))
    asked = service(engine=always("red"), number=3, turns=2)
    return_RK = asked(trajectories, [0, 1])
    told = asked.finish(tmp_path / "step-000001.parquet")
    # 2 groups of equal trajectories: states before turns 1 and 2, three times; 5 steps with those that are replayed
    assert told == {"continued_states": 4.0, "continued_env_steps": 4 * 3 * 5.0, "continued_failed_frac": 0.0}
    assert asked.num_tokens == 2 * 3 * (5 + 4) * 2, "a word and a stop token per response, none for those replayed"
    assert np.isnan(return_RK.reshape(4, 5, 3)[:, 2:]).all()
    assert np.isfinite(return_RK.reshape(4, 5, 3)[:, :2]).all()
    rows = read_table(tmp_path / "step-000001.parquet", ()).to_pylist()
    assert [(row["group"], row["turn"], row["continuation"]) for row in rows[:4]] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 2),
        (0, 1, 0),
    ]
    assert sum(row["tokens"] for row in rows) == asked.num_tokens
    assert asked.finish(tmp_path / "step-000002.parquet")["continued_states"] == 0.0, "it forgets what it wrote"


def test_a_replay_that_differs_loses_its_branch_only_and_names_turn_and_observations(tmp_path):
    trajectories = played(Moody, engine=always("red"), group_size=1)
    asked = service(Moody, engine=always("red"), number=2)
    return_RK = asked(trajectories, [0, 1])
    assert np.isfinite(return_RK[:5]).all()
    assert np.isfinite(return_RK[5:7]).all(), "nothing is replayed beyond the second turn"
    assert np.isnan(return_RK[7:]).all()
    told = asked.finish(tmp_path / "step-000001.parquet")
    assert told["continued_failed_frac"] == pytest.approx(6 / 20)
    rows = read_table(tmp_path / "step-000001.parquet", ()).to_pylist()
    failures = [row["failure"] for row in rows if row["failure"]]
    expected = re.escape(repr(trajectories[1].turns[2].observation))
    for failure in failures:
        assert re.search(rf"observed 'mood \d+ \d+' before turn 3, expected {expected}", failure)
    assert all(row["return"] is None for row in rows if row["failure"])


def test_if_all_are_lost_the_run_ends():
    class Gone(Colors):
        def start(self) -> str:
            raise OSError("the server is gone")

    with pytest.raises(RunError, match=r"all 4 continuations failed; the last one: .*the server is gone"):
        service(Gone, number=4)(played(Colors, group_size=1)[:1], [0])


def values(trajectories, return_RK) -> tuple[list[float], list[float]]:
    step = Played(trajectories, continuations=lambda *_: np.array(return_RK, dtype=np.float64))
    columns = continued.run(step, {})
    return columns["value"].tolist(), columns["value_after"].tolist()


def paid(*rewards: float):
    one = trajectory(0, *[([1], [5])] * len(rewards))
    for turn, reward in zip(one.turns, rewards, strict=True):
        turn.reward = reward
    return one


def test_the_column_is_the_mean_of_what_came_back():
    before, after = values([paid(0, 0), paid(1)], [[1, 0], [np.nan, 0.25], [1, 1]])
    assert before == [0.5, 0.25, 1.0]
    assert after == [0.25, 0.0, 0.0], "nothing follows the end, whatever the next trajectory has"


def test_a_state_without_a_value_takes_that_of_the_next_and_its_response_gets_no_credit():
    nothing = [np.nan, np.nan]
    before, after = values([paid(0.5, 1, 0, 2), paid(4, 0)], [[3, 5], nothing, nothing, [1, 2], nothing, nothing])
    assert before == pytest.approx([4.0, 1 + 0 + 1.5, 0 + 1.5, 1.5, 4.0, 0.0])
    credit = np.array([0.5, 1, 0, 2, 4, 0]) + after - np.array(before)
    assert credit == pytest.approx([0.5 + 2.5 - 4, 0, 0, 2 - 1.5, 0, 0])
