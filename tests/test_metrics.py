"""What a log says of credit, in the trainer and in adapters."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.metrics import adapter_metrics, credit_metrics, is_apart

COLUMNS = {
    "entropy": [0.5, 1.0, 2.0],
    "logprob_T": [-1.0, -2.0, -1.0, -3.0],
    "behavior_logprob_T": [-1.0, -1.5, -1.0, -3.0],
    "entropy_T": [0.5, 1.0, 1.0, 2.0],
}


def batch(*names: str, tokens: bool = True) -> tw.Batch:
    segments = tw.Segments.from_lengths([1, 2, 1]) if tokens else None
    columns = {name: COLUMNS[name] for name in names}
    groups, trajectories = tw.Segments.from_lengths([2]), tw.Segments.from_lengths([2, 1])
    return tw.Batch(groups, trajectories, [0.0, 1.0, 0.0], columns, segments)


def test_numbers_by_hand():
    given = batch("entropy", "logprob_T", "behavior_logprob_T", "entropy_T")
    trace, _ = tw.aem(tw.grpo()).trace(given)
    metrics = credit_metrics(given, trace)
    assert metrics["entropy"] == pytest.approx(4.5 / 4)
    assert metrics["mismatch_mean"] == pytest.approx(0.125)
    assert metrics["mismatch_max"] == 0.5
    assert metrics["signal_frac"] == 1.0
    assert metrics["positive_frac"] == pytest.approx(2 / 3)
    assert metrics["alpha_min"] < 1 < metrics["alpha_max"]
    assert metrics["advantage_abs"] == pytest.approx(np.abs(trace.advantage_R).mean())


def test_adapters_use_the_trainers_names():
    given = batch("entropy", "logprob_T", "behavior_logprob_T")
    trace, _ = tw.aem(tw.grpo()).trace(given)
    own, theirs = credit_metrics(given, trace), adapter_metrics(given, trace)
    assert {f"credit/{name}": value for name, value in own.items()}.items() <= theirs.items()
    assert theirs["credit/turns"] == 1.5
    assert theirs["credit/advantage_turn_1"] == trace.advantage_R[1]
    assert set(theirs) - {f"credit/{name}" for name in own} == {
        "credit/turns",
        "credit/advantage_turn_0",
        "credit/advantage_turn_1",
    }


def test_an_entropy_per_response_counts_by_its_tokens():
    given = batch("entropy")
    assert credit_metrics(given, tw.grpo().trace(given)[0])["entropy"] == pytest.approx((0.5 + 2 * 1.0 + 2.0) / 4)
    bare = batch("entropy", tokens=False)
    assert credit_metrics(bare, tw.grpo().trace(bare)[0])["entropy"] == pytest.approx(3.5 / 3)


def test_what_is_not_known_is_left_out():
    given = batch()
    metrics = credit_metrics(given, tw.grpo().trace(given)[0])
    assert not {"entropy", "mismatch_mean", "mismatch_max"} & set(metrics)


def test_returns_are_equal_up_to_rounding_whatever_their_size():
    assert not is_apart(3e9, 3e9 * (1 - 1e-12))
    assert is_apart(1e-12, 0.0)
