"""Intervals that cover what they should, by simulation with known answers."""

import math

import numpy as np
import pytest
from scipy import stats

from turnwise.lab.diagnostics.statistics import (
    Interval,
    contrast,
    detectable,
    holm,
    pairs_needed,
    win_probability,
    win_probability_unpaired,
)
from turnwise.train.evaluation.intervals import wilson_interval


def coverage(draw, truth, *, studies=400, weights=(1.0,)) -> float:
    generator = np.random.default_rng(0)
    hits = 0
    for number in range(studies):
        made = contrast(draw(generator), weights, draws=400, seed=number)
        hits += made.low <= truth <= made.high
    return hits / studies


@pytest.mark.parametrize("runs", [3, 5, 10, 30])
def test_the_interval_of_paired_differences_covers_the_truth(runs):
    # 400 studies of a true 95 % stay above 0.92 with probability 0.99
    assert 0.92 <= coverage(lambda g: [g.normal(0.1, 0.05, runs)], 0.1) <= 0.99


def test_the_interval_of_unpaired_runs_covers_the_truth():
    made = coverage(lambda g: [g.normal(0.6, 0.1, 6), g.normal(0.5, 0.03, 9)], 0.1, weights=(1.0, -1.0))
    assert 0.92 <= made <= 0.99


def test_the_interval_over_strata_covers_the_mean_of_the_strata():
    made = coverage(lambda g: [g.normal(0.3, 0.02, 5), g.normal(-0.1, 0.1, 5)], 0.1, weights=(0.5, 0.5))
    assert 0.92 <= made <= 0.99


def test_a_plain_percentile_bootstrap_would_not():
    """What the corrections are for: with five runs it covers far less than it says."""
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        sample = generator.normal(0.0, 1.0, 5)
        low, high = np.quantile(sample[generator.integers(5, size=(400, 5))].mean(axis=1), [0.025, 0.975])
        hits += low <= 0.0 <= high
    assert hits / 400 < 0.9


def test_at_least_students_interval():
    sample = np.array([0.1, 0.2, 0.15, 0.3])
    made = contrast([sample], [1.0])
    student = stats.ttest_1samp(sample, 0.0).confidence_interval()
    assert made.low <= student.low + 1e-12
    assert made.high >= student.high - 1e-12
    assert made.value == pytest.approx(0.1875)
    welch = stats.ttest_ind(sample, sample[:3] + 1, equal_var=False).confidence_interval()
    both = contrast([sample, sample[:3] + 1], [1.0, -1.0])
    assert both.low <= welch.low + 1e-12
    assert both.high >= welch.high - 1e-12


@pytest.mark.parametrize("sample", [[0.3], [0.2, 0.2, 0.2]])
def test_without_a_spread_nothing_is_shown(sample):
    made = contrast([np.array(sample)], [1.0])
    assert (made.low, made.high, made.shown) == (-math.inf, math.inf, False)
    assert made.text() == f"{sample[0]:.3f} [no interval]"


def test_an_interval_shows_a_difference_when_it_leaves_out_zero():
    assert Interval(0.1, 0.01, 0.2).shown
    assert Interval(-0.1, -0.2, -0.01).shown
    assert not Interval(0.1, -0.01, 0.2).shown
    assert not Interval(0.1, 0.0, 0.2).shown
    assert Interval(0.1, -0.01, 0.2).text(2, sign=True) == "+0.10 [-0.01, +0.20]"


def test_the_probability_of_improvement():
    paired = win_probability(np.array([1.0, 2.0, -1.0, 0.0]))
    assert paired.value == 0.625
    assert 0.0 < paired.low < 0.625 < paired.high < 1.0
    a, b = np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0])
    unpaired = win_probability_unpaired(a, b)
    assert unpaired.value == pytest.approx(stats.mannwhitneyu(a, b).statistic / 6)
    assert unpaired.low <= unpaired.value <= unpaired.high
    assert win_probability(np.ones(5)).low < 0.6, "five of five is no certainty"


@pytest.mark.parametrize("runs", [2, 3, 5, 8, 30])
@pytest.mark.parametrize("arms", [1, 2])
def test_a_difference_that_is_called_detectable_is_shown_four_times_in_five(runs, arms):
    spread, generator = 0.08, np.random.default_rng(runs)
    difference = detectable(spread, runs, arms=arms)
    if arms == 1:
        p = stats.ttest_1samp(generator.normal(difference, spread, (20_000, runs)), 0.0, axis=1).pvalue
    else:
        a, b = generator.normal(0.0, spread / math.sqrt(2), (2, 20_000, runs))
        p = stats.ttest_ind(a + difference, b, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.012)
    assert pairs_needed(1.001 * difference, spread, arms=arms) == runs
    assert pairs_needed(0.999 * difference, spread, arms=arms) == runs + 1


