"""Token rules, by the papers' numbers and by hand."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
from tests.token_rules.steps import WIDTHS, column, given, step

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.extensions.token_rules.adapo import adapo
from turnwise.extensions.token_rules.covariance import clip_cov, covariance, kl_cov
from turnwise.extensions.token_rules.epo import epo
from turnwise.extensions.token_rules.flexible import flexible_clip
from turnwise.extensions.token_rules.gain_clip import gain_clip
from turnwise.extensions.token_rules.hapo import hapo
from turnwise.extensions.token_rules.masks import d3s_mask, spo_mask
from turnwise.extensions.token_rules.repo import repo
from turnwise.extensions.token_rules.steer import steer
from turnwise.objective.token_rules import StepTokens


def test_covariance_by_hand():
    tokens = step([1, 1, -1, -1], [-0.1, -2, -0.1, -2])
    np.testing.assert_allclose(covariance(tokens), [0.95, -0.95, -0.95, 0.95])


def spread(num_tokens: int, frac_high: float, seed: int = 0) -> StepTokens:
    """Advantages of both signs and log-probabilities of which a share gives a covariance between 1 and 5."""
    generator = np.random.default_rng(seed)
    logprob = np.where(generator.random(num_tokens) < frac_high, -4.0, -0.5)
    return step(generator.choice([-1.0, 1.0], num_tokens), logprob)


def test_clip_cov_takes_out_a_few_tokens_of_high_covariance():
    tokens = spread(20_000, 0.1)
    cov_T = covariance(tokens)
    credit = clip_cov(tokens)
    out = column(credit.factor_T) == 0
    assert given(credit) == {"factor_T"}
    assert out.sum() == 4  # floor(2e-4 * 20000)
    assert set(column(credit.factor_T)) == {0.0, 1.0}
    assert np.all((cov_T[out] > 1) & (cov_T[out] < 5))
    assert ((cov_T > 1) & (cov_T < 5)).sum() > 500


def test_clip_cov_respects_both_bounds():
    tokens = step([1.0, 1.0, -1.0, -1.0] * 5, [-0.1, -2.0] * 10)  # covariances of +-0.95
    assert np.all(column(clip_cov(tokens, frac=1.0).factor_T) == 1)
    np.testing.assert_array_equal(
        column(clip_cov(tokens, frac=1.0, low=0.9).factor_T), [0, 1, 1, 0] * 5
    )  # all there are
    assert np.all(column(clip_cov(tokens, frac=1.0, low=0.9, high=0.94).factor_T) == 1)
    assert column(clip_cov(tokens, frac=1e-9, low=0.9).factor_T).sum() == 19  # at least one


def test_clip_cov_draws_by_its_seed():
    def drawn(**fields: Any) -> list[int]:
        tokens = spread(20_000, 0.1)
        return np.flatnonzero(
            column(clip_cov(step(tokens.advantage_T, tokens.logprob_T, **fields)).factor_T) == 0
        ).tolist()

    assert drawn(seed=(1, 6, 3)) == drawn(seed=(1, 6, 3))
    assert drawn(seed=(1, 6, 3)) != drawn(seed=(1, 6, 4))


def test_clip_cov_draws_candidates_alike():
    tokens = step([1.0, 1.0, -1.0, -1.0] * 5, [-0.1, -2.0] * 10)
    count = np.zeros(20)
    for seed in range(2000):
        tokens_of_seed = step(tokens.advantage_T, tokens.logprob_T, seed=(seed,))
        count += column(clip_cov(tokens_of_seed, frac=0.1, low=0.9).factor_T) == 0
    candidates = np.array([True, False, False, True] * 5)
    assert np.all(count[~candidates] == 0)
    np.testing.assert_allclose(count[candidates], 2000 * 2 / 10, atol=5 * math.sqrt(2000 * 0.2 * 0.8))


def test_kl_cov_holds_the_highest_covariances():
    tokens = step([2.0, 1.0, -1.0, -2.0], [-0.1, -0.2, -0.3, -3.0])  # mean -0.9: 1.6, 0.7, -0.6, 4.2
    for frac, held in [(0.25, [3]), (0.5, [0, 3]), (0.74, [0, 3]), (1e-9, [3]), (1.0, [0, 1, 2, 3])]:
        credit = kl_cov(tokens, frac=frac, coefficient=0.7)
        assert given(credit) == {"penalty_T"}
        np.testing.assert_array_equal(column(credit.penalty_T), [0.7 * (i in held) for i in range(4)])
    assert column(kl_cov(spread(5000, 0.1)).penalty_T).sum() == 10  # 0.2 % with a coefficient of 1


STEER = step(1.0, np.log([0.9, 0.1, 0.5]), [0.3, 1.5, 0.69])  # changes of .0195, .722, .0016


def test_steer_by_worked_numbers():
    credit = steer(STEER)
    assert given(credit) == {"factor_T"}
    np.testing.assert_allclose(column(credit.factor_T), [0.994, 0.8, 0.9995], atol=5e-5)


def test_steer_by_a_straight_line():
    factor_T = column(steer(STEER, mapping="linear").factor_T)
    np.testing.assert_allclose(factor_T, [1.2 - 0.4 * (0.0195 - 0.0016) / (0.722 - 0.0016), 0.8, 1.2], atol=5e-5)
    np.testing.assert_allclose(column(steer(step(1.0, [-1, -1]), mapping="linear").factor_T), 1.0)  # all alike
    factor_T = column(steer(STEER, mapping="linear", weight_min=0.5, weight_max=1.0).factor_T)
    np.testing.assert_allclose(factor_T[1:], [0.5, 1.0])


def test_steer_does_not_magnify_small_changes():
    """Below 0.02 the largest change is read as 0.02: 0.9 * |log 0.1 + H| = 0.01 is half of it."""
    small = step(1.0, math.log(0.1), -math.log(0.1) + 0.01 / 0.9)
    np.testing.assert_allclose(column(steer(small).factor_T), math.sqrt(0.8))
    np.testing.assert_array_equal(column(steer(step(0.0, [-1, -2, -3])).factor_T), 1.0)  # no advantage, no change


def test_steer_weighs_the_sign_of_an_advantage_alike_and_its_size():
    logprob, entropy = np.log([0.1, 0.1, 0.1]), 1.5
    factor_T = column(steer(step([2.0, -2.0, 1.0], logprob, entropy)).factor_T)
    np.testing.assert_allclose(factor_T, [0.8, 0.8, math.sqrt(0.8)])


def test_steer_reads_impossible_tokens_as_nearly_impossible():
    factor_T = column(steer(step(1.0, [-100.0, math.log(1e-8), math.log(0.5)], 0.0)).factor_T)
    np.testing.assert_allclose(factor_T[:2], 0.8)


def test_spo_chain_whitens_what_it_keeps():
    # kept: advantages 1, 2, 6 with mean 3 and sample variance 7; the sure tokens count for nothing
    credit = spo_mask(step([1.0, 50.0, 2.0, 6.0, -9.0], np.log([0.5, 0.95, 0.1, 0.2, 1.0])), whiten=True)
    np.testing.assert_allclose(
        column(credit.advantage_T), np.array([-2, 0, -1, 3, 0]) / math.sqrt(7 + 1e-8), rtol=1e-14
    )
    np.testing.assert_array_equal(column(credit.kept_T), [True, False, True, True, False])
    alike = spo_mask(step([2.0, 2.0], np.log([0.5, 0.5])), whiten=True)
    np.testing.assert_array_equal(column(alike.advantage_T), 0.0)
    assert given(spo_mask(step([2.0, 2.0], np.log([0.5, 0.95])), whiten=True)) == {"kept_T"}  # one has no deviation


def test_spo_keeps_tokens_below_the_threshold():
    credit = spo_mask(step(1.0, np.log([0.89, 0.91, 0.1, 1.0])))
    assert given(credit) == {"kept_T"}
    np.testing.assert_array_equal(column(credit.kept_T), [True, False, True, False])
    np.testing.assert_array_equal(column(spo_mask(step(1.0, np.log([0.4, 0.6])), threshold=0.5).kept_T), [True, False])


def test_d3s_keeps_the_largest_products_on_its_schedule():
    fields: Any = {"advantage": [-3.0, 1.0, 0.0, 2.0, -1.0], "entropy": [1.0, 2.5, 9.0, 0.5, 0.5]}  # 3, 2.5, 0, 1, 0.5
    for done, kept in [(0, [0]), (5, [0, 1]), (10, [0, 1, 3, 4])]:  # 0.2, 0.6 and 1 of the four that have an advantage
        credit = d3s_mask(step(**fields, steps_done=done, steps=10), first_frac=0.2, last_frac=1.0)
        assert given(credit) == {"kept_T"}
        assert set(np.flatnonzero(column(credit.kept_T))) == set(kept)
    assert column(d3s_mask(step(**fields), first_frac=0.01, last_frac=0.01).kept_T).sum() == 1
    assert column(d3s_mask(step(0.0, np.full(4, -1.0)), first_frac=0.5, last_frac=0.5).kept_T).sum() == 2


def test_d3s_takes_its_share_of_the_tokens_of_the_trajectories_it_kept():
    """Ten rows of ten tokens, two of them kept: half of 20 tokens, not of 100."""
    rewards = [5, 4, 1, 0, 0, 0, 0, 0, 0, -9]
    groups = [[[{"reward": reward, "num_tokens": 10}] for reward in rewards]]
    batch = tw.Batch.from_trajectories(groups)
    advantage_R = tw.d3s(tw.dr_grpo(), kept_frac=0.2)(batch)
    np.testing.assert_array_equal(np.flatnonzero(advantage_R), [0, 9])
    entropy_T = np.random.default_rng(0).uniform(0.1, 1, 100)
    assert batch.tokens is not None
    tokens = step(batch.tokens.broadcast(advantage_R), entropy=entropy_T)
    kept_T = column(d3s_mask(tokens, first_frac=0.5, last_frac=0.5).kept_T)
    assert kept_T.sum() == 10
    assert (tokens.advantage_T[kept_T] != 0).all()


def test_d3s_tells_equal_products_apart_by_lot():
    count = np.zeros(10)
    for seed in range(1000):
        count += column(d3s_mask(step(1.0, np.full(10, -1.0), seed=(seed,)), first_frac=0.3, last_frac=0.3).kept_T)
    np.testing.assert_allclose(count, 300, atol=5 * math.sqrt(1000 * 0.3 * 0.7))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flexible_clip(step(), upper=[0.1, 0.2], lower=[0.2, 0.1]), r"upper=\[0.1, 0.2\] grows"),
        (lambda: flexible_clip(step(), upper=[0.2, 0.1], lower=[0.1, 0.2]), r"lower=\[0.1, 0.2\] grows"),
        (lambda: flexible_clip(step(), schedule="od", **WIDTHS), r"'od' needs the option 'entropy_min'"),
        (
            lambda: repo(step(), zeta=1.0, zeta_min=0.1, zeta_max=0.5),
            "zeta=1.0 must lie between zeta_min=0.1 and zeta_max=0.5",
        ),
        (lambda: adapo(step(), rate=0.1, high_min=0.3, high_max=0.2), "high_min=0.3 is above high_max=0.2"),
    ],
)
def test_options_at_odds_are_one_clear_line(call, message):
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


RULES: Any = [
    clip_cov,
    kl_cov,
    steer,
    spo_mask,
    hapo,
    gain_clip,
    lambda tokens: d3s_mask(tokens, first_frac=0.5, last_frac=0.5),
    lambda tokens: flexible_clip(tokens, **WIDTHS),
    lambda tokens: repo(tokens, zeta=0.1, zeta_max=0.1),
    lambda tokens: repo(tokens, zeta=0.1, zeta_max=0.1, form="repo"),
    lambda tokens: adapo(tokens, rate=0.1, high_min=0.1, high_max=0.4),
    lambda tokens: epo(tokens, beta_decay=1.0),
]


@pytest.mark.parametrize("rule", RULES)
def test_rules_leave_what_they_get_as_it_is(rule):
    generator = np.random.default_rng(0)
    columns = generator.normal(size=50), -generator.exponential(size=50), generator.exponential(size=50)
    turns = [[{"reward": 0, "gold_logprob": n * t, "num_tokens": 2} for t in range(5)] for n in range(5)]
    batch = tw.Batch.from_trajectories([turns])
    before = [values.copy() for values in columns]
    for values in columns:
        values.flags.writeable = False
    rule(StepTokens(*columns, batch=batch))
    for values, was in zip(columns, before, strict=True):
        np.testing.assert_array_equal(values, was)


def step_of(advantage: Any, logprob: Any, entropy: Any = 1.0, **fields: Any) -> StepTokens:
    return StepTokens(
        *(np.atleast_1d(c).astype(float) for c in np.broadcast_arrays(advantage, logprob, entropy)), **fields
    )


def test_a_covariance_is_that_of_centred_advantages():
    np.testing.assert_allclose(
        covariance(step_of([3.0, 1.0, 5.0], [-1.0, -2.0, -6.0])), [0.0, -2.0, -6.0]
    )  # means 3 and -3


def test_bounds_of_covariance_and_probability_are_exclusive():
    one = step_of([1.0, -1.0], [-1.0, -3.0])  # covariances of exactly 1
    for options in ({"low": 1.0, "high": 5.0}, {"low": 0.5, "high": 1.0}):
        np.testing.assert_array_equal(clip_cov(one, frac=1.0, **options).factor_T, 1.0)
    np.testing.assert_array_equal(
        spo_mask(step_of(1.0, [np.log(0.5), np.log(0.4)]), threshold=0.5).kept_T, [False, True]
    )


def test_entropies_of_steps_of_other_sizes_are_compared_by_their_means():
    options: Any = {"upper": [0.6, 0.2], "lower": [0.4, 0.1], "schedule": "od", "entropy_min": 0.1}
    first = flexible_clip(step_of([1.0], [-1.0], 2.0, steps=10), **options)
    second = flexible_clip(
        step_of(np.ones(20), np.full(20, -1.0), 0.3, steps_done=1, steps=10, state=first.state), **options
    )
    assert second.state == {"first": 2.0, "raising": True}  # 0.3 is below 0.2 * 2


def test_repo_moves_a_large_advantage_more():
    credit = repo(step_of([3.0, -0.5], -2.0), zeta=0.01)
    np.testing.assert_allclose(credit.advantage_T, [3.06, -0.49])  # A - zeta * |A| * logprob


def test_the_defaults_of_epo_are_the_papers():
    known = inspect.signature(epo).parameters
    assert {name: known[name].default for name in ("beta_decay", "bonus", "penalty", "low", "high")} == {
        "beta_decay": 3.0,
        "bonus": 0.001,
        "penalty": 0.1,
        "low": 0.0,
        "high": 2.0,
    }


def test_repo_compares_mean_entropies_of_steps_of_other_sizes():
    options: Any = {"zeta": 0.02, "zeta_min": 0.001, "zeta_max": 1.0}
    first = repo(step_of(np.ones(2), -1.0, 0.5), **options)
    assert repo(step_of(np.ones(20), -1.0, 0.4, state=first.state), **options).state["zeta"] == 0.04  # below its target
