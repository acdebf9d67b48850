"""ARRoL: trajectories wait after their first tokens, and those that are not chosen end there."""

import itertools
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from tests.rollout.playing import POLICY, STOP
from tests.rollout.test_starts import Long
from tests.toys import Colors, small_config
from tests.train.test_every_method_trains import metrics_of, weights

from turnwise.base.errors import ConfigError
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.arrol.collector import Estimate, survivors
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.loop import train

ARROL: dict[str, Any] = {"name": "arrol", "tokens": 7, "warmup": 0, "explore": 0.0, "memory": 64}


def collector(size: int = 8, window: bool = False, **options):
    sections = {"group_size": size, "max_new_tokens": 3, "context": "window" if window else "append", "window": 1}
    chosen = {**ARROL, **options} if options else "independent"
    settings = RolloutConfig.model_validate({**sections, "collector": chosen})
    return make_collector(settings, InProcessEnvironments(Long), str)


def play(made, engine=None, version=0, **further):
    models = Models(policy=NamedModel(POLICY, engine or LocalEngine(POLICY.model)))
    models.publish(version)
    return play_tasks(made, models, [0, 1], seed=3, **further)


def tokens(trajectory) -> list[int]:
    return [token for turn in trajectory.turns for token in turn.response_ids]


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("options", [{"keep": 1.0}, {"warmup": 9}, {"explore": 1.0}])
def test_who_waits_and_goes_on_says_what_it_would_have_said(options, window):
    whole = play(collector(window=window))
    waited = play(collector(window=window, **options))
    for one, other in zip(whole, waited, strict=True):
        assert tokens(one) == tokens(other)
        for turn, again in zip(one.turns, other.turns, strict=True):
            assert again.behavior_logprobs == pytest.approx(turn.behavior_logprobs, abs=1e-5)
            assert again.behavior_entropies == pytest.approx(turn.behavior_entropies, abs=1e-5)
            assert (again.truncated, again.response, again.reward) == (turn.truncated, turn.response, turn.reward)
            np.testing.assert_allclose(again.extras["state"], turn.extras["state"], atol=1e-5)


def test_half_of_each_group_ends_after_its_first_tokens():
    whole, made = play(collector()), collector(keep=0.5)
    assert all(len(tokens(one)) > 7 for one in whole), "all of them wait"
    played = play(made)
    for group in (played[:8], played[8:]):
        assert [one.ended for one in group].count("pruned") == 4
    for one, other in zip(whole, played, strict=True):
        pruned = other.ended == "pruned"
        assert other.usable is not pruned
        assert other.failure is None
        assert tokens(other) == (tokens(one)[:7] if pruned else tokens(one))
    inside = [one.turns[-1].response_ids for one in played if one.ended == "pruned"]
    assert any(0 < len(ids) < 3 and ids[-1] != STOP for ids in inside), "inside a response"
    metrics = rollout_metrics(played)
    assert metrics["tokens"] == sum(len(tokens(one)) for one in played) < rollout_metrics(whole)["tokens"]
    assert (metrics["pruned_frac"], metrics["failed_frac"]) == (0.5, 0.0)
    assert "pruned_frac" not in rollout_metrics(whole)
    labelled = made.state_dict()["labelled"]
    assert [row[-1] for row in labelled] == [float(one.success) for one in played if one.usable]


@pytest.mark.parametrize("tokens", [6, 7], ids=["some between two responses", "some inside a response"])
def test_what_was_not_played_is_no_environment_step_and_all_is_of_the_present_weights(tokens, monkeypatch):
    steps = []
    monkeypatch.setattr(Long, "step", lambda self, text: steps.append(text) or Colors.step(self, text))
    played = play(collector(keep=0.5, tokens=tokens), version=4)
    assert any(not one.turns[-1].response_ids for one in played) == (tokens == 6)
    assert rollout_metrics(played)["env_steps"] == len(steps)
    assert {turn.version for one in played for turn in one.turns} == {4}


