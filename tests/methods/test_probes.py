"""SPAE, HCAPO and EMPG: credit from probes, hindsight and entropies, by hand and against each other."""

import subprocess
import sys

import numpy as np
import pytest
from tests.methods.valued import CLOSE, LENGTHS, NUM_RESPONSES, make_batch

import turnwise as tw
from turnwise.base.errors import BatchError


def random_batch(seed=0, **columns) -> tw.Batch:
    generator = np.random.default_rng(seed)
    drawn = {
        "entropy": generator.uniform(0, 2, NUM_RESPONSES),
        "confidence": generator.uniform(0, 1, NUM_RESPONSES),
        "accuracy": generator.uniform(0, 1, NUM_RESPONSES),
        "hindsight_logprob": generator.normal(-1, 0.5, NUM_RESPONSES),
        "length": generator.integers(1, 9, NUM_RESPONSES),
        "success": np.repeat(generator.integers(0, 2, 7), np.concatenate(LENGTHS)),
    }
    return make_batch(LENGTHS, generator.normal(size=NUM_RESPONSES), **(drawn | columns))


# -- SPAE --------------------------------------------------------------------------------------------------------------


def test_the_potential_at_its_corners():
    batch = make_batch([[1] * 4], [0] * 4, accuracy=[1, 0, 1, 0], confidence=[1, 1, 0, 0])
    np.testing.assert_array_equal(tw.step_potential(batch), [1, -1, 0.5, 0])


def test_credit_is_damped_after_the_answer_was_found_whatever_its_sign():
    # potentials 1, 1, -1, 1 and 0.85, 1: found before the response 0, 1, 2, 2 and 0, 0 times
    accuracy, confidence = [1, 1, 0, 1, 0.9, 1], [1, 1, 1, 1, 0.95 / 0.9 * 0.95, 1]
    batch = make_batch([[4, 2]], [1, 0, 0, 0, -1, 0], accuracy=accuracy, confidence=confidence)
    assert tw.step_potential(batch)[4] < 0.9 < 1
    damped = tw.chain(tw.outcome_return(), tw.damp_after_saturation())(batch)
    once, twice = 0.5 + 0.5 / np.e, 0.5 + 0.5 / np.e**2
    np.testing.assert_allclose(damped, [1, once, twice, twice, -1, -1], **CLOSE)
    lenient = tw.chain(tw.outcome_return(), tw.damp_after_saturation(threshold=0.0, strength=1.0))(batch)
    np.testing.assert_allclose(lenient, [1, 1 / np.e, 1 / np.e**2, 1 / np.e**2, -1, -1 / np.e], **CLOSE)


def test_a_potential_at_the_threshold_is_not_above_it():
    batch = make_batch([[2]], [0, 1], accuracy=[1, 1], confidence=[1, 1])
    np.testing.assert_array_equal(tw.chain(tw.outcome_return(), tw.damp_after_saturation(threshold=1.0))(batch), 1.0)


def test_what_a_response_gained_is_compared_with_the_batch():
    # potentials 1, 0, 1/2 and 0: gains 0, -1, 1/2 and 0 (0 at the start of a trajectory), so u = 2/3, 0, 1, 2/3
    batch = make_batch([[3], [1]], [0] * 4, accuracy=[1, 0, 1, 0], confidence=[1, 0, 0, 0])
    size = np.exp([2 / 3, 0, 1, 2 / 3])
    np.testing.assert_allclose(tw.add_potential_gain(weight=2.0)(batch), 2 * (size - size.mean()), **CLOSE)


def test_where_nothing_was_gained_nothing_is_added():
    batch = random_batch(confidence=np.full(NUM_RESPONSES, 0.7), accuracy=np.full(NUM_RESPONSES, 0.4))
    np.testing.assert_array_equal(tw.add_potential_gain()(batch), batch.reward_R)


