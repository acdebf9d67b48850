"""AEM, by hand."""

import numpy as np
import pytest

import turnwise as tw

E = np.e


def two_prompts(entropy, reward=(0, 1, 0, 0, 0, 3)) -> tw.Batch:
    """Prompt 0: trajectories of 2 and 1 turns; prompt 1: of 2 and 1."""
    return tw.Batch(tw.Segments([0, 2, 4]), tw.Segments([0, 2, 3, 5, 6]), reward, {"entropy": entropy})


BATCH = two_prompts([0.0, 1.0, 0.5, 2.0, 3.0, 2.0])


def test_the_coefficient_worked_by_hand():
    q = np.exp(-0.5)
    first, second = (1 + 1 / E + q) / 3, (1 + 1 / E + 1) / 3
    expected = [1 / first, 1 / E / first, q / first, 1 / second, 1 / E / second, 1 / second]
    np.testing.assert_allclose(tw.entropy_coefficient(BATCH), expected, rtol=1e-14)


def test_scopes_compare_a_trajectory_a_prompt_or_the_batch():
    pair = np.array([2 * E / (E + 1), 2 / (E + 1)])
    by_trajectory = tw.entropy_coefficient(BATCH, scope="trajectory")
    np.testing.assert_allclose(by_trajectory, [*pair, 1, *pair, 1], rtol=1e-14)
    weight = np.exp(-np.array([0.0, 1.0, 0.5, 2.0, 3.0, 2.0]) / 3)
    np.testing.assert_allclose(tw.entropy_coefficient(BATCH, scope="batch"), weight / weight.mean(), rtol=1e-14)


def test_a_scope_of_small_range_is_left_alone_and_the_limit_itself_is_not():
    batch = two_prompts([0.0, 0.125, 0.0, 1.0, 1.25, 1.0])
    alpha_R = tw.entropy_coefficient(batch, min_range=0.25)
    np.testing.assert_array_equal(alpha_R[:3], 1)  # 0.125 is less than 0.25
    assert (alpha_R[3:] != 1).all()  # 0.25 is not
    np.testing.assert_array_equal(tw.entropy_coefficient(batch, min_range=1.0), 1)
    np.testing.assert_array_equal(tw.entropy_coefficient(two_prompts([0.7] * 6), min_range=0.0), 1)


def test_aem_multiplies_the_base_and_nothing_else():
    for base in (tw.grpo(), tw.rloo(), tw.reinforce()):
        np.testing.assert_array_equal(tw.aem(base)(BATCH), base(BATCH) * tw.entropy_coefficient(BATCH))
    np.testing.assert_array_equal(tw.aem()(BATCH), tw.aem(tw.grpo())(BATCH))
    np.testing.assert_array_equal(tw.chain(tw.grpo(), tw.modulate_by_entropy())(BATCH), tw.aem()(BATCH))


def test_aem_passes_its_options_on():
    ones = np.ones(6)
    for options in ({"temperature": 2.0}, {"scope": "batch"}, {"min_range": 2.0}, {"shuffle": True, "seed": 3}):
        expected, _ = tw.modulate_by_entropy(**options).update(ones, None, BATCH)
        np.testing.assert_array_equal(tw.aem(tw.rloo(), **options)(BATCH), tw.rloo()(BATCH) * expected)


def test_the_name_says_all_that_was_chosen():
    assert tw.aem(tw.rloo(), temperature=0.5, scope="batch").name == (
        "aem(rloo(convention='turnwise'), temperature=0.5, scope='batch', min_range=0.1, shuffle=False, seed=0, "
        "keep='all')"
    )


def test_a_negative_temperature_makes_the_hesitant_count_more():
    alpha_R = tw.entropy_coefficient(BATCH, temperature=-1.0)
    assert alpha_R[1] > alpha_R[2] > alpha_R[0]
    np.testing.assert_allclose(alpha_R[1] / alpha_R[0], E, rtol=1e-14)


