"""A critic in a run: what it learns, when the policy waits, and what a checkpoint holds."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.playing import FixedLength, play
from tests.toys import color_policy, small_config
from tests.train.test_every_method_trains import metrics_of, weights

from turnwise.engines.local import LocalEngine
from turnwise.lab.diagnostics.recredit import replay
from turnwise.models.critic import Critic, Ridge, join_beside
from turnwise.models.settings import CriticConfig, ModelConfig
from turnwise.objective.beside import beside_states
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import Sequences
from turnwise.objective.values import ValueTerm
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.checkpoint import load_checkpoint
from turnwise.train.credit import make_transform
from turnwise.train.loop import train


def config_of(folder, critic: Any, *, method: Any = "gae", **sections: Any):
    data: dict[str, Any] = {
        "environment": {"options": {"turns": 3}},
        "evaluate": {"every": 0, "episodes": 1, "final_episodes": 1},
        "checkpoint": {"every": 1},
    }
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section} if isinstance(section, dict) else section
    return small_config(folder, method=method, critic=critic, **data)


# -- ridge regression --------------------------------------------------------------------------------------------------


def test_ridge_fits_the_last_steps_and_forgets_the_others():
    generator = np.random.default_rng(0)
    steps = [(generator.normal(2.0, 1.0, (num, 4)), generator.normal(3.0, 1.0, num)) for num in (30, 20, 25)]
    ridge = Ridge(steps=2, penalty=0.1)
    weight, bias = [ridge.fit(hidden, target) for hidden, target in steps][-1]
    x, y = (np.concatenate([step[part] for step in steps[1:]]) for part in (0, 1))
    scale = x.var(axis=0).mean()
    # as least squares with one more example per unit; the bias is not penalised
    centred = np.concatenate([x - x.mean(axis=0), np.sqrt(len(x) * 0.1 * scale) * np.eye(4)])
    expected = np.linalg.lstsq(centred, np.concatenate([y - y.mean(), np.zeros(4)]), rcond=None)[0]
    np.testing.assert_allclose(weight, expected, rtol=1e-9)
    np.testing.assert_allclose(bias, y.mean() - x.mean(axis=0) @ expected, rtol=1e-9)
    again = Ridge(steps=2, penalty=0.1)
    again.load_state_dict(ridge.state_dict())
    for one, other in zip(again.fit(*steps[0]), ridge.fit(*steps[0]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_prior_of_groups_is_a_penalty_that_falls_with_the_groups_remembered():
    generator = np.random.default_rng(0)
    steps = [(generator.normal(size=(30, 4)), generator.normal(size=30), groups) for groups in (4, 6, 2)]
    prior, first, last = Ridge(2, 99.0, prior_groups=2.0), Ridge(2, 2.0 / 4), Ridge(2, 2.0 / 8)
    for number, step in enumerate(steps):
        found, *fixed = (ridge.fit(*step) for ridge in (prior, first, last))
        if number != 1:  # 4 groups, then 6 and 2 since the first step is forgotten
            np.testing.assert_array_equal(found[0], fixed[number // 2][0])
    again = Ridge(2, 99.0, prior_groups=2.0)
    again.load_state_dict(prior.state_dict())
    np.testing.assert_array_equal(again.fit(*steps[0])[0], prior.fit(*steps[0])[0])
    again.load_state_dict(prior.state_dict()["moments"])  # as older checkpoints have it


def test_ridge_of_equal_states_is_the_mean():
    weight, bias = Ridge(steps=1, penalty=0.01).fit(np.ones((5, 3)), np.arange(1.0, 6.0))
    np.testing.assert_allclose([*weight, bias], [0, 0, 0, 3.0], atol=1e-9)


def test_blocks_of_features_are_penalised_in_their_own_units():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(50, 3)), generator.normal(size=50)
    weight, bias = Ridge(steps=1, penalty=0.1, blocks=(2, 1)).fit(x, y)
    scaled, same = Ridge(steps=1, penalty=0.1, blocks=(2, 1)).fit(x * [1.0, 1.0, 100.0], y)
    np.testing.assert_allclose(scaled * [1.0, 1.0, 100.0], weight, rtol=1e-9)
    np.testing.assert_allclose(same, bias, rtol=1e-9)
    together, _ = Ridge(steps=1, penalty=0.1).fit(x * [1.0, 1.0, 100.0], y)
    assert abs(together[0]) < 0.1 * abs(weight[0]), "one block: the large feature's unit decides"


def played(group: int, states: str, *rewards: float) -> Trajectory:
    turns = [
        Turn("", state, [1], [2], [0.0], "", False, reward=one) for state, one in zip(states, rewards, strict=True)
    ]
    return Trajectory(group, "task", turns)


GROUPS = [played(0, "aba", 0.0, 2.0, 1.0), played(0, "a", 0.5), played(0, "ba", 0.0, -0.5), played(1, "a", 7.0)]


def test_peers_are_the_others_of_the_group():
    mean_R = beside_states(GROUPS, visits=False)
    np.testing.assert_allclose(mean_R[:, 0], [0, 0, 0, 1.25, 1.75, 1.75, 0])
    assert mean_R.shape == (7, 1)


def test_visits_are_those_of_others_to_the_same_state_of_the_same_task():
    mean_R, same_R, turn_R, been_R = beside_states(GROUPS, visits=True).T
    np.testing.assert_array_equal(turn_R, [0, 1, 2, 0, 0, 1, 0])
    np.testing.assert_array_equal(been_R, [0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(same_R, [
        (0.5 - 0.5) / 3,                      # a: the second trajectory and the third, from there on
        (-0.5 - 0) / 2,                       # b: the third one
        (0.5 - 0.5) / 3,
        (3 + 1 - 0.5 - 3 * 1.25) / 4,         # a: twice in the first one, and in the third
        (3 - 1.75) / 2,
        (3 + 1 + 0.5 - 3 * 1.75) / 4,
        0,                                    # nobody else
    ])  # fmt: skip
    np.testing.assert_array_equal(mean_R, beside_states(GROUPS, visits=False)[:, 0])


def test_others_that_go_on_in_the_next_step_do_not_count():
    going_on = played(0, "ab", 5.0, 5.0)
    going_on.ended = "unfinished"
    with_it = beside_states([*GROUPS[:3], going_on, GROUPS[3]], visits=True)
    np.testing.assert_allclose(np.delete(with_it, [6, 7], axis=0), beside_states(GROUPS, visits=True))
    np.testing.assert_allclose(with_it[6:8, 0], (3 + 0.5 - 0.5) / 3, err_msg="it compares itself with those that ended")


def test_replays_of_a_store_do_not_count():
    """They were chosen by their outcome."""
    replay = played(0, "ab", 5.0, 5.0)
    replay.info["replayed"] = 1
    with_it = beside_states([*GROUPS[:3], replay, GROUPS[3]], visits=True)
    np.testing.assert_allclose(np.delete(with_it, [6, 7], axis=0), beside_states(GROUPS, visits=True))


@given(
    visits=st.lists(st.text("abc", min_size=2, max_size=6), min_size=1, max_size=4),
    cut=st.integers(0, 4),
    data=st.data(),
)
def test_what_a_trajectory_does_from_a_response_on_changes_nothing_until_then(visits, cut, data):
    """So that a baseline made of it leaves the expected gradient as it is."""
    reward = st.floats(-2, 2)
    others = [played(0, states, *data.draw(st.tuples(*[reward] * len(states)))) for states in visits[1:]]
    seen = []
    for _ in range(2):
        later = data.draw(st.text("abc", max_size=4))
        states = visits[0][: cut + 1] + later
        rewards = data.draw(st.tuples(*[reward] * len(states)))
        one = played(0, states, *rewards)
        seen.append(beside_states([one, *others], visits=True)[: len(visits[0][: cut + 1])])
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-9)


@given(shared=st.text("abc", min_size=1, max_size=3), data=st.data())
def test_a_fork_tells_nothing_of_the_turns_that_it_shares(shared, data):
    """A fork's return depends on the shared responses, also where it tells of another's trajectory."""
    reward, seen = st.floats(-2, 2), []
    far = played(0, "abc", *data.draw(st.tuples(reward, reward, reward)))
    for _ in range(2):
        tree = []
        for _ in range(2):  # both begin with `shared`, and what comes of it differs
            later = data.draw(st.text("abc", min_size=1, max_size=3))
            tree.append(played(0, shared + later, *[0.0] * len(shared), *data.draw(st.tuples(*[reward] * len(later)))))
            tree[-1].tree = 5
        told = beside_states([*tree, far], visits=True)
        second = len(tree[0].turns)
        seen.append(np.concatenate([told[: len(shared)], told[second : second + len(shared)]]))
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-9)


def test_a_critic_that_sees_the_group_learns_what_it_tells_and_a_state_alone_does_not():
    generator = np.random.default_rng(0)
    hidden = torch.from_numpy(generator.normal(size=(300, 16)).astype(np.float32))
    beside = torch.from_numpy(generator.uniform(size=(300, 4)).astype(np.float32))
    mean, same_state, turn, been = beside.T
    of_peers, of_visits = mean + mean * hidden[:, 0], same_state + turn * mean + been
    left = {}
    for sees in (0, 1, 4):
        settings = CriticConfig(kind="ridge", penalty=1e-4, peers=sees > 0, visits=sees > 1)
        critic = Critic(color_policy(), settings, ("value",), seed=0)
        read = join_beside(hidden, beside[:, :sees]) if sees else hidden
        for number, target in enumerate((of_peers, of_peers + of_visits)):
            critic.fit("value", read.numpy(), target.numpy(), 1)
            critic.ridge["value"].load_state_dict([])
            left[sees, number] = (critic.measure("value", read) - target).var() / target.var()
    assert max(left[1, 0], left[4, 0], left[4, 1]) < 1e-3 < 0.1 < min(left[0, 0], left[0, 1], left[1, 1])


def test_values_on_the_states_of_the_engine_are_those_of_a_pass():
    policy = color_policy()
    tasks = [(0, 3), (1, 1)]  # of three turns, and of one
    trajectories = play(LocalEngine(policy.model), tasks, FixedLength, group_size=3)
    critic = Critic(policy, CriticConfig(kind="ridge", peers=True), ("value",), seed=0)
    generator = np.random.default_rng(0)
    critic.fit("value", generator.normal(size=(100, 33)).astype(np.float32), generator.normal(size=100), 1)
    values = {}
    for known in (True, False):
        for turn in [turn for each in trajectories for turn in each.turns]:
            turn.put(state=turn.extras["state"] if known else None)
        sequences = Sequences.from_trajectories(trajectories)
        of_step = ValueTerm(critic).begin(sequences, trajectories, ModelConfig(), Budget(1000))
        assert of_step.needs_no_pass(()) == known
        values[known] = of_step.column("value")
    assert len(values[True]) == 12
    trajectories = play(LocalEngine(policy.model), tasks, FixedLength, group_size=3)
    trajectories[0].turns[0].version = 7
    mixed = ValueTerm(critic).begin(
        Sequences.from_trajectories(trajectories), trajectories, ModelConfig(), Budget(1000)
    )
    assert not mixed.needs_no_pass(()), "states of other weights, as those of a replay, are not read"
    assert values[True].std() > 0.01
    np.testing.assert_allclose(values[True], values[False], atol=1e-5)


# -- the copy, and the policy's layers ---------------------------------------------------------------------------------


def stepped(**settings: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The value of one hidden state by network and copy, after each of four optimiser steps."""
    critic = Critic(color_policy(), CriticConfig(learning_rate=0.1, **settings), ("value",), seed=0)
    hidden, now, measured = torch.ones(1, 16), [], []
    for _ in range(4):
        assert critic.optimizer is not None
        critic.optimizer.zero_grad()
        ((critic.estimate("value", hidden) - 5.0) ** 2).sum().backward()
        critic.step()
        now.append(critic.network("value", hidden).detach())
        measured.append(critic.measure("value", hidden))
    return now, measured


