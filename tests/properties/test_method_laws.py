"""Laws of every method, over ragged batches. An example is drawn once for all methods; a failure names its method."""

import dataclasses
from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import ALL, EPISODE, KEEP_LONE, UNMODULATED, held_to
from tests.properties.strategies import Rows, advantage, interleaved, rows

import turnwise as tw

unchecked = pytest.mark.usefixtures("array_types_unchecked")
"""For laws over all methods but one, `test_array_types_hold_in_every_method`."""


def equal(actual, desired, name):
    np.testing.assert_array_equal(actual, desired, err_msg=name)


def close(actual, desired, name, table):
    """Equal up to rounding.

    Sums of the drawn rewards are exact; means and standard deviations of the same values in two orders differ by a few
    units in the last place, which R - mean(R) cancels down to and a division by std + eps magnifies. 1e-9 leaves room
    for that and is far below any effect of a wrong formula. Standardised credit is of order 1, centred credit of the
    order of the rewards.
    """
    atol = 1e-9 * max(1.0, float(np.abs(table.reward).max()))
    np.testing.assert_allclose(actual, desired, rtol=1e-9, atol=atol, err_msg=name)


@unchecked
@given(drawn=interleaved())
def test_credit_follows_its_row_wherever_the_row_lies(drawn):
    table, order = drawn
    moved = table.take(order)
    for name in held_to("rows may come in any order"):
        close(moved.credit(ALL[name]), table.credit(ALL[name])[order], name, table)


@unchecked
@given(table=rows())
def test_labels_are_only_names(table):
    names: dict[str, Hashable] = {"hall": 1, "kitchen": "hall", "1": None, "01": 2.5}

    class Renamed(Rows):
        STATES = tuple(names[state] for state in Rows.STATES)

    renamed = Renamed(**{field.name: getattr(table, field.name) for field in dataclasses.fields(table)}).replace(
        group=tuple({"g0": 7, "g1": "7", "g2": ("g", 2)}[label] for label in table.group),
        trajectory=tuple(f"{label:03d}" for label in table.trajectory),
        state_key=tuple(names[key] for key in table.state_key),
    )
    for name in ALL:
        equal(renamed.credit(ALL[name]), table.credit(ALL[name]), name)


ACROSS = {name for name, method in ALL.items() if method.across_groups}


@unchecked
@given(table=rows())
def test_groups_do_not_see_each_other(table):
    for group in sorted(set(table.group)):
        inside = np.array([row for row, label in enumerate(table.group) if label == group])
        alone = table.take(inside)
        for name in sorted(ALL.keys() - ACROSS):
            close(alone.credit(ALL[name]), table.credit(ALL[name])[inside], name, table)


@pytest.mark.parametrize("name", sorted(ACROSS))
def test_a_method_that_says_so_does_see_the_other_groups(name):
    single_turns, long = (0, 1, 2, 3, 4, 5, 0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3) * 2
    changes = []
    for seed, trajectory in ((3, single_turns), (6, long)):  # turning points need turns to come
        generator, half = np.random.default_rng(seed), len(trajectory) // 2
        table = Rows.of(
            group=("a",) * half + ("b",) * half,
            trajectory=trajectory,
            reward=generator.normal(size=2 * half) + np.repeat([0.0, 1.0], half),
            entropy=generator.uniform(0, 1, 2 * half) + np.repeat([0.0, 2.0], half),
            penalty=np.zeros(2 * half),
            state_key=("s",) * 2 * half,
        )
        for part in (np.arange(half), np.arange(half, 2 * half)):  # some see only the groups before them
            alone = table.take(part).credit(ALL[name])
            changes.append(np.abs(alone - table.credit(ALL[name])[part]).max())
    assert max(changes) > 1e-3, "this one should see the whole batch"


