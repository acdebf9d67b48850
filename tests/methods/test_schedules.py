"""Options that follow the steps of a run: IGPO's curriculum, D3S's share, CANON's mixture."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError
from turnwise.credit.methods.canon import own_weight, own_weight_reversed
from turnwise.credit.transforms.schedule import linear, scheduled


def batch(rewards, **columns) -> tw.Batch:
    num = len(rewards)
    return tw.Batch(tw.Segments([0, num]), tw.Segments(range(num + 1)), rewards, columns)


def steps(method: tw.Transform, given: tw.Batch, num: int) -> list[np.ndarray]:
    """Credit of the same batch in each of the first steps."""
    assert method.init is not None
    state, credits = method.init(), []
    for _ in range(num):
        credit_R, state = method.update(given.reward_R, state, given)
        credits.append(credit_R)
    return credits


def test_igpos_curriculum_moves_weight_from_gains_to_outcomes():
    given, _ = tw.Batch.from_arrays(
        group=["q"] * 4,
        trajectory=["a", "a", "b", "b"],
        reward=[0, 1, 0, 0],
        columns={"gold_logprob": [-2.0, -1.0, -2.0, -3.0]},
    )
    got = steps(tw.igpo(normalise="joint", curriculum=2), given, 4)
    for step, (gain, outcome) in enumerate([(1, 0.5), (0.75, 0.75), (0.5, 1), (0.5, 1)]):
        paid = np.array([gain, outcome, -gain, 0])
        z = (paid - paid.mean()) / (paid.std() + 1e-6)
        np.testing.assert_allclose(got[step], [z[0] + z[1], z[1], z[2] + z[3], z[3]])
    assert tw.igpo().init is None
    with pytest.raises(ConfigError, match=r"curriculum=3 has no effect with normalise='separate'"):
        tw.igpo(curriculum=3)


def test_d3s_keeps_more_from_step_to_step():
    given = batch([3.0, 0.5, -0.5, -3.0], success=[1.0, 0, 0, 0])
    got = steps(tw.d3s(tw.reinforce(), kept_frac=1.0, first_frac=0.5, steps=2), given, 4)
    assert [np.count_nonzero(credit_R) for credit_R in got] == [2, 3, 4, 4]
    with pytest.raises(ConfigError, match="give both or none"):
        tw.d3s(kept_frac=0.5, steps=3)


def test_canons_cosine_is_that_of_the_release():
    # the card's checks, and both ends of the warm-up
    np.testing.assert_allclose([own_weight(step) for step in (0, 29, 50, 70)], [0.02, 0.6, 0.3, 0.6])
    np.testing.assert_allclose(
        [own_weight_reversed(step) for step in (0, 29, 30, 50)], [29 / 30, 0, 0, 0.3], atol=1e-15
    )
    given = batch([1.0, 0, 0, 0], length=[1.0, 2, 3, 4])
    inter, intra = np.array([1, 0, -0.5, -0.5]), np.array([0.5, -0.5, 0, 0])  # the card's TEST
    cosine, reverse = (tw.canon(metric="length", schedule=name) for name in ("cosine", "cosine_reversed"))
    for method, own in ((cosine, own_weight), (reverse, own_weight_reversed)):
        got = steps(method, given, 32)
        for step in (0, 29, 31):
            np.testing.assert_allclose(got[step], (1 - own(step)) * inter + own(step) * intra, atol=1e-15)
    first = steps(tw.canon(metric="length", schedule="cosine", convention="release"), given, 1)[0]
    np.testing.assert_allclose(first, 0.96 * inter + 0.04 * intra, atol=1e-15)  # its first step has the number 1


@pytest.mark.parametrize(("schedule", "mu"), [("accuracy", 0.25), ("accuracy_reversed", 0.75)])
def test_canons_accuracy_is_the_mean_return_of_the_batch(schedule, mu):
    given = batch([1.0, 0, 0, 0], length=[1.0, 2, 3, 4])
    got = tw.canon(metric="length", schedule=schedule)(given)
    np.testing.assert_allclose(got, tw.canon(metric="length", mu=mu)(given))
    with pytest.raises(BatchError, match=r"mean return is 2.5, expected 0 to 1 .*success_reward=1"):
        tw.canon(metric="length", schedule=schedule)(batch([10.0, 0, 0, 0], length=[1.0, 2, 3, 4]))
    with pytest.raises(ConfigError, match=r"mu=0.5 is for schedule='none'"):
        tw.canon(mu=0.5, schedule=schedule)


def test_a_schedule_counts_batches_and_refuses_state():
    assert [linear(step, 1.0, 0.0, 4) for step in (0, 1, 4, 9)] == [1.0, 0.75, 0.0, 0.0]
    assert linear(0, 1.0, 0.5, 0) == 0.5
    with pytest.raises(ConfigError, match="only transforms without state"):
        scheduled(lambda step: tw.v05(), name="mine")


def test_a_schedule_that_ends_in_a_selection_over_the_batch_says_so():
    assert tw.d3s(kept_frac=0.5, first_frac=1.0, steps=10).across_groups
    assert tw.d3s(kept_frac=1.0, first_frac=0.5, steps=10).across_groups