def test_what_cannot_be_shown_needs_no_number():
    assert pairs_needed(0.0, 1.0) == math.inf
    assert pairs_needed(1.85e-17, 0.07) == math.inf, "the rounding of a mean"
    assert pairs_needed(1e-4, 1.0) == pytest.approx(7.849e8, rel=1e-3)
    assert detectable(0.1, 1) == math.inf


def test_the_p_value_is_students():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.3, 1.0, 12), rng.normal(0.0, 2.0, 7)
    assert contrast([a], [1.0]).p == pytest.approx(stats.ttest_1samp(a, 0.0).pvalue)
    assert contrast([a, b], [1.0, -1.0]).p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert math.isnan(contrast([np.array([0.3])], [1.0]).p)


def test_holms_correction_by_hand():
    # smallest first: 4 * 0.005, 3 * 0.01, 2 * 0.03, and 0.04 is no less than the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    adjusted = holm([math.nan, 0.02])
    assert math.isnan(adjusted[0])
    assert adjusted[1] == pytest.approx(0.04)
    assert holm([]) == []


def test_with_holms_correction_false_alarms_are_rare_over_all_comparisons():
    rng = np.random.default_rng(5)
    alarms = alone = 0
    for _ in range(400):
        p = [float(stats.ttest_1samp(rng.normal(size=10), 0.0).pvalue) for _ in range(9)]
        alarms += min(holm(p)) < 0.05
        alone += min(p) < 0.05
    assert alarms / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5
    assert alone / 400 > 0.25, "which is what the correction is for"


SKEWED = np.array([0.0, 0.0, 0.0, 1.0])
"""All four draws are the 1 with probability 1/256, above the tail of t(3) at 3.18: the bootstrap's upper end is that,
by hand.
"""
REACH = 0.75 * math.sqrt(4 / 3)


def test_the_bootstrap_is_the_outer_end_where_the_data_are_skewed():
    student = 3.182446305 * 0.25
    made = contrast([SKEWED], [1.0])
    assert made.high == pytest.approx(0.25 + REACH)  # 1.116, Student has 1.046
    assert made.low == pytest.approx(0.25 - student)
    mirrored = contrast([SKEWED], [-1.0])
    assert (mirrored.low, mirrored.high) == (pytest.approx(-made.high), pytest.approx(-made.low))
    half = contrast([SKEWED], [0.5])
    assert (half.low, half.high) == (pytest.approx(made.low / 2), pytest.approx(made.high / 2))


def test_samples_are_resampled_independently():
    # t has 6 degrees of freedom, a tail of 0.0072: P(both means together 1 or more above theirs) = 277 / 65536, 0.75
    # or more 1789 / 65536
    made = contrast([SKEWED, 1 - SKEWED], [1.0, -1.0])
    assert made.high == pytest.approx(-0.5 + REACH)
    assert made.low == pytest.approx(-0.5 - 2.446911851 * math.sqrt(1 / 8))


def test_the_interval_of_an_unpaired_win_probability_is_the_outer_of_two():
    rng = np.random.default_rng(7)
    a, b = rng.normal(0.3, 1.0, 12), rng.normal(0.0, 1.0, 9)
    better = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    weight_a, weight_b = rng.multinomial(12, [1 / 12] * 12, 20_000) / 12, rng.multinomial(9, [1 / 9] * 9, 20_000) / 9
    low, high = np.quantile(np.einsum("ka,ab,kb->k", weight_a, better, weight_b), [0.025, 0.975])
    made, outer = win_probability_unpaired(a, b), wilson_interval(9 * better.mean(), 9)
    wanted = min(low, outer[0]), max(high, outer[1])
    assert (made.low, made.high) == (pytest.approx(wanted[0], abs=0.02), pytest.approx(wanted[1], abs=0.02))
    assert 0.2 < low < high < 0.98


def test_two_runs_of_each_do_not_make_a_certainty():
    made = win_probability_unpaired(np.array([0.8, 0.9]), np.array([0.1, 0.2]))
    assert made.value == 1
    assert made.low < 0.5
