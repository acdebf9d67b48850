"""Columns with a value per token: their names end in `_T`."""

import numpy as np
import pytest

import turnwise as tw

GROUPS, TRAJECTORIES = tw.Segments.from_lengths([2]), tw.Segments.from_lengths([2, 1])
TOKENS = tw.Segments.from_lengths([1, 2, 1])


def made(values, tokens: tw.Segments | None = TOKENS) -> tw.Batch:
    return tw.Batch(GROUPS, TRAJECTORIES, [0.0, 1.0, 0.0], {"logprob_T": values}, tokens)


def test_a_token_column_is_kept_as_it_is_and_cannot_be_written():
    batch = made([-1, -2, -3, -4])
    column = batch.column("logprob_T", needed_by="the test")
    assert column.tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert column.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 0.0


@pytest.mark.parametrize(
    ("values", "tokens", "message"),
    [
        ([-1.0] * 3, TOKENS, r"logprob_T has shape \(3,\), expected \(4,\): one value per token"),
        ([-1.0] * 4, None, "but this batch has no tokens; give their segments"),
        (
            [-1.0, -1.0, np.nan, -1.0],
            TOKENS,
            r"logprob_T\[2\] is nan \(token 1 of the response at group 0, trajectory 0, turn 1\)",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values, tokens, message):
    with pytest.raises(tw.BatchError, match=message) as caught:
        made(values, tokens)
    assert "\n" not in str(caught.value)


def test_rows_in_any_order_bring_their_tokens_along():
    batch, order = tw.Batch.from_arrays(
        group=["b", "a", "b"],
        trajectory=["x", "y", "x"],
        reward=[1.0, 2.0, 3.0],
        columns={"logprob_T": [[-1.0], [-2.0, -2.5], [-3.0]], "entropy": [0.1, 0.2, 0.3]},
    )
    assert order.tolist() == [0, 2, 1]
    assert batch.tokens is not None
    assert batch.tokens.lengths.tolist() == [1, 1, 2]
    assert batch.columns["logprob_T"].tolist() == [-1.0, -3.0, -2.0, -2.5]
    assert batch.columns["entropy"].tolist() == [0.1, 0.3, 0.2]


def test_a_method_may_need_one():
    @tw.block(needs=("logprob_T",))
    def least_likely(credit_R, batch):
        return batch.tokens.min(batch.column("logprob_T", needed_by="least_likely"))

    assert least_likely()(made([-1, -2, -3, -4])).tolist() == [-1.0, -3.0, -4.0]


MISMATCH = {"mismatch": 0.0, "mismatch_min": 0.0, "length": 2}
LENGTHS = {"success": 0.0, "length": 2, "truncated": 0}


def two_tokens(**columns: float) -> tw.Batch:
    """One won response of two tokens, whose values before them are 0.5 and 0.25."""
    given = {"value_T": [[0.5, 0.25]], **{name: [value] for name, value in columns.items()}}
    return tw.Batch.from_arrays(group=[0], trajectory=[0], reward=[1.0], columns=given)[0]


@pytest.mark.parametrize(
    ("then", "columns", "expected"),
    [
        (tw.grpo_n, {}, [0.0, 0.0]),
        (lambda base: tw.grpo_n(base, sign="positive"), {}, [-0.25, 0.75]),
        (lambda base: tw.chain(base, tw.reject_mismatch()), MISMATCH | {"mismatch": 0.1}, [0.0, 0.0]),
        (lambda base: tw.chain(base, tw.reject_mismatch()), MISMATCH, [-0.25, 0.75]),
        (lambda base: tw.adora(base, weight=0.5), LENGTHS, [-0.125, 0.375]),
        (lambda base: tw.adora(base, weight=0.5, convention="vl"), LENGTHS, [-0.25, 0.75]),
        (lambda base: tw.chain(base, tw.weigh_by_success_rate(beta=0.0)), {"success": 1.0}, [-0.25, 0.75]),
        (lambda base: tw.chain(base, tw.weigh_by_success_rate(beta=2.0)), {"success": 0.0}, [-0.25, 0.75]),
        (lambda base: tw.chain(base, tw.mask_by_drift(keep="all")), {"entropy": 1.0}, [-0.25, 0.75]),
    ],
)
def test_what_weighs_or_rejects_a_response_does_so_to_its_tokens(then, columns, expected):
    """By hand: A_T = value of the next token, or the reward, minus the token's value; the response has their mean."""
    method = then(tw.ppo(decay=0.0, standardize=False))
    batch = two_tokens(**columns)
    trace, _ = method.trace(batch)
    assert batch.tokens is not None
    np.testing.assert_allclose(trace.advantage_T(batch.tokens), expected, atol=1e-12)
    np.testing.assert_allclose(trace.advantage_R, [np.mean(expected)], atol=1e-12)
    np.testing.assert_array_equal(trace.coefficient_R, 1.0)
    assert set(trace.columns) == {"base", "alpha", "advantage"}, "no further column of the record"


def test_a_coefficient_and_the_weight_of_a_mix_scale_tokens_as_they_scale_their_response():
    """By hand: A_T = value of the next token, or the reward, minus the token's value."""
    batch, _ = tw.Batch.from_arrays(
        group=[0, 0],
        trajectory=[0, 1],
        reward=[1.0, 0.0],
        columns={"value_T": [[0.5, 0.25], [0.5, 0.0]], "entropy": [0.1, 0.9]},
    )
    assert batch.tokens is not None
    base_T, ppo = np.array([-0.25, 0.75, -0.5, 0.0]), tw.ppo(decay=0.0, standardize=False)
    trace, _ = tw.aem(ppo).trace(batch)
    assert abs(trace.coefficient_R[0] - trace.coefficient_R[1]) > 0.1
    np.testing.assert_allclose(trace.advantage_T(batch.tokens), base_T * np.repeat(trace.coefficient_R, 2), atol=1e-12)
    trace, _ = tw.mix(ppo, weights=[-0.5]).trace(batch)
    np.testing.assert_allclose(trace.advantage_T(batch.tokens), -0.5 * base_T, atol=1e-12)


def test_rows_of_tokens_that_disagree_are_named():
    columns = {"logprob_T": [[-1.0], [-2.0, -3.0]], "value_T": [[0.1, 0.2], [0.3]]}
    with pytest.raises(tw.BatchError, match=r"value_T\[0\] has 2 values, but the response has 1 tokens"):
        tw.Batch.from_arrays(group=[0, 0], trajectory=[1, 0], reward=[1.0, 0.0], columns=columns)
    columns = {"logprob_T": [[-1.0], [-2.0, -3.0]]}
    with pytest.raises(tw.BatchError, match=r"logprob_T\[0\] has 1 values, but the response has 2 tokens"):
        tw.Batch.from_arrays(group=[0, 0], trajectory=[0, 1], reward=[1.0, 0.0], columns=columns, num_tokens=[2, 1])
    response = {"reward": 1.0, "logprob_T": [-0.5], "value_T": [0.1, 0.2]}
    with pytest.raises(tw.BatchError, match=r"value_T\[0\] has 2 values, but the response has 1 tokens"):
        tw.Batch.from_trajectories([[[response]]])
    with pytest.raises(tw.BatchError, match=r"logprob_T\[0\] is a float, expected a list"):
        tw.Batch.from_trajectories([[[{"reward": 1.0, "logprob_T": -0.5}]]])
