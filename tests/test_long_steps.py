"""Steps of many sequences: index and micro-batches in linear time."""

import platform
import time

import numpy as np
import pytest
import torch

from tests import timing
from tests.toys import small_config
from turnwise.credit.segments import Segments
from turnwise.models import policy
from turnwise.models.settings import ModelConfig
from turnwise.objective.tokens import Sequences
from turnwise.train.loop import train


def sequences(count: int, *, seed: int = 0) -> Sequences:
    """Sequences of 2 to 40 tokens, of which all but the first are generated; a trajectory has one to three."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 41, count)
    trajectory = np.repeat(np.arange(count), rng.integers(1, 4, count))[:count]
    generated = [np.arange(1, length) for length in lengths]
    return Sequences(
        [np.zeros(length, dtype=np.int64) for length in lengths],
        generated,
        Segments.from_lengths(lengths - 1),
        trajectory,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_index_of_some_sequences_joins_their_tokens_in_order(seed):
    step = sequences(50, seed=seed)
    chosen = np.random.default_rng(seed).permutation(50)[:17]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in step.generated])])
    expected = [place for each in chosen for place in range(offsets[each], offsets[each + 1])]
    assert step.token_index(chosen).tolist() == expected


def plain_batches(step: Sequences, max_tokens: int, unit: np.ndarray) -> list[list[int]]:
    """Fill each micro-batch with the longest units left, one by one."""
    lengths = [len(ids) for ids in step.token_ids]
    members = {number: np.flatnonzero(unit == number).tolist() for number in np.unique(unit)}
    longest = {number: max(lengths[n] for n in of) for number, of in members.items()}
    batches: list[list[int]] = []
    sizes: list[int] = []
    for number in sorted(members, key=lambda number: -longest[number]):  # sorted() keeps the order of equals
        head = max((lengths[n] for n in batches[-1]), default=0) if batches else 0
        if batches and (len(batches[-1]) + len(members[number])) * head <= max_tokens:
            batches[-1] += members[number]
        else:
            batches.append(list(members[number]))
            sizes.append(longest[number])
    return batches


@pytest.mark.parametrize("max_tokens", [1, 60, 500, 10**6])
@pytest.mark.parametrize("whole", [False, True])
def test_micro_batches_are_those_filled_one_by_one(max_tokens, whole):
    step = sequences(60)
    unit_N = np.arange(60) // 2 if whole else None
    got = [batch.tolist() for batch in step.micro_batches(max_tokens, unit_N=unit_N)]
    unit = step.trajectory // 2 if whole else np.arange(60)
    expected = plain_batches(step, max_tokens, unit)
    assert got == [sorted(batch) if whole else batch for batch in expected]


def seconds(count: int) -> float:
    step = sequences(count)
    begun = time.process_time()
    for indices in step.micro_batches(2048):
        step.token_index(indices)
    return time.process_time() - begun


def test_the_time_to_split_a_step_grows_with_the_number_of_sequences():
    few, many = (min(seconds(count) for _ in range(3)) for count in (8192, 65536))
    assert many < 20 * few, (few, many)  # 8 if linear, 64 if quadratic


@pytest.mark.parametrize(
    ("machine", "supported", "avx512_bf16", "amx", "fast"),
    [
        ("x86_64", True, False, False, False),  # AVX-512 alone: oneDNN says yes, and converts to float32
        ("x86_64", True, True, False, True),
        ("AMD64", True, False, True, True),
        ("x86_64", False, False, False, False),
        ("aarch64", True, False, False, True),
        ("aarch64", False, False, False, False),
    ],
)
def test_bfloat16_is_fast_where_there_are_instructions_for_it(monkeypatch, machine, supported, avx512_bf16, amx, fast):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert policy.has_fast_bf16(torch.device("cpu")) is fast


def test_bfloat16_that_is_said_to_be_fast_is_not_slow_here():
    if not policy.has_fast_bf16(torch.device("cpu")):
        pytest.skip("this processor has no instructions for bfloat16")
    rows, weight = torch.randn(1024, 576), torch.randn(1536, 576)
    half_rows, half_weight = rows.bfloat16(), weight.bfloat16()
    linear = torch.nn.functional.linear
    half, full = (
        min(timing.seconds(lambda given=given: linear(*given)) for _ in range(5))
        for given in ((half_rows, half_weight), (rows, weight))
    )
    assert half < 1.5 * full


@pytest.mark.parametrize("fast", [True, False])
def test_precision_auto_takes_bfloat16_where_it_is_fast_and_a_forced_one_is_said(monkeypatch, tmp_path, fast):
    monkeypatch.setattr(policy, "has_fast_bf16", lambda device: fast)
    cpu = torch.device("cpu")
    assert policy.in_bf16("auto", cpu) is fast
    assert policy.in_bf16("bf16", cpu)
    assert not policy.in_bf16("fp32", cpu)
    assert ("is slow on this cpu" in policy.slow_precision_note("bf16", cpu)) is not fast
    assert policy.slow_precision_note("auto", cpu) == ""
    assert ModelConfig(precision="auto").precision == "auto"
    if not fast:
        folders = [
            train(small_config(tmp_path / p, model={"precision": p}, run={"steps": 1})) for p in ("auto", "fp32")
        ]
        one, other = (next(line for line in each.metrics() if "update/loss" in line) for each in folders)
        assert one["update/loss"] == other["update/loss"]
