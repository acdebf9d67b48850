"""Limits of the credit core's processor time: six to seven times what it takes beside other work on two cores.

An idle machine is faster, see `benchmarks/results/credit-speed.md`; checks of argument types, which tests add, count.
"""

import functools
import time

import pytest
from benchmarks.credit_speed import make_rows

import turnwise as tw

PROMPTS = 128  # times 8 rollouts of 30 turns: 30,720 responses


def best_ms(call, repeats: int = 5) -> float:
    """Best of several runs: the least disturbed one."""
    result = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        result = min(result, time.process_time() - start)
    return 1e3 * result


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


def test_a_batch_takes_at_most_30_ms():
    rows = make_rows(PROMPTS)
    assert best_ms(lambda: tw.Batch.from_arrays(**rows)) <= 30.0


def test_aems_modulation_takes_at_most_4_ms(batch):
    modulate = tw.modulate_by_entropy()
    assert best_ms(lambda: modulate.update(batch.reward_R, None, batch), repeats=15) <= 4.0


def test_returns_gigpo_and_aem_take_at_most_40_ms(batch):
    method = tw.aem(tw.gigpo())
    assert best_ms(lambda: method(batch)) <= 40.0


@pytest.mark.parametrize("make", [tw.aem, lambda: tw.aem(tw.gigpo())], ids=["aem on grpo", "aem on gigpo"])
def test_time_grows_linearly_with_the_responses(make):
    method, small, large = make(), batch_of(PROMPTS), batch_of(4 * PROMPTS)
    # 4 times the responses: 4 times the time, up to the logarithm of a sort and the cache; a quadratic method takes 16
    # times
    assert best_ms(lambda: method(large)) <= 10.0 * best_ms(lambda: method(small))
