"""Loss on pairs: which responses are paired, the numbers of SimPO and DPO by hand, and what an update does."""

import copy
import math

import numpy as np
import pytest
import torch
from tests.invariants.test_terms import gradient
from tests.invariants.test_update import assert_same, difference, experience, make_config
from tests.steps import measured, updated
from tests.toys import small_config

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.segments import components
from turnwise.credit.trace import Trace, Traced
from turnwise.extensions.preference.settings import PreferenceConfig
from turnwise.extensions.preference.term import PreferenceTerm, trajectory_pairs, turn_pairs
from turnwise.objective.terms import Pass, StepView
from turnwise.train.loop import train

LOGPROB = [-0.2, -0.4, -1.0, -3.0, -0.1, -0.1, -0.1]


def batch() -> tw.Batch:
    """Two groups. In the first the second trajectory is best and the first worst; in the second all are equal."""
    return tw.Batch.from_arrays(
        group=["p", "p", "p", "p", "q", "q"],
        trajectory=["a", "b", "b", "c", "d", "e"],
        reward=[0.0, 0.0, 1.0, 0.5, 1.0, 1.0],
        columns={
            "state_key": ["s", "s", "t", "t", "s", "s"],
            "ref_logprob_T": [[-0.5, -0.5], [-0.5], [-2.5], [-0.1], [-0.1], [-0.1]],
        },
    )[0]


def test_best_and_worst_of_a_group_are_paired():
    pairs = trajectory_pairs(batch())
    assert (pairs.better.tolist(), pairs.worse.tolist()) == ([1], [0]), "no pair where all are equal"


def test_per_turn_responses_at_one_state_are_paired_by_what_came_after():
    """At s: response 0 (nothing came) and 1 (1 came). At t: 2 (1) and 3 (0.5). In the other group no difference."""
    pairs = turn_pairs(batch())
    assert sorted(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True)) == [(1, 0), (2, 3)]


def loss_of(**settings) -> tuple[float, torch.Tensor, dict[str, float]]:
    given = batch()
    assert given.tokens is not None
    term = PreferenceTerm(PreferenceConfig(**settings))
    step = StepView(given, Trace(np.zeros(given.num_responses)))
    prepared = term.prepare(step)
    logprob = torch.tensor(LOGPROB, requires_grad=True)
    loss, told = prepared.loss(Pass(logprob, logprob * 0, torch.arange(7)))
    loss.backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad, {**told, **prepared.metrics}


@pytest.mark.parametrize("kept_R", [[0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]])
@pytest.mark.parametrize("name", ["simpo", "dpo"])
def test_what_the_method_leaves_out_is_in_no_pair(name, kept_R):
    """Without the worse trajectory there is no pair; of the better one, half is left."""
    given = batch()
    traced = Traced("keep", np.zeros(6), np.ones(6), np.zeros(6), kept_R=np.array(kept_R, dtype=bool))
    prepared = PreferenceTerm(PreferenceConfig(name=name)).prepare(StepView(given, Trace(np.zeros(6), (traced,))))
    logprob = torch.tensor(LOGPROB, requires_grad=True)
    loss, _ = prepared.loss(Pass(logprob, logprob * 0, torch.arange(7)))
    loss.backward()
    assert logprob.grad is not None
    assert prepared.metrics["preference_pairs"] == kept_R[0]
    assert (logprob.grad != 0).tolist() == [bool(kept_R[0])] * 3 + [False] * 4


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_simpo_by_hand():
    """Better: mean of -1 and -3; worse: mean of -0.2 and -0.4. z = 2 (-2 + 0.3) - 0.5 = -3.9."""
    loss, gradient_T, told = loss_of(name="simpo", margin=0.5)
    assert loss == pytest.approx(-math.log(sigmoid(-3.9)), rel=1e-5)
    slope = 2.0 * (1 - sigmoid(-3.9)) / 2  # beta times (1 - sigma), shared by two tokens
    np.testing.assert_allclose(gradient_T, [slope, slope, -slope, -slope, 0, 0, 0], rtol=1e-5)
    assert (told["preference_pairs"], told["preference_right_frac"]) == (1.0, 0.0)


