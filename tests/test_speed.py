"""Limits of the credit core's processor time, three to four times what it takes, in units of `timing.reference`.

See `benchmarks/results/credit-speed.md` for times; checks of argument types, which tests add, count.
"""

import functools

import pytest
from benchmarks.credit_speed import make_rows

import turnwise as tw
from tests.timing import in_references

PROMPTS = 128  # times 8 rollouts of 30 turns: 30,720 responses


@functools.cache
def batch_of(num_prompts: int) -> tw.Batch:
    """Made once for all tests: a batch is read-only."""
    batch, _ = tw.Batch.from_arrays(**make_rows(num_prompts))
    return batch


@pytest.fixture(scope="module")
def batch():
    return batch_of(PROMPTS)


def test_the_batch_is_as_large_as_announced(batch):
    assert batch.num_responses == 30_720


def test_a_batch_takes_at_most_eight_references():
    rows = make_rows(PROMPTS)
    assert in_references(lambda: tw.Batch.from_arrays(**rows)) <= 8.0


def test_aems_modulation_takes_at_most_one_reference(batch):
    modulate = tw.modulate_by_entropy()
    assert in_references(lambda: modulate.update(batch.reward_R, None, batch), repeats=15) <= 1.0


def test_returns_gigpo_and_aem_take_at_most_ten_references(batch):
    method = tw.aem(tw.gigpo())
    assert in_references(lambda: method(batch)) <= 10.0


@pytest.mark.parametrize("make", [tw.aem, lambda: tw.aem(tw.gigpo())], ids=["aem on grpo", "aem on gigpo"])
def test_time_grows_linearly_with_the_responses(make):
    method, small, large = make(), batch_of(PROMPTS), batch_of(4 * PROMPTS)
    # 4 times the responses: 4 times the time, up to the logarithm of a sort and the cache; a quadratic method takes 16
    # times
    assert in_references(lambda: method(large)) <= 10.0 * in_references(lambda: method(small))
