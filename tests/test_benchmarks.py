"""What the benchmarks count and print, without measuring anything."""

import itertools
import types

import pytest
from benchmarks import credit_scale, engine_vllm, lag_speed
from benchmarks.common import interleaved
from benchmarks.credit_speed import make_rows
from benchmarks.tables import ratios, spread

import turnwise as tw


def test_figures_of_several_rounds_show_their_range():
    assert spread([3.0, 1.0, 2.5]) == "2.50 (1.00 to 3.00)"
    assert spread([1234.4], 0) == "1,234"
    assert ratios((2.0, 9.0), (1.0, 3.0)) == [2.0, 3.0]


def test_calls_take_turns():
    order = []
    measured = interleaved({name: lambda name=name: order.append(name) or len(order) for name in "ab"}, 2)
    assert order == ["a", "b", "a", "b"]
    assert measured["a"].answer == 3
    assert len(measured["b"].wall) == len(measured["b"].own) == 2


def test_with_lag_as_many_steps_count_and_the_run_ends_as_far_ahead_as_it_began(monkeypatch):
    trained = {}

    def train(config, display):
        trained[config.rollout.max_lag] = config.run.steps
        for step in range(config.run.steps):
            display.step(step + 1, config.run.steps, {})

    monkeypatch.setattr(lag_speed, "train", train)
    monkeypatch.setattr(lag_speed.time, "perf_counter", itertools.count().__next__)
    assert [lag_speed.seconds_per_step(lag, 1.0, 10) for lag in (0, 4)] == [(1.0, 1.0, []), (1.0, 1.0, [])]
    assert trained == {0: 10, 4: 18}


def test_the_least_time_per_step_is_that_of_the_slowest_or_of_what_is_computed():
    slow = next(task for task in range(99) if lag_speed.Uneven(task, fast_ms=1.0).seconds > 0.005)
    fast = next(task for task in range(99) if lag_speed.Uneven(task, fast_ms=1.0).seconds < 0.005)
    ones, six = [[lag_speed.Group((fast,)), lag_speed.Group((slow,))]] * 25, lag_speed.TURNS * 0.01
    assert lag_speed.ideal_seconds(ones, 0, 1.0, 9, 2) == pytest.approx(six)
    assert lag_speed.ideal_seconds(ones, 1, 1.0, 99, 2) == pytest.approx(six / 2, rel=0.1)
    assert lag_speed.ideal_seconds(ones, 0, 1.0, 1, 2) == pytest.approx(six * 1.1)  # one waits for the other
    twins = [[lag_speed.Group((slow, slow)), lag_speed.Group((fast, fast))]] * 25
    assert lag_speed.ideal_seconds(twins, 0, 1.0, 99, 2) == pytest.approx(six)
    assert lag_speed.ideal_seconds(ones, 4, 1.0, 9, 2, computes=0.5) == pytest.approx(0.5)
    assert lag_speed.ideal_seconds(ones, 0, 1.0, 9, 2, learning=0.5) == pytest.approx(six + 0.5)
    assert lag_speed.ideal_seconds(ones, 0, 1.0, 9, 2, generates=0.5) == pytest.approx(six + 0.5 * lag_speed.TURNS)


def test_in_the_least_time_a_group_begins_when_the_one_that_it_replaces_was_dropped():
    fast = next(task for task in range(99) if lag_speed.Uneven(task, fast_ms=1.0).seconds < 0.005)
    kept, dropped, once = lag_speed.Group((fast,)), lag_speed.Group((fast,), kept=False), lag_speed.TURNS * 0.001
    for taken, rounds in (([kept, kept], 1), ([kept, dropped, kept], 2), ([dropped, dropped, dropped, kept, kept], 3)):
        assert lag_speed.ideal_seconds([taken] * 25, 0, 1.0, 99, 2) == pytest.approx(rounds * once)
    ahead = lag_speed.ideal_seconds([[kept, dropped, kept]] * 25, 1, 1.0, 99, 2)
    assert ahead == pytest.approx(once)  # the third one has been played ahead


def test_the_groups_of_a_step_are_those_of_its_records():
    rows = {"group": [0, 0, 0, 1, 1], "trajectory": [0, 0, 1, 2, 3], "task": ["7", "7", "7", "9", "9"],
            "success": [True, True, True, False, True]}  # fmt: skip
    assert lag_speed.groups_of(rows, "filter") == [lag_speed.Group((7, 7), False), lag_speed.Group((9, 9), True)]
    assert [each.kept for each in lag_speed.groups_of(rows, "native")] == [True, True]


def test_slow_environments_are_the_same_in_every_run():
    seconds = [[lag_speed.Uneven(task, fast_ms=1.0).seconds for task in range(400)] for _ in range(2)]
    assert seconds[0] == seconds[1]
    assert 400 / 8 * 0.6 < sum(each > 0.005 for each in seconds[0]) < 400 / 8 * 1.4


def test_prompt_tokens_that_vllm_computed_are_those_that_its_cache_did_not_have(monkeypatch):
    text = "\n".join([
        "# TYPE vllm:prefix_cache_queries_total counter",
        'vllm:prefix_cache_queries_total{engine="0",model_name="/tmp/m"} 1000.0',
        'vllm:prefix_cache_queries_created{engine="0",model_name="/tmp/m"} 1.7e+09',
        'vllm:prefix_cache_hits_total{engine="0",model_name="/tmp/m"} 250.0',
    ])  # fmt: skip
    monkeypatch.setattr(engine_vllm.httpx2, "get", lambda url, **_: types.SimpleNamespace(text=text))
    assert engine_vllm.prefilled("http://here") == 750
    monkeypatch.setattr(engine_vllm.httpx2, "get", lambda url, **_: types.SimpleNamespace(text=""))
    with pytest.raises(SystemExit, match="no counters of the prefix cache"):
        engine_vllm.prefilled("http://here")


def test_the_memory_of_credit_leaves_out_its_rows():
    rows = make_rows(41)
    size = sum(array.nbytes for array in (rows["group"], rows["trajectory"], rows["reward"], *rows["columns"].values()))
    batch, order = tw.Batch.from_arrays(**rows)
    made = order.nbytes + sum(column.nbytes for column in (batch.reward_R, *batch.columns.values()))
    assert made <= 2**20 * credit_scale.case("GRPO", 41 * 240)["peak_mib"] < made + 4 * size
