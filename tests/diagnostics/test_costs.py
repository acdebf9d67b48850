"""Times of credit per 1,000 responses, by a clock of our own."""

import pytest

import turnwise as tw
from turnwise.credit.segments import Segments
from turnwise.credit.transform import Transform
from turnwise.lab.diagnostics import paid as costs


def test_times_are_those_of_the_credit_per_thousand_responses(monkeypatch):
    now, order = [100.0], []
    monkeypatch.setattr(costs.time, "perf_counter", lambda: now[0])

    def slow(name: str, seconds: list[float]) -> Transform:
        def update(credit_R, state, batch):
            order.append(name)
            now[0] += seconds.pop(0)
            return credit_R, state

        return Transform(name, update)

    batch = tw.Batch(Segments.from_lengths([4]), Segments.from_lengths([1] * 4), [1.0, 0.0, 0.0, 1.0])
    methods = {"a": slow("a", [0.004, 0.002]), "b": slow("b", [0.008, 0.008])}
    found = costs.time_credit(methods, dict.fromkeys(methods, batch), rounds=2)
    assert found == {"a": pytest.approx([1000, 500]), "b": pytest.approx([2000, 2000])}
    assert order == ["a", "b", "a", "b"]