def test_a_copy_moves_by_a_share_or_every_few_steps():
    now, measured = stepped()
    assert now == measured
    assert now[0] < now[1] < now[2] < now[3]
    now, measured = stepped(target_every=2)
    assert measured == [torch.zeros(1), now[1], now[1], now[3]]
    now, measured = stepped(target_rate=0.25)
    expected = torch.zeros(1)
    for value, seen in zip(now, measured, strict=True):
        expected = 0.75 * expected + 0.25 * value
        torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize(
    "settings", [{"kind": "ridge", "penalty": 1e-4}, {}, {"width": 8}], ids=["ridge", "linear", "mlp"]
)
def test_a_critic_learns_what_hidden_states_tell(settings):
    if settings.get("kind") != "ridge":
        settings = {**settings, "learning_rate": 0.05, "max_grad_norm": 100.0}
    critic = Critic(color_policy(), CriticConfig(**settings), ("value",), seed=0)
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(200, 16)).astype(np.float32)
    target = hidden[:, 0] - 0.5 * hidden[:, 3] + 2.0
    if critic.optimizer is None:
        critic.fit("value", hidden, target, 1)
    for _ in range(0 if critic.optimizer is None else 200):
        critic.network.zero_grad()
        ((critic.estimate("value", torch.from_numpy(hidden)) - torch.from_numpy(target)) ** 2).mean().backward()
        critic.step()
    error = critic.measure("value", torch.from_numpy(hidden)).numpy() - target
    assert error.var() < 0.05 * target.var()
    assert abs(error.mean()) < 0.1


