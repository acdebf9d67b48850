"""Credit on rows of trajectories, as the trainer for TRL computes it; TRL itself is not needed."""

import importlib.metadata
import importlib.util

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import IntegrationError
from turnwise.integrations.padded import split_responses
from turnwise.integrations.trl_turns import credit

MASK = np.array(
    [
        [1, 1, 0, 1, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [1, 0, 1, 0, 1, 1],
        [1, 1, 1, 1, 0, 0],
    ],
    dtype=bool,
)
ENTROPY = np.arange(24, dtype=float).reshape(4, 6) / 10


def given(method, reward, **changes):
    options = {
        "mask": MASK,
        "entropy": ENTROPY,
        "logprob": -ENTROPY,
        "reward": np.array(reward, dtype=float),
        "group_size": 2,
    }
    return credit(method, **{**options, **changes})


def test_responses_are_the_runs_of_a_row():
    tokens, row_R = split_responses(MASK)
    assert tokens.lengths.tolist() == [2, 1, 5, 1, 1, 2, 4], "a run ends with its row"
    assert row_R.tolist() == [0, 0, 1, 2, 2, 2, 3]


def test_every_token_gets_what_its_response_got():
    got = given(tw.dr_grpo(), [1, 0, 4, 2]).advantage
    np.testing.assert_allclose(got, np.array([[0.5], [-0.5], [1.0], [-1.0]]) * MASK)


def test_aem_by_hand():
    got = given(tw.aem(tw.dr_grpo(), min_range=0.0), [1, 0, 4, 2])
    entropies = [np.array([0.05, 0.3, 0.9]), np.array([1.2, 1.4, 1.65, 1.95])]  # of each response, a group each
    alphas = []
    for entropy in entropies:
        weight = np.exp(-(entropy - entropy.min()) / (entropy.max() - entropy.min()))
        alphas.append(weight / weight.mean())
    np.testing.assert_allclose(got.advantage[0], 0.5 * np.array([alphas[0][0], alphas[0][0], 0, alphas[0][1], 0, 0]))
    np.testing.assert_allclose(np.concatenate(got.turns["turn_alpha"]), np.concatenate(alphas))
    np.testing.assert_allclose(np.concatenate(got.turns["turn_entropy"]), np.concatenate(entropies))
    assert got.metrics["credit/alpha_max"] == pytest.approx(np.concatenate(alphas).max())
    assert got.metrics["credit/turns"] == 7 / 4
    second = [got.turns["turn_advantage"][row][1] for row in (0, 2)]
    assert got.metrics["credit/advantage_turn_1"] == pytest.approx(np.mean(second))


def test_a_coefficient_is_seen_where_there_is_no_advantage_too():
    """It was nan when it was read off the advantage."""
    got, other = given(tw.aem(), [1, 1, 1, 1]), given(tw.aem(), [1, 0, 1, 0])
    assert got.turns["turn_alpha"] == other.turns["turn_alpha"]
    assert not np.concatenate(got.turns["turn_base"]).any()
    assert got.metrics["credit/alpha_max"] == other.metrics["credit/alpha_max"] > 1
    assert "turn_alpha" not in given(tw.grpo(), [1, 0, 1, 0]).turns


@pytest.mark.parametrize("how", ["nan", "mask"])
def test_rows_without_reward_or_tokens_are_left_out(how):
    mask, reward = np.vstack([MASK, MASK[:2]]), np.array([1.0, 0, 4, 2, 3, 9])
    if how == "nan":
        reward[2] = np.nan
    else:
        mask[2] = False
    entropy = np.vstack([ENTROPY, ENTROPY[:2]])
    got = credit(tw.dr_grpo(), mask=mask, entropy=entropy, logprob=entropy, reward=reward, group_size=3)
    means = np.array([1.0, 1.0, 0, 5.5, 5.5, 5.5])
    means[:3] = 0.5
    means[3:] = (2 + 3 + 9) / 3
    expected = (np.nan_to_num(reward) - means)[:, None] * mask
    expected[2] = 0
    np.testing.assert_allclose(got.advantage, expected)
    assert got.turns["turn_advantage"][2] == []


def test_nothing_to_learn_from_is_no_error():
    got = given(tw.aem(), [np.nan] * 4)
    assert not got.advantage.any()
    assert got.turns["turn_alpha"] == [[], [], [], []]


def test_rewards_and_states_of_turns():
    played = [
        {"reward": [1.0, 0.0], "state_key": ["a", "b"]},
        {"reward": [0.0], "state_key": ["a"]},
        {"reward": [0.0, 2.0, 0.0], "state_key": ["a", "b", "c"]},
        {"reward": [1.0], "state_key": ["a"]},
    ]
    got = given(tw.gigpo(discount=0.5), [1.5, 0, 2, 1], played=played)
    batch, _ = tw.Batch.from_arrays(
        group=[0, 0, 0, 1, 1, 1, 1],
        trajectory=[0, 0, 1, 2, 2, 2, 3],
        reward=[1.0, 0.5, 0, 0, 2, 0, 1],  # half a point beside the world's is paid for the last response
        columns={"state_key": ["a", "b", "a", "a", "b", "c", "a"]},
    )
    np.testing.assert_allclose(np.concatenate(got.turns["turn_advantage"]), tw.gigpo(discount=0.5)(batch))


def test_a_record_that_does_not_fit_the_mask_is_an_error():
    played = [{"reward": [0.0], "state_key": ["a"]}] * 4
    with pytest.raises(
        IntegrationError, match="row 0 has 2 runs of generated tokens, but its conversation has 1 responses"
    ):
        given(tw.gigpo(), [1, 0, 1, 0], played=played)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the trainer needs torch")
def test_without_trl_the_trainer_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    spec = importlib.util.find_spec("turnwise.integrations.trl")
    with pytest.raises(
        IntegrationError,
        match=r"TRL is not installed; install torch, then: pip install 'turnwise-rl\[trl\]'",
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
