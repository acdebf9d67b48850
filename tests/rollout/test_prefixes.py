"""Prompts find what they share with others among sorted prefixes, as if compared with each, and in linear time."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rollout.models import GREEDY, generate, make_model

from turnwise.engines import local
from turnwise.engines.local import LocalEngine
from turnwise.engines.prefixes import Prefixes

IDS = st.lists(st.integers(0, 2), max_size=6)


def common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def as_ids(ids: list[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


@given(st.lists(IDS, min_size=1, max_size=8), st.lists(IDS, max_size=4), IDS)
def test_the_longest_prefix_and_its_first_row_are_those_of_a_comparison_with_each(rows, more, prompt):
    prefixes = Prefixes(map(as_ids, rows))
    longest = max(common(row, prompt) for row in rows)
    assert prefixes.longest(as_ids(prompt)) == longest
    first = next(n for n, row in enumerate(rows) if row[:longest] == prompt[:longest])
    assert prefixes.first_row(as_ids(prompt[:longest])) == first
    for ids in more:
        prefixes.add(as_ids(ids))
    assert prefixes.longest(as_ids(prompt)) == max(common(row, prompt) for row in [*rows, *more])


def test_large_ids_keep_their_order():
    prefixes = Prefixes([as_ids([255, 256]), as_ids([256, 1]), as_ids([70000, 2])])
    assert [prefixes.longest(as_ids(ids)) for ids in ([256, 1, 3], [255, 256], [70000], [65536])] == [2, 2, 1, 0]


@pytest.mark.parametrize("held", [0, 5])
def test_conversations_get_the_rows_that_a_comparison_with_each_gives(monkeypatch, held):
    rng = np.random.default_rng(held)
    starts = [rng.integers(0, 23, 12).tolist() for _ in range(4)]
    prompts = {n: starts[n % 4][: 4 + n % 9] + rng.integers(0, 23, 1 + n % 3).tolist() for n in range(40)}
    seats, answers = [], []
    for many in (16, 10**9):
        monkeypatch.setattr(local, "MANY", many)
        engine = LocalEngine(make_model())
        if held:
            generate(engine, {n: prompts[n] for n in range(held)}, GREEDY)
        answers.append(generate(engine, {n: prompts[n] for n in range(held, 40)}, GREEDY))
        seats.append(dict(engine._row_of))
    assert seats[0] == seats[1]
    assert answers[0] == answers[1]


def seconds(count: int, length: int) -> float:
    """Processor time to assign rows to conversations, every eight of which have the same prompt."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 23, (count // 8, length)).repeat(8, axis=0)
    engine = LocalEngine(make_model())
    engine._cache.copy = lambda *_: None  # type: ignore[method-assign]

    requests = [local._Request(n, prompt, GREEDY, None) for n, prompt in enumerate(prompts)]  # type: ignore[arg-type]
    engine._waiting = {request.conversation: request for request in requests}
    begun = time.process_time()
    while engine._waiting:
        rows = np.array(engine._admit(list(engine._waiting.values())))
        engine._length[rows] = engine._start[rows]
    return time.process_time() - begun


def test_the_time_to_seat_conversations_grows_with_their_number():
    few, many = (min(seconds(count, 200) for _ in range(3)) for count in (512, 4096))
    assert many < 32 * few, (few, many)  # 8 if linear, 64 if each is compared with each; a busy machine's caches cost 2