def test_a_model_of_its_own_starts_as_the_policy_and_leaves_it_alone():
    policy = color_policy()
    critic = Critic(policy, CriticConfig(kind="model"), ("value",), seed=0)
    assert critic.own is not None
    assert critic.own is not policy.model
    for ours, theirs in zip(critic.own.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours is not theirs


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "critic",
    [
        {"kind": "model", "target_rate": 0.5, "warmup_steps": 1, "extra_epochs": 1},
        {"kind": "ridge", "memory": 2},
        {"kind": "ridge", "peers": True},
        {"kind": "ridge", "peers": True, "visits": True},
        {"clip": 0.1, "width": 4, "trunk_gradient": 0.5, "target": "return"},
    ],
    ids=["model", "ridge", "peers", "visits", "head"],
)
def test_a_resumed_run_is_bit_identical(tmp_path, critic):
    method = {"name": "gae", "unfinished": "next"}
    config = config_of(tmp_path, critic, method=method, run={"steps": 3}, update={"mini_batches": 2})
    folder = train(config)
    expected, after = metrics_of(folder, 3), weights(folder, 3)
    state = load_checkpoint(folder.checkpoints / "step-000003")[2]["critic"]
    shutil.rmtree(folder.checkpoints / "step-000003")
    train(config, resume=folder.path)
    assert metrics_of(folder, 3) == expected
    assert torch.equal(weights(folder, 3), after)
    again = load_checkpoint(folder.checkpoints / "step-000003")[2]["critic"]
    assert _flat(again) == _flat(state)
    assert len(_flat(state)) > 5