class Frail(Long):
    """Every other one fails at its first step."""

    made = itertools.count()

    def step(self, response):
        if next(self.made) % 2:
            raise OSError("the game is lost")
        return super().step(response)


def test_trajectories_that_failed_take_no_place_of_others():
    settings = RolloutConfig.model_validate({"group_size": 8, "max_new_tokens": 3, "collector": {**ARROL, "keep": 0.5}})
    played = play(make_collector(settings, InProcessEnvironments(Frail), str))
    for group in (played[:8], played[8:]):
        failed = [one for one in group if one.failure]
        assert len(failed) > 3
        assert sum(one.usable for one in group) == min(4, 8 - len(failed))
        assert [one.ended for one in group].count("pruned") == max(0, 4 - len(failed))


def test_the_warm_up_counts_steps_and_not_batches():
    made = collector(keep=0.5, warmup=2)
    pruned = [any(one.ended == "pruned" for one in play(made, version=version)) for version in (0, 0, 1, 2)]
    assert pruned == [False, False, False, True]


def test_an_evaluation_prunes_nothing():
    played = play(collector(keep=0.5), group_size=4)
    assert len(played) == 8
    assert all(one.usable for one in played)


def test_about_half_of_those_that_are_kept_can_be_expected_to_succeed():
    waits = np.ones(6, dtype=bool)
    likely = np.array([0.9, 0.8, 0.7, 0.6, 0.05, 0.0])
    assert survivors(likely, waits, 0.5).nonzero()[0].tolist() == [0, 3, 5], "0.9, then 0.0, then 0.6"
    assert survivors(np.array([0.1, 0.2, 0.3, 0.9]), np.ones(4, dtype=bool), 0.5).nonzero()[0].tolist() == [0, 3]
    even = np.array([0.1, 0.5, 0.5, 0.9])
    assert survivors(even, np.array([True, False, True, True]), 0.5).nonzero()[0].tolist() == [1, 2], "not an extreme"
    assert survivors(likely, waits, 1.0).all()
    ended = np.array([True, False, True, True, True, True])
    kept = survivors(likely, ended, 0.5)
    assert kept[1], "who has ended is kept"
    assert kept.sum() == 3
    assert survivors(likely, ~waits, 0.5).all()
    lost = np.array([True, True, True, False, False, False])
    assert survivors(likely, ~lost, 0.5, lost).nonzero()[0].tolist() == [3, 4, 5], "nothing is learned from the others"


def test_the_estimate_is_a_logistic_regression_with_a_ridge():
    generator = np.random.default_rng(0)
    seen = generator.normal(size=(200, 2)) * (1.0, 5.0) + 2.0
    label = (generator.random(200) < 1 / (1 + np.exp(-2 * (seen[:, 0] - 2.0)))).astype(float)
    estimate = Estimate(np.column_stack([seen, label]).tolist())
    chance = estimate(seen)
    assert chance.mean() == pytest.approx(label.mean(), abs=1e-9), "the bias has no ridge"
    scaled = (seen - seen.mean(0)) / seen.std(0)
    logit = np.log(chance / (1 - chance))
    slope = np.linalg.lstsq(np.column_stack([np.ones(200), scaled]), logit, rcond=None)[0][1:]
    np.testing.assert_allclose(scaled.T @ (label - chance), slope, atol=1e-5)  # the gradient is that of the ridge
    assert slope[0] > 5 * abs(slope[1])
    assert Estimate([])(seen[:3]).tolist() == [0.5] * 3
    assert Estimate([[0.0, 0.0, 1.0]])(seen[:3]).tolist() == [1.0] * 3


