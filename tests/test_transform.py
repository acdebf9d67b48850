"""Transforms and their composition: names, needs, state, and what they say when something is wrong."""

import copy
import inspect
import json
import pickle

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError


def make_batch(reward=(1.0, 0.0, 4.0), **columns) -> tw.Batch:
    """Two one-turn trajectories of one prompt, and a lone one of another."""
    return tw.Batch(tw.Segments([0, 2, 3]), tw.Segments([0, 1, 2, 3]), reward, columns)


@tw.block()
def double(credit_R, batch, *, times: int = 2):
    """Multiply."""
    return credit_R * times


@tw.block(needs=("entropy",), needs_option="same")
def keep(credit_R, batch, *, same: str | None = None):
    """Change nothing."""
    return credit_R * 1.0


def subtract_running_mean() -> tw.Transform:
    """Reward minus the mean of all rewards of earlier batches: the smallest transform with state."""

    def update(credit_R, state, batch):
        count, total = state
        mean = total / count if count else 0.0
        return credit_R - mean, (count + batch.num_responses, total + float(credit_R.sum()))

    return tw.Transform("subtract_running_mean()", update, init=lambda: (0, 0.0))


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_is_a_constructor_named_after_its_options():
    assert double().name == "double(times=2)"
    assert repr(double(times=3)) == "double(times=3)"
    np.testing.assert_array_equal(double(times=3)(make_batch()), [3, 0, 12])
    np.testing.assert_array_equal(double.function(np.ones(3), make_batch(), times=5), 5)  # pyright: ignore


def test_a_block_shows_its_options_only():
    assert list(inspect.signature(double).parameters) == ["times"]
    assert double.__doc__ == "Multiply."


@pytest.mark.parametrize("wrong", [{"time": 3}, {"credit_R": 1}])
def test_an_unknown_option_fails_when_the_block_is_made(wrong):
    with pytest.raises(ConfigError, match=r"double\(\) has no option"):
        double(**wrong)


@pytest.mark.parametrize("wrong", [-0.1, 1.1])
def test_a_factor_a_turn_outside_its_range_fails_when_the_block_is_made(wrong):
    with pytest.raises(ConfigError, match=r"discounted_return: discount=.* must lie in \[0, 1\]"):
        tw.discounted_return(discount=wrong)
    with pytest.raises(ConfigError, match="decay"):
        tw.sum_td_errors(decay=wrong)


def test_a_block_needs_its_columns_and_the_one_that_an_option_names():
    assert keep().needs == ("entropy",)
    assert keep(same="state_key").needs == ("entropy", "state_key")
    assert keep(same="turn").needs == ("entropy",), "every batch has turns"


def test_the_needs_of_a_block_may_follow_its_options():
    for block in (tw.center_by_group, tw.scale_by_group_std):
        assert block(over="tokens").needs == ("length",)
        assert block(over="responses").needs == ()
        assert block(over="tokens", same="role").needs == ("length", "role")


# -- chain -------------------------------------------------------------------------------------------------------------


def test_a_chain_applies_its_parts_in_order():
    batch = make_batch()
    centre_then_double = tw.chain(tw.center_by_group(), double())
    np.testing.assert_array_equal(centre_then_double(batch), [1, -1, 0])
    np.testing.assert_array_equal(tw.chain(double(), tw.subtract_leave_one_out())(batch), [2, -2, 0])


def test_a_chain_joins_needs_once_and_in_order():
    chain = tw.chain(keep(same="role"), tw.add_penalty(), keep(), tw.modulate_by_entropy())
    assert chain.needs == ("entropy", "role", "penalty")
    assert tw.mix(keep(), tw.add_penalty()).needs == ("entropy", "penalty")


@pytest.mark.parametrize(
    ("compose", "complaint"),
    [
        (lambda: tw.chain(), r"chain\(\) needs at least one transform"),
        (lambda: tw.mix(), "0 transforms and 0 weights"),
        (lambda: tw.mix(double(), weights=(1, 2)), "1 transforms and 2 weights; give one weight per transform"),
    ],
)
def test_an_empty_or_uneven_composition_is_refused(compose, complaint):
    with pytest.raises(ConfigError, match=complaint):
        compose()


def broken(result, name="broken") -> tw.Transform:
    return tw.Transform(name, lambda credit_R, state, batch: (result(credit_R), state))