def test_dpo_by_hand():
    """Better: -4 against the reference's -3; worse: -0.6 against -1. z = 0.1 (-1 - 0.4); margin has no part."""
    loss, gradient_T, told = loss_of(name="dpo", margin=5.0, smoothing=0.1, weight=3.0)
    z = -0.14
    assert loss == pytest.approx(3 * (-0.9 * math.log(sigmoid(z)) - 0.1 * math.log(sigmoid(-z))), rel=1e-5)
    slope = 3 * 0.1 * (0.9 * (1 - sigmoid(z)) - 0.1 * sigmoid(z))
    np.testing.assert_allclose(gradient_T, [slope, slope, -slope, -slope, 0, 0, 0], rtol=1e-5)
    assert told["preference_loss"] == pytest.approx(loss / 3)


def test_pairs_per_turn_by_hand():
    """z of s: 2 (-1 + 0.3) - 1, of t: 2 (-3 + 0.1) - 1; their mean."""
    loss, *_ = loss_of(name="simpo", level="turn")
    assert loss == pytest.approx(-(math.log(sigmoid(-2.4)) + math.log(sigmoid(-6.8))) / 2, rel=1e-5)


def test_components():
    assert components(np.array([[0, 4, 1], [1, 5, 3]]), 6).tolist() == [0, 0, 1, 0, 2, 2]
    assert components(np.zeros((2, 0), dtype=np.int64), 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["simpo", "dpo"])
@pytest.mark.parametrize("level", ["trajectory", "turn"])
def test_the_gradient_does_not_depend_on_micro_batches(name, level):
    options = {"policy": False, "preference": {"name": name, "level": level}}
    whole = gradient(**options)
    assert whole.abs().max() > 0
    for max_tokens in (1, 60, 200):
        assert_same(gradient(**options, max_tokens=max_tokens), whole)
    assert difference(gradient(preference=options["preference"]), whole)[0] > 1e-3, "the policy term adds to it"


@pytest.mark.parametrize("level", ["trajectory", "turn"])
def test_an_update_prefers_the_better_of_each_pair(level):
    """Fails if pairs are turned round, or if the term has no gradient."""
    policy, old, *_, trajectories, advantage_R = experience()
    config = make_config(policy=False, preference={"name": "simpo", "level": level})
    model = copy.deepcopy(policy.model)

    def gap() -> float:
        step = measured(model, trajectories, config)
        found = turn_pairs(step.batch) if level == "turn" else trajectory_pairs(step.batch)
        assert step.batch.tokens is not None
        items = step.batch.tokens if level == "turn" else step.batch.trajectories.of(step.batch.tokens)
        mean_I = items.mean(step.batch.columns["logprob_T"])
        return float((mean_I[found.better] - mean_I[found.worse]).mean())

    before = gap()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    updated(model, optimizer, measured(old.model, trajectories, config), advantage_R, config, step=1)
    assert gap() > before + 0.01


def test_a_run_learns_from_pairs_alone(tmp_path):
    config = small_config(
        tmp_path,
        method="grpo",
        run={"steps": 18},
        rollout={"groups": 16, "group_size": 8},
        evaluate={"every": 0},
        update={"policy": False, "preference": {"name": "simpo"}, "learning_rate": 0.02},
    )
    metrics = [line for line in train(config).metrics() if "update/preference_loss" in line]
    assert len(metrics) == 18
    first, last = (np.mean([line["rollout/success"] for line in part]) for part in (metrics[:3], metrics[-3:]))
    assert last > first + 0.3, "20 steps of GRPO do about as well"


def test_mistakes_are_told(tmp_path):
    for update, message in (
        ({"policy": False}, "update.policy=false leaves nothing to learn from"),
        (
            {"policy": False, "preference": {"name": "simpo"}, "tokens": {"name": "steer"}},
            "update.tokens shapes the policy term, which update.policy=false leaves out",
        ),
        ({"preference": {"name": "simpoo"}}, "update.preference.name"),
        ({"preference": {"name": "simpo", "bta": 1}}, "unknown key 'update.preference.bta'. Did you mean 'beta'"),
    ):
        with pytest.raises(ConfigError, match=message):
            small_config(tmp_path, update=update)
