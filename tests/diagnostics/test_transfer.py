"""Transfer: what the gradient of one group's credit has in common with the true gradients of other groups."""

import numpy as np
import pytest
from tests.diagnostics.test_fidelity_gradient import drawn

import turnwise as tw
from turnwise.lab.diagnostics.fidelity import jackknife_interval
from turnwise.lab.diagnostics.fidelity_gradient import PERFECT, compare_gradients
from turnwise.lab.diagnostics.transfer import measure_transfer

COMMON = np.array([0.6, 0.8, 0.0, 0.0])


def made(num_groups: int, seed: int, *, noise: float = 1.0, common: float = 1.0):
    """True gradients of groups, common direction and differences between tasks, and a noisy version of them."""
    draw = np.random.default_rng(seed)
    true_GS = common * COMMON + 0.5 * draw.normal(size=(num_groups, 4))
    return true_GS, true_GS + noise * draw.normal(size=(num_groups, 4))


def exact(noise: float) -> float:
    """<h, h*> across groups is 1; |h|^2 is 1, plus 4 coordinates of both variances."""
    return 1 / np.sqrt(1 + 4 * (0.25 + noise**2))


def test_it_is_the_cosine_to_what_tasks_have_in_common():
    true_GS, noisy_GS = made(20_000, 0)
    square_G = (true_GS**2).sum(1)
    found = measure_transfer({"noisy": noisy_GS, "tripled": 3 * noisy_GS, "against": -true_GS}, true_GS, square_G, "p")
    assert found
    assert found.by_method["noisy"].value == pytest.approx(exact(1.0), abs=0.01)
    assert found.by_method["tripled"].value == pytest.approx(found.by_method["noisy"].value)
    assert found.by_method["p"].value == pytest.approx(exact(0.0), abs=0.01)
    assert found.by_method["against"].value == pytest.approx(-found.by_method["p"].value)
    assert found.above_first["p"].value == pytest.approx(exact(0.0) - exact(1.0), abs=0.02)


def test_what_credit_and_truth_share_by_chance_does_not_count():
    """The credit follows the differences between tasks, which no other task gains from, twice as much."""
    true_GS, _ = made(20_000, 1)
    odd_GS = 2 * true_GS - COMMON
    found = measure_transfer({"odd": odd_GS}, true_GS, (true_GS**2).sum(1), PERFECT)
    assert found
    inner = (odd_GS * true_GS).sum() / np.sqrt((odd_GS**2).sum() * (true_GS**2).sum())
    assert inner > 0.9, "the fidelity of the gradient does not see it"
    assert found.by_method["odd"].value == pytest.approx(1 / np.sqrt(1 + 4), abs=0.02)
    assert found.by_method[PERFECT].value == pytest.approx(1 / np.sqrt(1 + 1), abs=0.02)


def test_without_a_common_direction_there_is_none():
    true_GS = np.concatenate([np.eye(4), -np.eye(4)])
    assert measure_transfer({"it": true_GS}, true_GS, np.ones(8), PERFECT) is None


def test_intervals_cover_the_exact_cosine():
    """Differences, in which the size of what is common cancels to first order, and values."""
    covered = np.zeros(2)
    for seed in range(200):
        true_GS, noisy_GS = made(30, seed, noise=0.7)
        other_GS = true_GS + 0.3 * np.random.default_rng([seed, 1]).normal(size=true_GS.shape)
        found = measure_transfer({"a": noisy_GS, "b": other_GS}, true_GS, (true_GS**2).sum(1), PERFECT)
        assert found
        value, difference = found.by_method["a"], found.above_first["b"]
        covered += [value.low < exact(0.7) < value.high, difference.low < exact(0.3) - exact(0.7) < difference.high]
    assert (covered / 200 > 0.88).all(), covered / 200


def test_gradients_of_drawn_groups_have_the_transfer_of_the_exact_ones():
    batch, exact_R, truth, errors, gradients, _ = drawn("dense", 1500, 4, 0)
    credit = {"perfect": exact_R, "grpo": tw.grpo()(batch)}
    found = compare_gradients(gradients, credit, truth, errors, batch).transfer
    assert found
    ends = batch.group_responses.offsets[1:]
    exact_GS = np.stack([
        exact_R[last - len(one) : last] @ one for last, one in zip(ends.tolist(), gradients, strict=True)
    ])  # fmt: skip
    mean = exact_GS.mean(0)
    wanted = np.sqrt(mean @ mean / (exact_GS**2).sum(1).mean())
    assert found.by_method["perfect"].value == pytest.approx(wanted, abs=0.03)
    assert found.by_method[PERFECT].value == pytest.approx(wanted, abs=0.03), "noise of the estimates is taken out"
    assert 0 < found.by_method["grpo"].value < wanted


def test_the_jackknife_of_transfer_is_the_one_of_plain_loops():
    draw = np.random.default_rng(1)
    true_GS, size = np.array([3.0, 4.0]) + draw.normal(size=(5, 2)), 5
    made_GS = true_GS + 2 * draw.normal(size=(5, 2))

    def across(one, other, left):
        return np.mean([one[k] @ other[m] for k in left for m in left if k != m])

    common, every = across(true_GS, true_GS, range(size)), range(size)

    def of(left):
        return across(made_GS, true_GS, left) / np.sqrt(np.mean([made_GS[k] @ made_GS[k] for k in left]) * common)

    found = measure_transfer({"m": made_GS}, true_GS, (true_GS**2).sum(1), "p").by_method["m"]
    wanted = jackknife_interval(of(every), np.array([of([k for k in every if k != out]) for out in every]), size)
    assert (found.value, found.low, found.high) == pytest.approx((wanted.value, wanted.low, wanted.high))
    true_GS = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.1], [-0.9, 0.0]])
    assert measure_transfer({"m": true_GS}, true_GS, (true_GS**2).sum(1), "p") is None  # above 0, and not shown