def _flat(state: Any) -> list:
    if isinstance(state, dict):
        return [value for key in sorted(state, key=str) for value in _flat(state[key])]
    if isinstance(state, (list, tuple)):
        return [value for item in state for value in _flat(item)]
    return [state.tolist() if isinstance(state, np.ndarray) else state]


def test_the_policy_waits_for_the_warm_up_and_the_critic_does_not(tmp_path):
    folder = train(
        config_of(tmp_path, {"warmup_steps": 2, "learning_rate": 0.1}, run={"steps": 3}, checkpoint={"keep": 9})
    )
    start = weights(folder, 0)
    assert torch.equal(weights(folder, 2), start)
    assert not torch.equal(weights(folder, 3), start)
    heads = [
        torch.as_tensor(
            load_checkpoint(folder.checkpoints / f"step-{step:06d}")[2]["critic"]["network"]["heads.value.0.weight"]
        )
        for step in range(4)
    ]
    assert len({tuple(head.flatten().tolist()) for head in heads}) == 4
    assert metrics_of(folder, 1)["update/grad_norm"] == 0 < metrics_of(folder, 1)["update/critic_grad_norm"]


def test_values_are_recorded_and_credit_can_be_assigned_again(tmp_path):
    config = config_of(tmp_path, {"learning_rate": 0.1})
    folder = train(config)
    _, columns = read_rollouts(folder.rollouts / "step-000002.parquet")
    assert np.std(columns["value"]) > 0
    assert not [name for name in columns if "td_errors" in name], "a block that changes nothing is not recorded"
    penalty = config.environment.invalid_penalty
    for recorded, trace in replay(folder, make_transform(config.method), invalid_penalty=penalty):
        np.testing.assert_allclose(trace.advantage_R, recorded.advantage_R, atol=1e-12)