@settings(max_examples=max(1, settings.default.max_examples // 5))  # the checks take most of the time
@given(table=rows())
def test_array_types_hold_in_every_method(table):
    batch, _ = table.built
    for name, method in ALL.items():
        assert advantage(method, batch).shape == (batch.num_responses,), name


@unchecked
@given(table=rows())
def test_inputs_are_read_only_and_unchanged_and_not_handed_out(table):
    batch, _ = table.built
    arrays = {"reward": batch.reward_R, **batch.columns}
    arrays |= {"groups": batch.groups.offsets, "trajectories": batch.trajectories.offsets}
    before = {key: array.copy() for key, array in arrays.items()}
    for name, method in ALL.items():
        credit_R = advantage(method, batch)
        for key, array in arrays.items():
            assert not np.shares_memory(array, credit_R), f"{name} hands out the batch's own {key}"
    for key, array in arrays.items():
        assert not array.flags.writeable, f"{key} can be written to"
        equal(array, before[key], key)


@given(table=rows())
def test_a_batch_keeps_its_numbers_when_the_caller_changes_theirs(table):
    batch, order = table.built
    reward, entropy = table.reward[order].copy(), table.entropy[order].copy()
    table.reward[:] = -1.0
    table.entropy[:] = -1.0
    equal(batch.reward_R, reward, "reward")
    equal(batch.columns["entropy"], entropy, "entropy")


@unchecked
@given(table=rows(), shifts=st.lists(st.integers(-16, 16), min_size=3, max_size=3))
def test_a_bonus_for_every_trajectory_of_a_prompt_changes_nothing(table, shifts):
    scale = float(np.abs(table.reward).max()) or 1.0
    bonus = np.array([shifts[int(label[1:])] for label in table.group]) * scale / 8
    shifted = table.replace(reward=table.reward + bonus * table.is_last())
    for name in sorted(EPISODE):
        close(shifted.credit(ALL[name]), table.credit(ALL[name]), name, shifted)


@given(table=rows(), shift=st.integers(-16, 16), scale=st.booleans())
def test_a_bonus_at_the_end_changes_nothing_for_gigpo_without_discount(table, shift, scale):
    method = tw.gigpo(discount=1.0, scale=scale)
    size = float(np.abs(table.reward).max()) or 1.0
    shifted = table.replace(reward=table.reward + shift * size / 8 * table.is_last())
    close(shifted.credit(method), table.credit(method), method.name, shifted)


HOMOGENEOUS = [
    *("reinforce", "reinforce(discount=0.5)", "rloo", "rloo(verl)", "dr_grpo", "gigpo(scale=False)"),
    *("gigpo(verl-agent, scale=False)", "aem(reinforce)", "aem(rloo)", "aem(dr_grpo)"),
]


@given(table=rows(), power=st.integers(-10, 10))
def test_centred_credit_grows_with_the_rewards(table, power):
    scaled = table.replace(reward=table.reward * 2.0**power)
    for name in HOMOGENEOUS:  # a power of two changes no digit, so equality is exact
        equal(scaled.credit(ALL[name]), table.credit(ALL[name]) * 2.0**power, name)


@given(table=rows(), power=st.integers(-10, 10), over=st.sampled_from(["trajectories", "responses"]))
def test_standardised_credit_forgets_the_scale_up_to_eps(table, power, over):
    def method(eps):
        return tw.chain(tw.outcome_return(), tw.center_by_group(over=over), tw.scale_by_group_std(over=over, eps=eps))

    scaled = table.replace(reward=table.reward * 2.0**power)
    equal(scaled.credit(method(1e-6 * 2.0**power)), table.credit(method(1e-6)), over)


@given(table=rows())
def test_credit_sums_to_zero_over_the_trajectories_of_a_group(table):
    batch, _ = table.built
    for name in sorted(UNMODULATED):
        per_trajectory = batch.trajectories.first(advantage(ALL[name], batch))
        close(batch.groups.sum(per_trajectory), 0.0, name, table)


@given(table=rows(min_trajectories=2))
def test_credit_sums_to_zero_over_responses_where_responses_are_counted(table):
    batch, _ = table.built
    for name in ("grpo(verl-agent)",):
        close(batch.group_responses.sum(advantage(ALL[name], batch)), 0.0, name, table)


@given(table=rows())
def test_every_turn_of_a_trajectory_gets_the_same_credit_where_trajectories_are_compared(table):
    batch, _ = table.built
    for name in sorted(UNMODULATED):
        credit_R = advantage(ALL[name], batch)
        equal(credit_R, batch.trajectories.broadcast(batch.trajectories.first(credit_R)), name)


@unchecked
@given(table=rows(max_trajectories=1))
def test_lone_members_get_nothing(table):
    alone = table.replace(state_key=tuple(range(len(table))))  # alone in its state, too
    for name in held_to("a lone trajectory gets nothing"):
        equal(alone.credit(ALL[name]), 0.0, name)


@given(table=rows(max_trajectories=1))
def test_lone_trajectories_keep_their_return_where_the_convention_says_so(table):
    batch, _ = table.built
    for name in ("canon(release)", "grpo(verl)", "rloo(verl)"):
        equal(advantage(ALL[name], batch), tw.outcome_return()(batch), name)


KEEP_OTHERWISE = {
    "hgpo(verl-agent)",  # compares within states
    "ngrpo(release)",  # keeps the success
    "reinforce_pp(verl)",  # standardises over the batch
    "reinforce_pp_baseline(verl)",
    "tree_grpo(release)",  # keeps the return twice: in its tree and in its group
}


@unchecked
@given(table=rows(max_trajectories=1, max_turns=1))
def test_lone_responses_keep_their_return_where_the_convention_says_so(table):
    batch, _ = table.built
    for name in sorted(KEEP_LONE - KEEP_OTHERWISE):
        equal(advantage(ALL[name], batch), tw.outcome_return()(batch), name)


@unchecked
@given(table=rows(), tenths=st.integers(-30, 30))
def test_a_group_that_always_earns_the_same_gets_exactly_nothing(table, tenths):
    # 0.1, 0.7, ... have no exact binary form: a sloppy mean leaves 1e-17, which a division by eps blows up
    constant = table.replace(reward=np.where(table.is_last(), tenths / 10, 0.0))
    for name in held_to("equal returns get nothing"):
        equal(constant.credit(ALL[name]), 0.0, name)
