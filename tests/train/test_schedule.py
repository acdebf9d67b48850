"""The learning rate of a step."""

import pytest

from turnwise.config import parse_config
from turnwise.train.step import learning_rate


def test_the_learning_rate_rises_over_the_warm_up_and_stays() -> None:
    config = parse_config({"run": {"steps": 10}, "update": {"learning_rate": 1e-3, "warmup_steps": 4}})
    assert [learning_rate(config, step) for step in (1, 2, 4, 5, 10)] == pytest.approx([2.5e-4, 5e-4, 1e-3, 1e-3, 1e-3])


def test_with_decay_it_falls_linearly_and_the_last_step_still_counts() -> None:
    config = parse_config({"run": {"steps": 4}, "update": {"learning_rate": 1.0, "warmup_steps": 0, "decay": True}})
    assert [learning_rate(config, step) for step in (1, 2, 3, 4)] == pytest.approx([1.0, 0.75, 0.5, 0.25])