def test_tokens_of_a_measure_are_those_of_its_own_passes(tmp_path):
    tokens = {}
    for name, critic, update in (
        ("along", {}, {}),
        ("engine", {}, {"scoring": "engine"}),
        ("after", {"read": "after"}, {"scoring": "engine"}),
        ("own", {"kind": "model"}, {}),
    ):
        folder = train(config_of(tmp_path, critic, run={"steps": 1, "name": name}, update=update))
        tokens[name] = metrics_of(folder, 1)["measure/value_tokens"]
    assert tokens["along"] == tokens["engine"] == 0 < tokens["after"] == tokens["own"]


def test_the_value_loss_is_that_of_the_passes_with_the_policy(tmp_path, monkeypatch):
    """Those of further passes of the critic alone have other metrics beside it."""
    monkeypatch.setattr("turnwise.train.update.teach_alone", lambda *_: {"value_loss": 99.0, "further": 1.0})
    told = metrics_of(train(config_of(tmp_path, {"extra_epochs": 1}, run={"steps": 1})), 1)
    assert 0 < told["update/value_loss"] < 99
    assert told["update/further"] == 1


@pytest.mark.parametrize("alone", [{"warmup_steps": 1}, {"extra_epochs": 1}])
def test_a_step_with_fewer_trajectories_than_mini_batches_has_the_gradient_of_one(tmp_path, alone):
    """With two trajectories and eight mini-batches, the critic's own passes had four times the gradient."""
    found = []
    for number in (1, 8):
        critic = {"kind": "head", "learning_rate": 1e-12, **alone}
        run = train(
            small_config(
                tmp_path / str(number),
                method="turn_ppo",
                critic=critic,
                update={"mini_batches": number, "learning_rate": 1e-12},
                rollout={"groups": 1, "group_size": 2},
                evaluate={"episodes": 0, "final_episodes": 0},
                run={"steps": 1},
            )
        )
        (record,) = [each for each in run.metrics() if "update/value_loss" in each]
        found.append(record["update/value_loss"])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_clip_that_cannot_bind_binds_nowhere(tmp_path):
    """Rounding is no difference: 0.01 to 0.04 of the values seemed to be clipped."""
    run = train(
        small_config(
            tmp_path,
            method="turn_ppo",
            environment={"name": "tests.train.uneven:Uneven", "max_steps": 7},
            critic={"kind": "head", "clip": 1000.0, "learning_rate": 0.03},
            update={"epochs": 4, "learning_rate": 0.02},
            rollout={"groups": 4, "group_size": 6},
            evaluate={"episodes": 0, "final_episodes": 0},
            run={"steps": 3},
        )
    )
    assert {each["update/value_clipped_frac"] for each in run.metrics() if "update/value_clipped_frac" in each} == {0.0}