def test_a_chain_names_the_step_that_broke_the_credit():
    with pytest.raises(
        BatchError, match=r"broken in chain\(double\(times=2\), broken\) returned shape \(2,\), expected \(3,\)"
    ):
        tw.chain(double(), broken(lambda credit_R: credit_R[:2]))(make_batch())
    with pytest.raises(
        BatchError, match=r"the credit that broken in my method returned\[1\] is nan \(group 0, trajectory 1, turn 0\)"
    ):
        tw.chain(broken(lambda credit_R: np.where(credit_R == 0, np.nan, credit_R)), double(), name="my method")(
            make_batch()
        )


def test_a_mix_names_the_part_that_broke_the_credit():
    with pytest.raises(BatchError, match=r"the credit that broken in both returned\[2\] is inf"):
        tw.mix(double(), broken(lambda credit_R: np.where(credit_R == 4, np.inf, 0.0)), name="both")(make_batch())


def test_a_lone_transform_is_checked_too():
    with pytest.raises(BatchError, match=r"broken returned shape \(\), expected \(3,\)"):
        broken(lambda credit_R: np.zeros(()))(make_batch())
    with pytest.raises(BatchError, match=r"the credit that broken returned\[0\] is nan"):
        tw.chain(broken(lambda credit_R: credit_R * np.nan), name="broken")(make_batch())


def test_a_mix_weighs_its_parts_and_names_itself():
    mix = tw.mix(double(), double(times=3), weights=(1.0, -0.5))
    np.testing.assert_array_equal(mix(make_batch()), [0.5, 0, 2])
    assert mix.name == "mix(double(times=2), double(times=3), weights=[1.0, -0.5])"
    np.testing.assert_array_equal(tw.mix(double(), double())(make_batch()), [4, 0, 16])


def test_a_missing_column_names_the_block_the_column_and_what_there_is():
    complaint = r"^aem needs column 'entropy', .* it has \['entropi'\]. Did you mean 'entropi'"
    with pytest.raises(BatchError, match=complaint):
        tw.aem()(make_batch(entropi=[0.1, 0.2, 0.3]))
    with pytest.raises(
        BatchError, match=r"add_penalty needs column 'penalty', which this batch does not have; it has \[\]"
    ):
        tw.add_penalty()(make_batch())
    added = r"^gigpo needs column 'state_key'.* Add columns=\{'state_key': ...\} to the batch \(identifies the state"
    for method in (tw.gigpo(), tw.gigpo().trace):  # the block that misses it, center_by_group, says nothing to a caller
        with pytest.raises(BatchError, match=added):
            method(make_batch())
    with pytest.raises(BatchError, match="center_by_group needs column 'state_key'"):
        tw.chain(tw.outcome_return(), tw.center_by_group(over="responses", same="state_key"))(make_batch())


def test_a_block_needs_no_brackets():
    @tw.block
    def halve(credit_R, batch, *, by: float = 2.0):
        """Divide."""
        return credit_R / by

    assert halve(by=4.0).name == "halve(by=4.0)"
    np.testing.assert_array_equal(tw.chain(halve(), name="x")(make_batch()), make_batch().reward_R / 2)
    assert halve.__doc__ == "Divide."


# -- state -------------------------------------------------------------------------------------------------------------


def run(method: tw.Transform, batches, state=None, roundtrip=lambda state: state) -> list[np.ndarray]:
    """Credit of each batch in turn, the state carried from one to the next."""
    state = method.init() if state is None and method.init else state
    result = []
    for batch in batches:
        credit_R, state = method.update(batch.reward_R, roundtrip(state), batch)
        result.append(credit_R)
    return result


BATCHES = [make_batch((1.0, 0.0, 5.0), entropy=[0.1, 0.5, 0.9]), make_batch((4.0, 2.0, 3.0), entropy=[0.9, 0.5, 0.1])]


def test_a_transform_with_state_refuses_a_plain_call():
    for method in (
        subtract_running_mean(),
        tw.chain(double(), subtract_running_mean()),
        tw.aem(subtract_running_mean()),
    ):
        with pytest.raises(ConfigError, match=r"keeps state; call method.update\(batch.reward_R, state, batch\)"):
            method(BATCHES[0])


