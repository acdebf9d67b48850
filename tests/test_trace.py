"""What blocks report of the way from reward to advantage."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace, Traced, report_mix, tracing
from turnwise.credit.transforms import add_penalty, scale_by_group_std

BATCH = tw.Batch.from_trajectories(
    [
        [
            [{"reward": 0.0, "entropy": 0.2, "penalty": 0.0}, {"reward": 1.0, "entropy": 0.9, "penalty": -0.1}],
            [{"reward": 0.0, "entropy": 0.4, "penalty": -0.1}, {"reward": 0.0, "entropy": 0.3, "penalty": 0.0}],
        ],
        [
            [{"reward": 0.0, "entropy": 0.5, "penalty": 0.0}],
            [{"reward": 1.0, "entropy": 0.1, "penalty": 0.0}],
        ],
    ]
)


def test_a_trace_has_base_coefficient_and_result_of_each_block_that_asks():
    method = tw.chain(tw.aem(tw.grpo()), add_penalty())
    trace, _ = method.trace(BATCH)
    alpha_R = tw.entropy_coefficient(BATCH)
    np.testing.assert_array_equal(trace.advantage_R, method(BATCH))
    np.testing.assert_array_equal(trace.base_R, tw.grpo()(BATCH))
    np.testing.assert_array_equal(trace.coefficient_R, alpha_R)
    assert [traced.name for traced in trace.blocks] == ["modulate_by_entropy", "add_penalty"]
    modulated, punished = trace.blocks
    np.testing.assert_array_equal(modulated.after_R, tw.grpo()(BATCH) * alpha_R)
    np.testing.assert_array_equal(punished.before_R, modulated.after_R)
    np.testing.assert_array_equal(punished.coefficient_R, 1.0)


def test_a_masked_response_keeps_its_base_and_its_coefficient():
    """The report showed base 0 for them, since it divided the advantage by alpha."""
    method = tw.aem(tw.grpo(), keep="positive")
    trace, _ = method.trace(BATCH)
    masked = trace.advantage_R == 0
    assert masked.any()
    np.testing.assert_array_equal(trace.base_R, tw.grpo()(BATCH))
    np.testing.assert_array_equal(trace.coefficient_R, tw.entropy_coefficient(BATCH))
    assert (trace.base_R[masked] != 0).all()


def test_a_mix_reports_the_coefficient_of_its_sum():
    """It was recorded with coefficient 1 when AEM was one of its parts."""
    both = tw.mix(tw.grpo(), tw.aem(tw.rloo()), weights=[0.5, 2.0])
    trace, _ = both.trace(BATCH)
    base_R = 0.5 * tw.grpo()(BATCH) + 2.0 * tw.rloo()(BATCH)
    np.testing.assert_allclose(trace.base_R, base_R)
    np.testing.assert_allclose(trace.base_R * trace.coefficient_R, both(BATCH))
    (mixed,) = trace.blocks
    assert [part.name for part in mixed.parts] == ["modulate_by_entropy"]
    np.testing.assert_array_equal(mixed.parts[0].coefficient_R, tw.entropy_coefficient(BATCH))


def test_without_a_block_that_asks_the_base_is_the_advantage():
    trace, _ = tw.chain(tw.grpo(), scale_by_group_std()).trace(BATCH)
    assert trace.blocks == ()
    np.testing.assert_array_equal(trace.base_R, trace.advantage_R)
    np.testing.assert_array_equal(trace.coefficient_R, 1.0)


def test_a_method_with_state_is_traced_with_it():
    method = tw.aem(tw.v05())
    batch = tw.Batch(
        BATCH.groups,
        BATCH.trajectories,
        BATCH.reward_R,
        {**BATCH.columns, "task": list("aaaabb"), "success": [0, 0, 0, 0, 0, 1]},
    )
    first, state = method.trace(batch)
    again, _ = method.trace(batch, state)
    np.testing.assert_array_equal(first.coefficient_R, again.coefficient_R)
    assert state is not None


def test_blocks_of_one_own_may_ask():
    @tw.block(coefficient=True)
    def halve(credit_R, batch):
        return np.full(batch.num_responses, 0.5)

    trace, _ = tw.chain(tw.grpo(), halve(), halve()).trace(BATCH)
    np.testing.assert_array_equal(trace.coefficient_R, 0.25)
    np.testing.assert_array_equal(trace.advantage_R, 0.25 * tw.grpo()(BATCH))


def test_columns_are_what_a_record_keeps():
    trace, _ = tw.chain(tw.aem(tw.grpo()), add_penalty()).trace(BATCH)
    assert list(trace.columns) == [
        "base",
        "alpha",
        "advantage",
        "trace.0.modulate_by_entropy",
        "trace.0.modulate_by_entropy.coefficient",
        "trace.1.add_penalty",
    ]
    np.testing.assert_array_equal(trace.columns["trace.1.add_penalty"], trace.advantage_R)


def test_columns_say_which_blocks_are_parts_of_a_mix():
    inner = tw.mix(tw.grpo(), tw.aem(tw.rloo()))
    trace, _ = tw.chain(tw.mix(tw.aem(), inner), add_penalty()).trace(BATCH)
    names = [name for name in trace.columns if name.startswith("trace.") and not name.endswith("coefficient")]
    assert names == [
        "trace.0.0.modulate_by_entropy",
        "trace.0.1.0.modulate_by_entropy",
        "trace.0.1.mix",
        "trace.0.mix",
        "trace.1.add_penalty",
    ]


def test_an_error_leaves_no_collection_open():
    with pytest.raises(tw.BatchError, match="needs column 'entropy'"):
        tw.aem().trace(tw.Batch(BATCH.groups, BATCH.trajectories, BATCH.reward_R))
    assert tw.aem()(BATCH).shape == (6,)


def test_the_rate_and_the_tokens_of_a_part_of_a_mix_count():
    two, tokens = np.ones(2), Segments.from_lengths([1, 2])
    parts = [
        (weight, two, [Traced("x", two, two, two, rate=rate, within_T=np.array([1.0, 2.0, 3.0]))])
        for weight, rate in ((0.5, 0.5), (3.0, 0.4))
    ]
    with tracing() as found:
        report_mix("mix", parts, 3.5 * two, tokens)
    trace = Trace(3.5 * two, tuple(found))
    assert trace.rate == pytest.approx(0.2)
    assert trace.within_T(tokens).tolist() == [3.5, 7.0, 10.5]


def test_a_weight_of_tokens_scales_what_earlier_blocks_say_of_tokens():
    two, tokens = np.ones(2), Segments.from_lengths([1, 2])
    first = Traced("x", two, two, two, within_T=np.array([1.0, 2.0, 3.0]))
    second = Traced("y", two, two, two, scale_T=np.array([0.0, 2.0, 3.0]))
    assert Trace(two, (first, second)).within_T(tokens).tolist() == [0.0, 4.0, 9.0]
