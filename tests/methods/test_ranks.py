"""VERL's rank bonus, and the ranks of hidden states that it reads: by hand and beside the release."""

import json

import numpy as np
import pytest
from tests.measures.rank_reference import effective_rank, rank_metrics
from tests.methods.batches import applied, group_of

import turnwise as tw
from turnwise.base.errors import ConfigError


def ranks(rank, velocity, acceleration, num=None) -> tw.Batch:
    return group_of(*[0] * len(rank), effective_rank=rank, rank_velocity=velocity, rank_acceleration=acceleration)


def test_verl_er_by_hand():
    batch = ranks([1, 3], [2, 2], [1, 1])
    # first batch: usual 2, 2, 1. dev(ER) = -1/2, 1/2; the others 0, so beta = 1/2; the second's Phi = tanh(1/2) / 2
    bonus = np.tanh(0.5) / 2
    np.testing.assert_allclose(applied(tw.add_rank_bonus(), batch, 1, 1), [1, 1 + bonus], rtol=1e-8)
    np.testing.assert_allclose(applied(tw.add_rank_bonus(), batch, -1, -1), [-1, -1 + bonus], rtol=1e-8)
    np.testing.assert_allclose(applied(tw.add_rank_bonus(), batch, 0, 0), [0, 0])
    np.testing.assert_allclose(applied(tw.add_rank_bonus(), batch, 0, 0.2), [0, 0.3])  # bounded by |A| / 2
    np.testing.assert_allclose(applied(tw.add_rank_bonus(kappa=4.0), batch, 0, -0.2), [0, -0.15])


def test_verl_er_compares_with_the_past_and_turns_by_acceleration():
    block = tw.add_rank_bonus()
    assert block.init is not None
    first, second = ranks([2], [1], [1]), ranks([4], [0.5], [1.5])
    ones = np.array([100.0])
    _, state = block.update(ones, block.init(), first)
    credit_R, after = block.update(ones, json.loads(json.dumps(state)), second)
    beta = 1 / (1 + np.exp(-1))  # gain 2, dev(ERA) = 1/2
    np.testing.assert_allclose(credit_R, 100 + beta * np.tanh(1) + (1 - beta) * np.tanh(-0.5), rtol=1e-8)
    assert after == pytest.approx({"effective_rank": 2.6, "rank_velocity": 0.85, "rank_acceleration": 1.15})
    assert state == {"effective_rank": 2, "rank_velocity": 1, "rank_acceleration": 1}, "the state given stays"
    credit_R, _ = tw.add_rank_bonus(gain=0.0, rate=1.0).update(ones, state, second)
    np.testing.assert_allclose(credit_R, 100 + (np.tanh(1) + np.tanh(-0.5)) / 2, rtol=1e-8)


def test_verl_er_clips_deviations():
    block = tw.add_rank_bonus()
    state = {"effective_rank": 1e-3, "rank_velocity": 0.0, "rank_acceleration": 0.0}
    credit_R, _ = block.update(np.array([100.0]), state, ranks([9], [-1], [-1]))
    beta = 1 / (1 + np.exp(10))
    np.testing.assert_allclose(credit_R, 100 + max(0, beta * np.tanh(5) - (1 - beta) * np.tanh(5)), rtol=1e-14)
    credit_R, _ = block.update(np.array([100.0]), state, ranks([9], [1], [0]))
    np.testing.assert_allclose(credit_R, 100 + np.tanh(5), rtol=1e-14)


def test_verl_er_measures_deviations_from_a_negative_average_in_its_size():
    state = {"effective_rank": 1.0, "rank_velocity": -2.0, "rank_acceleration": 1.0}
    credit_R, _ = tw.add_rank_bonus().update(np.array([100.0]), state, ranks([1], [-1], [1]))
    np.testing.assert_allclose(credit_R, 100 + np.tanh(0.5) / 2, rtol=1e-8)


def test_verl_er_never_turns_a_sign():
    with pytest.raises(ConfigError, match=r"kappa=0.5 must be at least 1"):
        tw.verl_er(kappa=0.5)


@pytest.mark.parametrize("options", [{"kappa": 4.0}, {"gain": 0.0}, {"rate": 1.0}, {"convention": "release"}])
def test_verl_er_passes_its_options_on(options):
    generator = np.random.default_rng(0)
    columns = ("effective_rank", "rank_velocity", "rank_acceleration")
    steps = [group_of(0.2, 100.0, **{name: generator.uniform(1, 4, 2) for name in columns}) for _ in range(5)]

    def credit(method):
        state, told = method.init(), []
        for batch in steps:
            credit_R, state = method.update(batch.reward_R, state, batch)
            told.append(credit_R)
        return np.array(told)

    made = credit(tw.verl_er(tw.reinforce(), **options))
    np.testing.assert_array_equal(made, credit(tw.chain(tw.reinforce(), tw.add_rank_bonus(**options))))
    assert (made != credit(tw.verl_er(tw.reinforce()))).any()


