"""GAE, EGAE, SPO and HiPER: credit from values, by hand and against each other."""

import numpy as np
import pytest
from tests.methods.valued import CLOSE, NUM_RESPONSES, make_batch, random_batch

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.analysis.groups import enumerate_groups


def last_of(batch: tw.Batch) -> np.ndarray:
    """Mask of each trajectory's last response."""
    return np.isin(np.arange(batch.num_responses), batch.trajectories.offsets[1:] - 1)


# -- GAE ---------------------------------------------------------------------------------------------------------------


def test_gae_sums_discounted_surprises():
    batch = make_batch([[3]], [1, 0, 4], value=[2, 4, 1])
    # surprises at discount 1/2: 1 + 2 - 2, 0 + 1/2 - 4, 4 - 1; each turn away counts a quarter at decay 1/2
    np.testing.assert_array_equal(tw.gae(discount=0.5, decay=0.5)(batch), [1 - 3.5 / 4 + 3 / 16, -3.5 + 3 / 4, 3])


@pytest.mark.parametrize("seed", range(3))
def test_gae_at_decay_1_is_the_return_minus_the_value(seed):
    batch = random_batch(seed)
    np.testing.assert_allclose(tw.gae(decay=1.0)(batch), tw.reinforce()(batch) - batch.columns["value"], **CLOSE)
    for discount in (0.0, 0.9):
        discounted = tw.reinforce(discount=discount)(batch) - batch.columns["value"]
        np.testing.assert_allclose(tw.gae(discount=discount, decay=1.0)(batch), discounted, **CLOSE)
    nothing_known = random_batch(seed, value=np.zeros(NUM_RESPONSES))
    np.testing.assert_allclose(tw.gae(decay=1.0)(nothing_known), tw.reinforce()(nothing_known), **CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_spo_is_gae_at_decay_0_and_sums_to_the_outcome_minus_the_first_value(seed):
    batch = random_batch(seed)
    np.testing.assert_array_equal(tw.spo()(batch), tw.gae(decay=0.0)(batch))
    turns = batch.trajectories
    surprise = turns.sum(batch.reward_R) - turns.first(batch.columns["value"])
    np.testing.assert_allclose(turns.sum(tw.spo()(batch)), surprise, **CLOSE)


def test_spo_credits_the_change_of_the_chance_of_success():
    batch = make_batch([[3, 1]], [0, 0, 1, 0], value=[1 / 3, 2 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(tw.spo()(batch), [1 / 3, -1 / 3, 2 / 3, -1 / 3], **CLOSE)


@pytest.mark.parametrize("unfinished", ["zero", "repeat", "next"])
def test_of_finished_trajectories_all_rules_say_the_same(unfinished):
    batch = random_batch(finished=np.ones(NUM_RESPONSES))
    np.testing.assert_array_equal(tw.gae(unfinished=unfinished)(batch), tw.gae()(batch))
    np.testing.assert_array_equal(tw.egae(decay=0.95)(batch), tw.gae(decay=0.95)(batch))


def test_an_unfinished_trajectory_has_something_to_expect():
    columns = {"value": [2, 4, 3], "finished": [0, 0, 1], "value_next": [99, 5, 99]}
    batch = make_batch([[2, 1]], [1, 0, 1], **columns)
    expected = {"zero": [-1, -4, -2], "repeat": [3, 0, -2], "next": [4, 1, -2]}  # return + value after it - value
    for unfinished, credit_R in expected.items():
        np.testing.assert_array_equal(tw.gae(decay=1.0, unfinished=unfinished)(batch), credit_R)
    np.testing.assert_array_equal(tw.egae(decay=1.0)(batch), expected["repeat"])


def test_egae_ends_an_unpaid_unfinished_trajectory_with_no_surprise():
    batch = random_batch(finished=np.zeros(NUM_RESPONSES))
    credit_R = tw.egae(decay=0.9)(batch)
    np.testing.assert_allclose(credit_R[last_of(batch)], batch.reward_R[last_of(batch)], **CLOSE)
    shorter = tw.egae(decay=0.9, discount=0.5)(batch)[last_of(batch)]  # 0.5 V - V is left
    left = (batch.reward_R - 0.5 * batch.columns["value"])[last_of(batch)]
    np.testing.assert_allclose(shorter, left, **CLOSE)


def test_columns_are_needed_where_an_option_reads_them():
    assert tw.gae().needs == ("value",)
    assert tw.gae(unfinished="repeat").needs == ("value", "finished")
    assert tw.gae(unfinished="next").needs == ("value", "finished", "value_next")
    values = {"value_low", "value_high", "value_switch"}
    assert set(tw.hiper().needs) == values | {"switch", "subgoal_changed", "part_T"}
    assert set(tw.hiper(unfinished="repeat").needs) == {*tw.hiper().needs, "finished"}
    with pytest.raises(BatchError, match=r"^egae needs column 'finished', which this batch does not have"):
        tw.egae(decay=0.9)(make_batch([[1]], [0], value=[0]))


@pytest.mark.parametrize(
    "make", [tw.sum_td_errors, tw.credit_actions, tw.credit_subgoals, tw.credit_switches, tw.credit_parts]
)
def test_an_unknown_rule_for_the_unfinished_is_refused(make):
    with pytest.raises(ConfigError, match=r"unfinished='repeated' is not one of .* Did you mean 'repeat'\?"):
        make(unfinished="repeated")


def test_the_declared_gradient_follows_the_options():
    kinds = {
        "unbiased": [tw.gae(), tw.gae(decay=0.0), tw.gae(unfinished="next"), tw.spo()],
        "biased": [tw.gae(discount=0.9), tw.gae(unfinished="repeat"), tw.egae(decay=0.9), tw.hiper(), tw.tp_grpo()],
    }
    for kind, methods in kinds.items():
        for method in methods:
            assert method.gradient is not None
            assert method.gradient.kind == kind, method.name
    assert str(tw.gae().gradient) == "unbiased with exact values"


def bias(method, world, **columns) -> float:
    """Largest difference of a method's expected update, over all pairs of trajectories, from the gradient."""
    updates = []
    for groups in enumerate_groups(world, 2):
        changed = {name: change(groups.batch, groups.batch.columns) for name, change in columns.items()}
        known = groups.batch
        batch = tw.Batch(known.groups, known.trajectories, known.reward_R, known.columns | changed, known.tokens)
        weighted = groups.batch.group_responses.broadcast(groups.chance_G) * method(batch) / 2
        updates.append(weighted @ groups.score_R)
    return float(np.abs(np.mean(updates, axis=0) - world.gradient).max())


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95, 1.0])
def test_with_exact_values_gae_is_unbiased_at_every_decay_and_with_wrong_ones_at_1_only(decay):
    def wrong(batch, columns):
        return columns["value"] + 0.3 * np.cos(3.0 * columns["state_key"])  # a function of the state

    for world in (PROBLEMS["sparse"], PROBLEMS["dense"]):
        assert bias(tw.gae(decay=decay), world) < 1e-12
        off = bias(tw.gae(decay=decay), world, value=wrong)
        assert off < 1e-12 if decay == 1.0 else off > 1e-3


# -- HiPER -------------------------------------------------------------------------------------------------------------

RAW = {"standardize": False}


@pytest.mark.parametrize("unfinished", ["zero", "repeat"])
def test_a_trajectory_that_never_switches_is_one_segment(unfinished):
    batch = random_batch(switch=np.zeros(NUM_RESPONSES))
    as_value = random_batch(value=batch.columns["value_low"])
    actions = tw.credit_actions(discount=0.9, decay=0.8, unfinished=unfinished, **RAW)(batch)
    np.testing.assert_allclose(
        actions, tw.sum_td_errors(discount=0.9, decay=0.8, unfinished=unfinished)(as_value), **CLOSE
    )
    subgoals = tw.credit_subgoals(**RAW)(batch)
    outcome = batch.trajectories.sum(batch.reward_R) - batch.trajectories.first(batch.columns["value_high"])
    np.testing.assert_allclose(batch.trajectories.first(subgoals), outcome, **CLOSE)
    np.testing.assert_array_equal(subgoals[batch.turn_R > 0], 0.0)


@pytest.mark.parametrize("unfinished", ["zero", "repeat"])
def test_where_every_turn_switches_actions_and_subgoals_are_credited_at_the_same_grain(unfinished):
    values = random_batch().columns["value"]
    batch = random_batch(switch=np.ones(NUM_RESPONSES), value_low=values, value_high=values, value_switch=values)
    options = {"discount": 0.9, "unfinished": unfinished}
    surprise = tw.sum_td_errors(decay=0.0, **options)(batch)
    np.testing.assert_allclose(tw.credit_actions(decay=0.7, **options, **RAW)(batch), surprise, **CLOSE)
    np.testing.assert_allclose(tw.credit_switches(**options, **RAW)(batch), surprise, **CLOSE)
    summed = tw.sum_td_errors(decay=0.7, **options)(batch)
    np.testing.assert_allclose(tw.credit_subgoals(decay=0.7, **options, **RAW)(batch), summed, **CLOSE)


def test_time_is_counted_in_turns_and_surprises_of_subgoals_in_segments():
    batch = make_batch([[4]], [0, 8, 0, 4], switch=[0, 0, 0, 1], value_high=[1, 99, 99, 2])
    # first segment, three turns: 8 / 2 + 2 / 8 - 1; second: 4 - 2, which is three turns away and one segment
    expected = [4 + 0.25 - 1 + 0.5**3 * 0.5 * 2, 0, 0, 2]
    np.testing.assert_array_equal(tw.credit_subgoals(discount=0.5, decay=0.5, **RAW)(batch), expected)


def test_the_first_turn_begins_a_segment_whatever_it_says():
    kept, switched = np.array(random_batch().columns["switch"]), np.array(random_batch().columns["switch"])
    first = random_batch().trajectories.offsets[:-1]
    kept[first], switched[first] = 0.0, 1.0
    for method in (tw.credit_actions(), tw.credit_subgoals(), tw.credit_switches()):
        np.testing.assert_array_equal(method(random_batch(switch=kept)), method(random_batch(switch=switched)))


def test_streams_are_standardised_over_the_responses_that_have_them():
    batch = random_batch()
    begins = (batch.turn_R == 0) | (batch.columns["switch"] > 0)
    for block, counted in (
        (tw.credit_actions, np.ones(NUM_RESPONSES, dtype=bool)),
        (tw.credit_subgoals, begins),
        (tw.credit_switches, np.ones(NUM_RESPONSES, dtype=bool)),
    ):
        raw, stream = block(**RAW)(batch), block()(batch)
        np.testing.assert_allclose(stream[counted].mean(), 0.0, atol=1e-12)
        np.testing.assert_allclose(stream[counted].std(), 1.0, atol=1e-6)
        np.testing.assert_allclose(np.diff(stream[counted]), np.diff(raw[counted]) / raw[counted].std(), rtol=1e-6)
        np.testing.assert_array_equal(stream[~counted], 0.0)


def plan_batch(parts, **columns) -> tw.Batch:
    """A random batch with tokens; `parts[response]` lists the part of each token."""
    batch = random_batch()
    tokens = tw.Segments.from_lengths([len(own) for own in parts])
    made = {"subgoal_changed": np.zeros(NUM_RESPONSES), "part_T": np.concatenate(parts)}
    return tw.Batch(batch.groups, batch.trajectories, batch.reward_R, {**batch.columns, **made, **columns}, tokens)


PARTS = [([0, 1, 2, 2], [0, 2], [1, 2], [2])[n % 4] for n in range(NUM_RESPONSES)]
FREE = {"keep_penalty": 0.0, "change_penalty": 0.0}


@pytest.mark.parametrize("unfinished", ["zero", "repeat"])
def test_hiper_gives_each_part_its_own_advantage(unfinished):
    batch, options = plan_batch(PARTS), {"discount": 0.9, "unfinished": unfinished}
    begins = (batch.turn_R == 0) | (batch.columns["switch"] > 0)
    streams = [
        tw.credit_switches(**options, **RAW)(batch),
        tw.credit_subgoals(decay=0.6, **options, **RAW)(batch),
        tw.credit_actions(decay=0.7, **options, **RAW)(batch),
    ]
    decays = {"action_decay": 0.7, "subgoal_decay": 0.6}
    raw = tw.hiper(**decays, **options, **RAW, **FREE).trace(batch)[0].advantage_T(batch.tokens)
    expected = np.concatenate([[streams[part][n] for part in own] for n, own in enumerate(PARTS)])
    np.testing.assert_allclose(raw, expected, **CLOSE)
    whole = tw.hiper(**decays, **options, **FREE).trace(batch)[0].advantage_T(batch.tokens)
    for part in (0, 1, 2):
        own = [n for n, tokens in enumerate(PARTS) if part in tokens and (part != 1 or begins[n])]
        z = (streams[part] - streams[part][own].mean()) / streams[part][own].std()
        where = [n in own for n, tokens in enumerate(PARTS) for _ in tokens] & (batch.columns["part_T"] == part)
        np.testing.assert_allclose(whole[where], z[batch.tokens.ids[where]], rtol=1e-6, atol=1e-6)
    kept = (batch.columns["part_T"] == 1) & ~begins[batch.tokens.ids]
    assert kept.any()
    np.testing.assert_array_equal(whole[kept], 0.0)


def test_a_response_without_an_action_adds_the_actions_advantage_to_its_parts():
    """The second response keeps its subgoal, whose tokens have that of the action alone."""
    values = {"value_low": [1, 1], "value_high": [2, 9], "value_switch": [0, 0], "switch": [1, 0]}
    tokens = tw.Segments.from_lengths([3, 3])
    columns = {name: np.array(column, dtype=float) for name, column in values.items()}
    columns["part_T"] = np.array([3.0, 4, 2, 3, 4, 2])
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0.0, 4.0], columns, tokens)
    trace, _ = tw.credit_parts(standardize=False).trace(batch)  # what is left to get is 4 at both
    np.testing.assert_allclose(trace.advantage_T(tokens), [4 + 3, 2 + 3, 3, 4 + 3, 3, 3], **CLOSE)
    z = tw.credit_parts().trace(batch)[0].advantage_T(tokens)
    np.testing.assert_allclose(z, 0.0, atol=1e-12)  # two equal actions and decisions, one subgoal