def test_what_the_estimate_says_decides_who_is_pruned():
    """Without labels the first ones in order are kept; with labels, the likeliest and the least likely."""
    plain, learned = collector(keep=0.5), collector(keep=0.5)
    learned.load_state_dict({"labelled": [[-x / 10, -x / 5, float(x < 10)] for x in range(20)]})
    kept = [[one.usable for one in play(each)] for each in (plain, learned)]
    assert kept[0] != kept[1]
    assert len(learned.state_dict()["labelled"]) == 20 + 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explore": None}, "explore=None: Input should be a valid number"),
        ({"keep": 0.1}, r"keep=0.1 leaves 1 of rollout.group_size=8 trajectories, expected 2 or more"),
        ({"keep": 1.5}, r"rollout.collector.keep=1.5: Input should be less than or equal to 1"),
        ({"tokns": 3}, "'arrol' has no option 'tokns'. Did you mean 'tokens'"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        collector(**options)


def test_an_option_without_a_published_value_must_be_given():
    settings = RolloutConfig.model_validate({"group_size": 8, "collector": {"name": "arrol", "explore": 0.1}})
    with pytest.raises(ConfigError, match="'arrol' needs the option 'memory'; no value is published"):
        make_collector(settings, InProcessEnvironments(Long), str)


def test_trajectories_that_wait_for_each_other_give_their_rows_back():
    """Fails if one that waits keeps the row that another one needs to get as far: nobody would go on."""
    few, all_ = (play(collector(keep=0.5), LocalEngine(POLICY.model, max_rows=most)) for most in (4, None))
    assert [each.ended for each in few] == [each.ended for each in all_]
    assert [[turn.response_ids for turn in each.turns] for each in few] == [
        [turn.response_ids for turn in each.turns] for each in all_
    ]
    assert any(each.ended == "pruned" for each in few)


@pytest.mark.parametrize("budget", [{"turns": 60}, {"tokens": 200}], ids=str)
def test_a_run_prunes_under_a_budget_and_resumes_to_the_bit(tmp_path, budget):
    """Fails if a budget waits for trajectories that wait for each other, or if a resumed group is pruned otherwise."""
    rollout = {"group_size": 8, "groups": 2, "collector": {**ARROL, "tokens": 3, "warmup": 0}, "step_budget": budget}
    most = {"environment": {"options": {"turns": 3}}, "engine": {"max_rows": 5}, "checkpoint": {"every": 1}}
    config = small_config(tmp_path, run={"steps": 4}, rollout=rollout, **most)
    folder = train(config)
    after, expected = weights(folder, 4), metrics_of(folder, 4)
    assert any("rollout/pruned_frac" in metrics_of(folder, step) for step in range(1, 5))
    for step in (3, 4):
        shutil.rmtree(folder.checkpoints / f"step-{step:06d}")
    train(config, resume=folder.path)
    assert metrics_of(folder, 4) == expected
    assert torch.equal(weights(folder, 4), after)


def test_a_run_prunes_after_its_warm_up_learns_and_resumes(tmp_path):
    config = small_config(
        tmp_path,
        method="grpo",
        environment={"name": "tests.rollout.test_starts:Long", "max_steps": 6},
        rollout={"groups": 3, "group_size": 6, "collector": {**ARROL, "warmup": 1}},
        checkpoint={"every": 1},
    )
    folder = train(config)
    assert "rollout/pruned_frac" not in metrics_of(folder, 1)
    assert metrics_of(folder, 2)["rollout/pruned_frac"] == 0.5
    assert metrics_of(folder, 2)["rollout/tokens"] < metrics_of(folder, 1)["rollout/tokens"]
    trajectories, further = read_rollouts(folder.rollouts / "step-000002.parquet")
    learned = [np.isfinite(further["advantage"][at]) for at in _rows(trajectories)]
    assert learned == [one.ended != "pruned" for one in trajectories]
    after, expected = weights(folder, 2), metrics_of(folder, 2)
    assert (weights(folder, 0) - after).abs().max() > 1e-4
    shutil.rmtree(folder.checkpoints / "step-000002")
    train(config, resume=folder.path)
    assert metrics_of(folder, 2) == expected
    assert torch.equal(weights(folder, 2), after)


def _rows(trajectories) -> list[int]:
    """The first row of each trajectory."""
    return np.cumsum([0, *(len(one.turns) for one in trajectories[:-1])]).tolist()