def test_spae_has_mean_0_and_deviation_1_over_the_tokens_of_the_batch():
    batch = random_batch()
    tokens = np.repeat(tw.spae()(batch), batch.columns["length"].astype(int))
    np.testing.assert_allclose(tokens.mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(tokens.std(ddof=1), 1.0, rtol=1e-5)


def test_spae_switched_off_is_its_base_standardised_over_tokens():
    batch = random_batch()
    over_tokens = {"over": "tokens", "scope": "batch"}
    for base in (tw.dr_grpo(), tw.reinforce()):
        whitened = tw.chain(base, tw.center_by_group(**over_tokens), tw.scale_by_group_std(**over_tokens))
        np.testing.assert_array_equal(tw.spae(base, strength=0.0, weight=0.0)(batch), whitened(batch))
    np.testing.assert_array_equal(tw.spae()(batch), tw.spae(tw.dr_grpo())(batch))
    np.testing.assert_array_equal(
        tw.spae(strength=0.3, threshold=0.2, weight=0.1)(batch),
        tw.chain(
            tw.dr_grpo(),
            tw.damp_after_saturation(strength=0.3, threshold=0.2),
            tw.add_potential_gain(weight=0.1),
            tw.center_by_group(**over_tokens),
            tw.scale_by_group_std(**over_tokens),
        )(batch),
    )


def test_spae_says_which_probe_is_missing():
    with pytest.raises(BatchError, match=r"^spae needs column 'accuracy'"):
        tw.spae()(make_batch([[1]], [0], confidence=[1]))


# -- HCAPO -------------------------------------------------------------------------------------------------------------


def weigh(chance, reward, lengths=None, **options):
    logprob = 5.0 * np.log(chance)
    batch = make_batch(lengths or [[len(chance)]], reward, hindsight_logprob=logprob)
    return tw.chain(tw.outcome_return(), tw.weigh_by_hindsight(**options))(batch)


def test_the_cards_weights():
    np.testing.assert_allclose(weigh([0.8, 0.4, 0.3], [0, 0, 1], discount=1.0), [1.2, 0.8, 0.8], **CLOSE)
    unclipped = weigh([0.8, 0.4, 0.3], [0, 0, 1], discount=1.0, low=0.0, high=9.0)
    np.testing.assert_allclose(unclipped, [1.6, 0.8, 0.6], **CLOSE)


def test_the_return_is_discounted_from_the_end_of_its_own_trajectory():
    quality = weigh([0.5] * 5, [0, 0, 10, 0, 4], [[3, 2]], discount=0.5)
    np.testing.assert_allclose(quality, [2.5, 5, 10, 2, 4], **CLOSE)


def test_the_temperature_evens_out_the_chances():
    raw = weigh([0.9, 0.3], [0, 1], temperature=5.0, discount=1.0, low=0.0, high=9.0)
    np.testing.assert_allclose(raw[0] / raw[1], 3.0, **CLOSE)
    cool = weigh([0.9, 0.3], [0, 1], temperature=10.0, discount=1.0, low=0.0, high=9.0)
    np.testing.assert_allclose(cool[0] / cool[1], np.sqrt(3.0), **CLOSE)


def test_smoothing_looks_one_response_ahead_within_the_trajectory():
    plain = weigh([0.5] * 5, [0, 0, 8, 0, 4], [[3, 2]], discount=0.5)
    np.testing.assert_allclose(plain, [2, 4, 8, 2, 4], **CLOSE)
    smooth = weigh([0.5] * 5, [0, 0, 8, 0, 4], [[3, 2]], discount=0.5, smoothing=0.5)
    np.testing.assert_allclose(smooth, [3, 6, 8, 3, 4], **CLOSE)  # at once, not from the end on: 3, not 3.5


def test_do_no_harm_spares_successes_only():
    batch = make_batch([[2, 1, 2]], [-1, 2, -3, -4, 5], success=[1, 1, 0, 0.5, 0.5])
    np.testing.assert_array_equal(tw.spare_successes()(batch), [0, 2, -3, -4, 5])


def test_a_group_of_failures_gets_nothing_and_a_failure_among_successes_the_same_at_every_turn():
    failed = random_batch()
    failed = make_batch(LENGTHS, np.zeros(NUM_RESPONSES), **failed.columns)
    np.testing.assert_array_equal(tw.hcapo()(failed), 0.0)
    batch = make_batch([[2, 3]], [0, 10, 0, 0, 0], hindsight_logprob=[-1, -2, -3, -4, -5], success=[1, 1, 0, 0, 0])
    micro = tw.hcapo()(batch) - tw.grpo()(batch)
    assert (micro[2:] < 0).all()
    np.testing.assert_allclose(micro[2:], micro[2], **CLOSE)


def test_hcapo_adds_a_standardised_q_to_its_base():
    batch, options = random_batch(), {"temperature": 2.0, "low": 0.9, "high": 1.1, "discount": 0.5, "smoothing": 0.25}
    statistics = {"group": {"over": "responses"}, "turn": {"over": "responses", "same": "turn"}}
    for compared, how in statistics.items():
        quality = tw.chain(
            tw.outcome_return(),
            tw.weigh_by_hindsight(**options),
            tw.center_by_group(**how),
            tw.scale_by_group_std(**how),
        )(batch)
        for base in (tw.grpo(), tw.rloo()):
            mixed = tw.hcapo(base, weight=0.5, compared=compared, spare=False, **options)(batch)
            np.testing.assert_allclose(mixed, base(batch) + 0.5 * quality, **CLOSE)
        spared = np.where(batch.columns["success"] == 1, np.maximum(quality, 0), quality)
        assert (spared != quality).any()
        credit_R = tw.hcapo(compared=compared, **options)(batch)
        np.testing.assert_allclose(credit_R, tw.grpo()(batch) + spared, **CLOSE)
    np.testing.assert_array_equal(tw.hcapo(weight=0.0)(batch), tw.grpo()(batch))
    assert tw.hcapo(spare=False).needs == ("hindsight_logprob",)


# -- EMPG --------------------------------------------------------------------------------------------------------------

CARD = make_batch([[3]], [0, 0, 1], entropy=[0.2, 0.5, 1.0])  # REINFORCE gives every response 1


def test_empg_card():
    plain = tw.empg(tw.reinforce(), center=False)(CARD)
    np.testing.assert_allclose(plain, [1.528, 1.040, 0.537], atol=5e-4)
    np.testing.assert_allclose(tw.empg(tw.reinforce())(CARD), [0.493, 0.005, -0.498], atol=5e-4)


def test_empg_without_bonus_and_centring_is_aem_over_the_batch():
    batch = random_batch()
    for base in (tw.grpo(), tw.reinforce()):
        for temperature in (1.0, -0.5):
            aem = tw.aem(base, scope="batch", min_range=0.0, temperature=temperature)(batch)
            empg = tw.empg(base, temperature=temperature, bonus=0.0, center=False)(batch)
            np.testing.assert_array_equal(empg, aem)
            centred = tw.empg(base, temperature=temperature, bonus=0.0)(batch)
            np.testing.assert_allclose(centred, aem - aem.mean(), **CLOSE)
    aem = tw.aem(min_range=0.0)(batch)
    np.testing.assert_array_equal(tw.empg(scope="group", bonus=0.0, center=False)(batch), aem)


def test_the_bonus_is_the_certainty_of_the_next_response_and_the_last_gets_none():
    entropy = [0.0, 1.0, 0.5, 0.25, 0.75]
    batch = make_batch([[3, 1], [1]], [5, 0, 0, 0, 1], entropy=entropy)
    bonus = tw.add_clarity_bonus(weight=2.0)(batch) - batch.reward_R
    np.testing.assert_allclose(bonus, [2 * np.exp(-1), 2 * np.exp(-0.5), 0, 0, 0], **CLOSE)
    cool = tw.add_clarity_bonus(weight=2.0, temperature=4.0, scope="group")(batch) - batch.reward_R
    np.testing.assert_allclose(cool, [2 * np.exp(-4), 2 * np.exp(-2), 0, 0, 0], **CLOSE)


def test_the_bonus_is_paid_for_failures_too():
    batch = random_batch()
    batch = make_batch(LENGTHS, np.zeros(NUM_RESPONSES), entropy=batch.columns["entropy"])
    ahead = tw.empg(center=False)(batch)
    last = batch.turn_R == batch.trajectories.broadcast(batch.trajectories.lengths) - 1
    assert (ahead[~last] > 0).all()
    np.testing.assert_array_equal(ahead[last], 0.0)
    np.testing.assert_allclose(tw.empg()(batch), ahead - ahead.mean(), **CLOSE)


def test_of_equal_entropies_only_the_bonus_is_left():
    batch = random_batch(entropy=np.full(NUM_RESPONSES, 0.7))
    np.testing.assert_array_equal(tw.empg(bonus=0.0, center=False)(batch), tw.grpo()(batch))
    last = batch.turn_R == batch.trajectories.broadcast(batch.trajectories.lengths) - 1
    np.testing.assert_allclose(tw.empg(center=False)(batch) - tw.grpo()(batch), np.where(last, 0.0, 0.1), **CLOSE)


def test_empg_weighs_entropies_that_hardly_differ_as_aem_would_not():
    batch = random_batch(entropy=np.linspace(0.70, 0.75, NUM_RESPONSES))
    credit_R, base_R = tw.empg(tw.reinforce(), bonus=0.0, center=False)(batch), tw.reinforce()(batch)
    np.testing.assert_allclose(credit_R[0] / base_R[0] / (credit_R[-1] / base_R[-1]), np.e, **CLOSE)
    np.testing.assert_array_equal(tw.aem(tw.reinforce(), scope="batch")(batch), base_R)


def test_each_part_of_empg_can_be_switched_off():
    batch = random_batch()
    np.testing.assert_array_equal(tw.empg(tw.rloo(), temperature=0.0, bonus=0.0, center=False)(batch), tw.rloo()(batch))
    bonus_alone = tw.chain(tw.rloo(), tw.add_clarity_bonus(weight=0.3, temperature=2.0))(batch)
    off = tw.empg(tw.rloo(), temperature=0.0, bonus=0.3, bonus_temperature=2.0, center=False)
    np.testing.assert_array_equal(off(batch), bonus_alone)
    assert tw.empg(tw.rloo(), temperature=0.0, bonus=0.0, center=False).gradient == tw.rloo().gradient
    for options in (
        {"bonus": 0.0, "center": False},
        {"temperature": 0.0, "center": False},
        {"temperature": 0.0, "bonus": 0.0},
    ):
        gradient = tw.empg(tw.rloo(), **options).gradient
        assert gradient is not None
        assert gradient.kind == "biased"


def test_empg_sums_to_zero_over_the_responses_in_scope():
    batch = random_batch()
    np.testing.assert_allclose(tw.empg()(batch).sum(), 0.0, atol=1e-12)
    np.testing.assert_allclose(batch.group_responses.sum(tw.empg(scope="group")(batch)), 0.0, atol=1e-12)
    assert np.abs(batch.group_responses.sum(tw.empg()(batch))).max() > 0.1


# -- options -----------------------------------------------------------------------------------------------------------

CHOICES = """
import turnwise as tw
batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 1]), [0.0], {"entropy": [0.0]})
for make in (
    lambda: tw.gae(unfinished="last"), lambda: tw.hiper(unfinished="next"), lambda: tw.hcapo(compared="turns"),
    lambda: tw.empg(scope="batches")(batch),
):
    try:
        make()
    except tw.ConfigError as error:
        print(error)
"""


def test_every_choice_is_checked_where_no_type_checker_runs():
    # in a process without run-time type checks, which would refuse the value before the library can explain
    done = subprocess.run([sys.executable, "-c", CHOICES], capture_output=True, text=True, check=True)
    starts = [line.split(" is not one of ")[0].split(": ")[-1] for line in done.stdout.splitlines()]
    assert starts == ["unfinished='last'", "unfinished='next'", "compared='turns'", "scope='batches'"]
    assert "Did you mean 'turn'?" in done.stdout


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (tw.gae(), "gae(discount=1.0, decay=0.95, unfinished='zero')"),
        (tw.credit_actions(), "credit_actions(discount=1.0, decay=1.0, standardize=True, unfinished='zero')"),
        (tw.credit_subgoals(), "credit_subgoals(discount=1.0, decay=0.95, standardize=True, unfinished='zero')"),
        (tw.penalize_keeping(), "penalize_keeping(penalty=-0.3)"),
        (tw.spae(), "spae(strength=0.5, threshold=0.9, weight=0.5)"),
        (
            tw.weigh_by_hindsight(),
            "weigh_by_hindsight(temperature=5.0, discount=0.95, low=0.8, high=1.2, smoothing=0.0)",
        ),
        (tw.empg(), "empg(temperature=1.0, bonus=0.1, bonus_temperature=1.0, center=True, scope='batch')"),
    ],
)
def test_defaults_are_the_published_ones(made, name):
    assert made.name == name


def test_hcapo_hands_its_discount_on():
    columns = {"hindsight_logprob": [-1.0, -1.0, -1.0]}
    batch = tw.Batch(tw.Segments([0, 2]), tw.Segments([0, 2, 3]), [0.0, 1.0, 0.0], columns)
    quality = np.array([0.5, 1.0, 0.0])
    expected = (quality - 0.5) / (0.5 + 1e-6)
    np.testing.assert_allclose(tw.hcapo(discount=0.5, spare=False)(batch) - tw.grpo()(batch), expected, rtol=1e-12)


def test_a_temperature_of_zero_is_told_and_not_blamed_on_the_batch():
    batch, _ = tw.Batch.from_arrays(group=[0], trajectory=[0], reward=[1.0], columns={"hindsight_logprob": [-1.0]})
    with pytest.raises(tw.ConfigError, match=r"temperature=0\.0 must be positive"):
        tw.hcapo(temperature=0.0)(batch)