def test_hiper_tells_its_critic_what_to_learn():
    batch = plan_batch(PARTS)
    begins = (batch.turn_R == 0) | (batch.columns["switch"] > 0)
    targets = tw.hiper(**FREE).trace(batch)[0].targets
    low = tw.credit_actions(**RAW)(batch) + batch.columns["value_low"]
    np.testing.assert_allclose(targets["value_low"], low, **CLOSE)
    high = tw.credit_subgoals(**RAW)(batch) + batch.columns["value_high"]
    np.testing.assert_allclose(targets["value_high"][begins], high[begins], **CLOSE)
    assert np.isnan(targets["value_high"][~begins]).all()
    other = plan_batch(PARTS, value_switch=np.zeros(NUM_RESPONSES))  # a return, which does not depend on the value
    again = tw.hiper(**FREE).trace(other)[0].targets["value_switch"]
    np.testing.assert_allclose(targets["value_switch"], again, **CLOSE)
    assert tw.hiper().across_groups
    assert not tw.hiper(standardize=False).across_groups


def test_a_changed_subgoal_is_fined_where_it_is_kept():
    batch = make_batch([[2]], [1, 2], subgoal_changed=[0, 1])
    np.testing.assert_allclose(tw.penalize_changing()(batch), [1, 1.7], **CLOSE)