def test_shuffled_credit_is_the_bases_on_average_over_seeds():
    base = tw.rloo()(BATCH)
    seeds = 3000
    dealt = tw.modulate_by_entropy.function  # pyright: ignore[reportFunctionMemberAccess]
    mean = sum(base * dealt(base, BATCH, shuffle=True, seed=seed) for seed in range(seeds)) / seeds
    # a coefficient has a standard deviation of 0.4; four standard errors of the mean of 3000, times credit up to 3
    np.testing.assert_allclose(mean, base, rtol=0, atol=3 * 4 * 0.4 / np.sqrt(seeds))
    assert np.abs(tw.aem(tw.rloo())(BATCH) - base).max() > 0.3, "which cannot be said of the coefficients in place"


def test_shuffles_of_different_seeds_and_different_entropies_differ():
    entropy = np.linspace(0, 3, 40)
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 20, 40]), np.ones(40), {"entropy": entropy})
    other = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 20, 40]), np.ones(40), {"entropy": entropy * 2})
    deal = {
        key: tw.modulate_by_entropy(shuffle=True, seed=seed)(each)
        for key, seed, each in [("a", 0, batch), ("b", 1, batch), ("c", 0, other)]
    }
    assert (deal["a"] != deal["b"]).any()
    assert (np.abs(deal["a"] - deal["c"]) > 1e-9).any(), "the same permutation every step would be no shuffle"


@pytest.mark.parametrize(("temperature", "kind"), [(1.0, "biased"), (-1.0, "biased"), (0.0, "unbiased")])
def test_the_declared_gradient_follows_the_temperature(temperature, kind):
    gradient = tw.aem(tw.rloo(), temperature=temperature).gradient
    assert gradient is not None
    assert gradient.kind == kind


def test_the_shuffled_ablation_says_why_it_is_biased():
    assert "averaged over seeds, the base's gradient" in str(tw.aem(shuffle=True).gradient)


def test_where_alpha_is_one_the_mask_keeps_nothing():
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 1, 2]), [1.0, -1.0], {"entropy": [0.5, 0.55]})
    for keep in ("positive", "negative"):
        np.testing.assert_array_equal(tw.mask_by_drift(keep=keep)(batch), 0.0)  # a spread of 0.05 is below 0.1 nats
    np.testing.assert_array_equal(tw.mask_by_drift(keep="positive", min_range=0.01)(batch), [1.0, -1.0])


def test_the_mask_compares_in_its_scope():
    # scope batch: the policy is certain on the second prompt, so that alpha is above 1 in it and below 1 in the first
    entropy = [2.0, 1.9, 0.2, 0.0]
    batch = tw.Batch(tw.Segments([0, 2, 4]), tw.Segments(range(5)), [1.0, 1.0, 1.0, 1.0], {"entropy": entropy})
    np.testing.assert_array_equal(tw.mask_by_drift(scope="batch")(batch), [0, 0, 1, 1])
    np.testing.assert_array_equal(tw.mask_by_drift()(batch), [0, 1, 0, 1])


APART = [
    2.0,
    1.9,
    1.8,
    0.2,
    0.1,
    0.0,
]  # the second prompt is sure throughout: another mask over the batch than in the group
NARROW = [0.3, 0.1, 0.0, 2.0, 1.0, 0.0]  # the first prompt's range is below 0.5
SKEWED = [0.0, 0.45, 1.0, 0.0, 0.45, 1.0]  # where 0.45 lies above the mean of exp(-h), and at temperature 0.1 below


@pytest.mark.parametrize("keep", ["positive", "negative"])
@pytest.mark.parametrize(
    ("options", "entropy"), [({"scope": "batch"}, APART), ({"min_range": 0.5}, NARROW), ({"temperature": 0.1}, SKEWED)]
)
def test_masked_aem_is_aem_where_the_mask_of_the_same_options_keeps(options, entropy, keep):
    batch = tw.Batch(tw.Segments([0, 3, 6]), tw.Segments(range(7)), [0, 1, 0.25, 0, 2, 0.5], {"entropy": entropy})
    kept = tw.chain(tw.rloo(), tw.mask_by_drift(keep=keep, **options))(batch) != 0
    assert (kept != (tw.chain(tw.rloo(), tw.mask_by_drift(keep=keep))(batch) != 0)).any(), "the option matters here"
    masked, whole = tw.aem(tw.rloo(), keep=keep, **options)(batch), tw.aem(tw.rloo(), **options)(batch)
    np.testing.assert_array_equal(masked, np.where(kept, whole, 0.0))
    assert (masked != np.where(kept, tw.rloo()(batch), 0.0)).any()