def test_a_chain_carries_the_state_of_its_parts():
    first, second = run(tw.chain(double(), subtract_running_mean()), BATCHES)
    np.testing.assert_array_equal(first, [2, 0, 10])
    np.testing.assert_array_equal(second, [8 - 4, 4 - 4, 6 - 4])  # the doubled first batch has mean 4


def test_a_mix_carries_the_state_of_its_parts_each_its_own():
    mix = tw.mix(subtract_running_mean(), tw.chain(double(), subtract_running_mean()), weights=(1.0, 10.0))
    _, second = run(mix, BATCHES)
    np.testing.assert_array_equal(second, [(4 - 2) + 10 * (8 - 4), (2 - 2) + 10 * (4 - 4), (3 - 2) + 10 * (6 - 4)])


def test_aem_carries_the_state_of_its_base():
    _, base = run(subtract_running_mean(), BATCHES)
    _, modulated = run(tw.aem(subtract_running_mean()), BATCHES)
    alpha_R = tw.entropy_coefficient(BATCHES[1])
    np.testing.assert_array_equal(modulated, base * alpha_R)
    assert (alpha_R != 1).any(), "this test needs a coefficient to see"


def test_nested_state_starts_by_itself_and_needs_no_init_call():
    method = tw.chain(double(), subtract_running_mean())
    np.testing.assert_array_equal(method.update(BATCHES[0].reward_R, None, BATCHES[0])[0], [2, 0, 10])


@pytest.mark.parametrize(
    "roundtrip",
    [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state)), lambda state: json.loads(json.dumps(state))],
    ids=["copy", "pickle", "json"],
)
@pytest.mark.parametrize(
    "method",
    [
        subtract_running_mean(),
        tw.chain(double(), subtract_running_mean()),
        tw.mix(double(), tw.chain(subtract_running_mean(), double())),
        tw.aem(tw.chain(subtract_running_mean(), subtract_running_mean())),
    ],
    ids=lambda method: method.name[:20],
)
def test_state_survives_a_checkpoint(method, roundtrip):
    for kept, restored in zip(run(method, BATCHES), run(method, BATCHES, roundtrip=roundtrip), strict=True):
        np.testing.assert_array_equal(kept, restored)


def test_update_does_not_change_the_state_it_was_given():
    method = tw.chain(double(), subtract_running_mean())
    assert method.init is not None
    state = method.init()
    before = copy.deepcopy(state)
    method.update(BATCHES[0].reward_R, state, BATCHES[0])
    assert state == before


def test_a_state_of_another_method_is_refused():
    method = tw.chain(double(), subtract_running_mean())
    with pytest.raises(ValueError, match="zip"):
        method.update(BATCHES[0].reward_R, (None, (0, 0.0), None), BATCHES[0])


# -- declarations ------------------------------------------------------------------------------------------------------


def test_method_names_what_its_constructor_builds_and_gives_it_the_card():
    gradient = tw.Gradient("unbiased")

    @tw.method("A title", arxiv="1234.56789", stage="modulation", trial={"weight": 2.0})
    def mine(base: tw.Transform | None = None, *, weight: float, much: bool = False) -> tw.Transform:
        return tw.chain(base or double(), keep(), gradient=gradient)

    made = mine(weight=3.0)
    assert (made.name, made.gradient, made.needs) == ("mine(weight=3.0, much=False)", gradient, ("entropy",))
    assert made.card == tw.card_of(mine) == tw.Card("A title", "1234.56789", "modulation", "exact", {"weight": 2.0})
    assert mine(keep(), weight=3.0).name == "mine(keep(same=None), weight=3.0, much=False)"
    assert tw.trial(mine).name == "mine(weight=2.0, much=False)"


def test_a_transform_says_whether_it_looks_across_groups():
    assert not tw.aem(tw.gigpo()).across_groups
    assert tw.aem(scope="batch").across_groups
    assert tw.center_by_group(scope="batch").across_groups
    assert tw.chain(tw.grpo(), tw.mix(tw.center_by_group(), tw.center_by_group(scope="batch"))).across_groups


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (tw.Gradient("unbiased"), "unbiased"),
        (tw.Gradient("unbiased", reason="with exact values"), "unbiased with exact values"),
        (tw.Gradient("scaled", factor=lambda size: 1 / size, formula="1 / K"), "scaled by 1 / K"),
        (tw.Gradient("biased", reason="it divides"), "biased: it divides"),
    ],
)
def test_a_gradient_says_what_it_is(gradient, text):
    assert str(gradient) == text