def test_effective_rank_card():
    assert round(effective_rank(np.array([[1.0, 0], [0, 1], [1, 1]])), 4) == 1.9286


def test_effective_rank_counts_directions():
    for num in (1, 2, 5):
        cross = np.vstack([np.eye(num), -np.eye(num)])
        assert effective_rank(cross) == pytest.approx(num, rel=1e-12)
        assert effective_rank(7 * cross + 3) == pytest.approx(num, rel=1e-12)
    assert effective_rank(np.ones((1, 4))) == 0
    assert effective_rank(np.full((5, 4), 0.1)) == 0


def test_rank_metrics_follow_the_prefixes():
    hidden = np.random.default_rng(0).normal(size=(9, 4))
    m = [effective_rank(hidden[:stop]) for stop in (3, 5, 7, 9)]
    d = [m[1] - m[0], m[2] - (m[0] + m[1]) / 2, m[3] - (m[0] + m[1] + m[2]) / 3]
    rank, velocity, acceleration = rank_metrics(hidden, stride=2)
    assert rank == effective_rank(hidden)
    assert velocity == pytest.approx(sum(d) / 3)
    assert acceleration == pytest.approx((d[1] - d[0] + d[2] - d[1]) / 2)
    assert rank_metrics(hidden, stride=2, last=5)[1:] == rank_metrics(hidden[4:], stride=2)[1:]
    assert rank_metrics(hidden, stride=2, last=5)[0] == rank, "the rank itself is that of all tokens"


def released_rank_metrics(hidden, *, stride=40, last=512, eps=1e-8):
    """hf618/VERL, line by line: singular values with its eps, and the loop of its differences."""

    def rank(states):
        sigma = np.linalg.svd(states - states.mean(axis=0), compute_uv=False)
        share = sigma / (sigma.sum() + eps)
        return np.exp(-(share * np.log(share + eps)).sum())

    end, history, previous, first, second = hidden[-last:], [], None, [], []
    for t in range(stride, len(end), stride):
        metric = rank(end[: t + 1])
        if history:
            first.append(metric - np.mean(history))
            if previous is not None:
                second.append(first[-1] - previous)
            previous = first[-1]
        history.append(metric)
    return rank(hidden), np.mean(first) if first else 0.0, np.mean(second) if second else 0.0


@pytest.mark.parametrize("tokens", [39, 40, 41, 80, 81, 120, 121, 160, 511, 512, 513, 600])
def test_rank_metrics_are_those_of_the_release(tokens):
    hidden = np.random.default_rng(tokens).normal(size=(tokens, 16)).cumsum(axis=0)
    np.testing.assert_allclose(rank_metrics(hidden), released_rank_metrics(hidden), rtol=1e-5, atol=1e-6)
    assert (rank_metrics(hidden)[1] == 0) == (tokens <= 80), "81 tokens have two prefixes, of 41 and 81"


@pytest.mark.parametrize(("stride", "known"), [(40, 0), (9, 0), (5, 0), (4, 1), (3, 1), (2, 2)])
def test_short_responses_have_no_velocity_or_acceleration(stride, known):
    hidden = np.random.default_rng(0).normal(size=(9, 4))
    rank, velocity, acceleration = rank_metrics(hidden, stride=stride)
    assert rank > 1
    assert (velocity != 0) == (known >= 1)
    assert (acceleration != 0) == (known >= 2)


def test_the_averages_of_the_release_start_at_zero_and_lag_one_step_more():
    """Its step 1 has no bonus; step n reads averages of steps 1 to n - 2."""
    steps = [[2.0, 4.0], [3.0, 5.0], [1.0, 9.0], [4.0, 4.0]]
    block = tw.transforms.asymmetry.add_rank_bonus(kappa=1.0, rate=0.3, convention="release")
    state, usual = block.init(), [None, 0.0, 0.3 * 3, 0.7 * 0.3 * 3 + 0.3 * 4]
    for metric, average in zip(steps, usual, strict=True):
        batch = group_of(1, 0, effective_rank=metric, rank_velocity=[0, 0], rank_acceleration=[0, 0])
        credit, state = block.update(np.array([10.0, -10.0]), state, batch)
        state = json.loads(json.dumps(state))  # a checkpoint
        if average is None:
            np.testing.assert_array_equal(credit, [10, -10])
            continue
        deviation = np.clip((np.array(metric) - average) / (abs(average) + 1e-8), -5, 5)
        bonus = 0.5 * np.tanh(deviation)  # beta is 1/2 without acceleration
        np.testing.assert_allclose(credit - [10, -10], np.maximum(bonus, 0.0), rtol=1e-12)
