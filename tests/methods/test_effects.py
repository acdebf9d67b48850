"""BLUP: effects of actions, predicted from the outcomes of the trajectories that took them."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import ConfigError


def drawn(num_groups: int, *, noise: float, seed: int = 0) -> tuple[tw.Batch, np.ndarray]:
    """Draw groups from the model: effects of actions with variance v, and returns that are their sums."""
    draw = np.random.default_rng(seed)
    rows, effects = [], []
    for group in range(num_groups):
        chance = draw.uniform(0.05, 0.95, size=(4, 3))
        effect = draw.normal(size=(4, 3)) * np.sqrt((1 - chance) ** 2 + 0.02)
        chosen = draw.integers(3, size=(8, 4))
        total = effect[np.arange(4), chosen].sum(1)
        spread = np.sqrt(noise * ((1 - chance) ** 2 + 0.02)[np.arange(4), chosen].sum(1).mean())
        total += draw.normal(size=8) * spread
        for n in range(8):
            for t in range(4):
                p, action = chance[t, chosen[n, t]], chosen[n, t]
                rows.append((group, n, total[n] if t == 3 else 0.0, np.log(p) / 2, 2.0, f"s{t}", f"a{action}"))
                effects.append(effect[t, action])
    names = ("group", "trajectory", "reward", "logprob", "length", "state_key", "action_key")
    group, trajectory, reward, *columns = map(list, zip(*rows, strict=True))
    batch, order = tw.Batch.from_arrays(
        group=group, trajectory=trajectory, reward=reward, columns=dict(zip(names[3:], columns, strict=True))
    )
    return batch, np.array(effects)[order]


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_predictions_are_as_large_as_the_effects_that_they_predict(noise):
    """The best prediction is calibrated: effects regress on it with slope 1. With another noise it is not."""
    batch, effect_R = drawn(1500, noise=noise)
    slope = lambda made_R: made_R @ effect_R / (made_R @ made_R)  # noqa: E731
    # the mean of eight returns also has some of the effects, which a known V_0 would not have
    assert slope(tw.blup(noise=noise)(batch)) == pytest.approx(1.0, abs=0.06)
    assert abs(slope(tw.blup(noise=10 * noise)(batch)) - 1.0) > 0.2


def test_predictions_are_closer_to_the_effects_than_the_groups_advantage():
    batch, effect_R = drawn(300, noise=0.1)
    cosine = lambda made_R: made_R @ effect_R / np.sqrt(made_R @ made_R * (effect_R @ effect_R))  # noqa: E731
    found = {name: cosine(method(batch)) for name, method in (("blup", tw.blup(noise=0.1)), ("grpo", tw.grpo()))}
    assert found["blup"] > found["grpo"] + 0.2
    assert found["blup"] > cosine(tw.blup(least_variance=100.0)(batch)) + 0.02  # the same without the probabilities


def test_without_noise_the_effects_add_up_to_the_advantage():
    """Where trajectories share too little to contradict each other, all of the outcome is divided."""
    batch, _ = drawn(20, noise=0.1)
    alone = {**batch.columns, "state_key": [f"{row}" for row in range(batch.num_responses)]}
    batch = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, alone)
    above_R = tw.chain(tw.outcome_return(), tw.center_by_group())(batch)
    total_N = batch.trajectories.sum(tw.blup(noise=1e-9)(batch))
    np.testing.assert_allclose(total_N, batch.trajectories.first(above_R), rtol=1e-6, atol=1e-8)


def test_columns_of_ones_own():
    batch, _ = drawn(5, noise=0.1)
    mine = {"logprob": batch.columns["logprob"], "length": batch.columns["length"]}
    mine |= {"place": batch.columns["state_key"].astype(str), "call": batch.columns["action_key"].astype(str)}
    other = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, mine)
    method = tw.blup(state="place", action="call")
    assert set(method.needs) == {"logprob", "length", "place", "call"}
    np.testing.assert_allclose(method(other), tw.blup()(batch), rtol=1e-12)


def test_variances_of_zero_are_refused():
    with pytest.raises(ConfigError, match=r"noise=0\.0 must be above 0"):
        tw.blup(noise=0.0)
    with pytest.raises(ConfigError, match=r"least_variance=0\.0 must be above 0"):
        tw.blup(least_variance=0.0)
    with pytest.raises(ConfigError, match=r"prior_count=0\.0 must be above 0"):
        tw.blup(prior_count=0.0)