def test_keeping_costs_its_share_of_the_turns():
    batch = make_batch([[4, 1, 1]], [0, 0, 0, 10, 1, 2], switch=[1, 0, 1, 0, 0, 1])
    # -0.3 * 2 / 4 on two turns; nothing on a switch, and nothing on a trajectory of one turn, which had no choice
    np.testing.assert_allclose(tw.penalize_keeping()(batch), [0, -0.075, 0, 9.925, 1, 2], **CLOSE)
    np.testing.assert_allclose(tw.penalize_keeping(penalty=-3.5)(batch)[:4], [0, -0.875, 0, 9.125], **CLOSE)


def test_a_switch_that_depends_on_the_response_biases_what_is_bootstrapped_at_it():
    """A segment ends because the next response says so: the value of its state, before the response, is another."""
    world, actions = PROBLEMS["dense"], tw.credit_actions(standardize=False)
    values = {name: lambda batch, columns: columns["value"] for name in ("value_low", "value_high")}

    def on_the_response(batch, columns):
        return moves(batch, columns) > 0

    assert bias(actions, world, **values) < 1e-12  # there a segment begins where the place has changed: known before
    assert bias(actions, world, **values, switch=on_the_response) > 1e-3


def moves(batch: tw.Batch, columns) -> np.ndarray:
    """Whether a response moves on, from the places: it is followed by another one."""
    place = columns["state_key"].astype(float)
    return batch.trajectories.following(place, end=batch.trajectories.last(place)) != place


def test_aepo_weighs_each_token_of_a_base_that_tells_tokens_apart():
    row = {"reward": 1.0, "value_T": [0.5, 0.25, 0.0], "entropy_T": [1.0, 2.0, 3.0]}
    batch = tw.Batch.from_trajectories([[[row]]])
    ppo = tw.ppo(standardize=False, decay=1.0)
    base, weighted = (method.trace(batch)[0] for method in (ppo, tw.aepo(ppo)))
    assert batch.tokens is not None
    np.testing.assert_allclose(base.advantage_T(batch.tokens), [0.5, 0.75, 1.0], **CLOSE)
    np.testing.assert_allclose(weighted.advantage_T(batch.tokens), [0.5 * 0.8, 0.75, 1.0 * 1.2], **CLOSE)
