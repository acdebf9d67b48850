"""The figures of docs/results/scale.md, derived a second time by hand."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "docs"))
from generator import scale


def test_the_published_step_is_the_anchor(monkeypatch):
    monkeypatch.setattr(scale, "ANCHOR_GPUS", 1)  # as if the step had been measured on one GPU
    best, bound = scale.hours("1.5 B", 1)
    assert best == bound == pytest.approx(150 * 362.78 / 3600, rel=1e-6)


def test_a_rollout_takes_no_less_than_it_was_measured_to_take():
    best, bound = scale.hours("1.5 B", 64)
    assert best == pytest.approx(150 * 362.78 / 32 / 3600, rel=1e-6)
    assert bound == pytest.approx(150 * (221.97 + (24.99 + 25.96 + 89.86) / 32) / 3600, rel=1e-6)


def test_memory_by_hand():
    training, engine = scale.memory("7 B", 8)
    assert training == pytest.approx(7.61 * (4 + 4 + 8 + 2) / 8)
    assert engine == pytest.approx(7.61 * 2 / 8)
    assert scale.memory("7 B", 64)[1] == engine, "no more than 8 GPUs share an engine's weights"


def test_tokens_and_throughputs_by_hand():
    assert scale.most_tokens() == (16 * 8 * 50, 16 * 8 * 50 * 2560)
    assert scale.throughput("32 B") == pytest.approx(540)
    assert scale.throughput("7 B") == pytest.approx(1562 * 8.03 / 7.61)


def test_the_gpus_at_which_credit_shows():
    cases = [{"method": "GRPO + AEM", "responses": 1000, "batch_ms": 1.5, "method_ms": 0.5}]  # 2 us per response
    a_second = 540 / 2560  # responses of one GPU
    assert scale.gpus_where_credit_shows(cases, "32 B") == pytest.approx(0.01 / (2e-6 * a_second))


def test_every_simulated_size_is_on_the_page():
    cases = json.loads(scale.MEASURED.read_text())["cases"]
    page = scale.PAGE.read_text()
    assert {case["responses"] for case in cases} == {10_000, 100_000, 1_000_000, 10_000_000}
    assert all(f"| {case['responses']:,} |" in page for case in cases)
    assert page == scale.pages()[scale.PAGE]
