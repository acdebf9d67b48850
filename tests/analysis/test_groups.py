"""Every group of a problem: none left out, none weighed wrongly, and none that sees another."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.analysis.groups import enumerate_groups, multisets

EXACT = {"rtol": 1e-10, "atol": 1e-12}  # the same sum in another order
SPARSE, UNEVEN = PROBLEMS["sparse"], PROBLEMS["uneven"]


@pytest.mark.parametrize(("num", "size"), [(3, 1), (3, 2), (4, 3), (2, 5)])
def test_multisets_are_those_of_a_plain_count(num, size):
    member, ways = multisets(num, size)
    assert len(member) == math.comb(num + size - 1, size)
    counted: dict[tuple, int] = {}
    for drawn in itertools.product(range(num), repeat=size):
        key = tuple(sorted(drawn))
        counted[key] = counted.get(key, 0) + 1
    assert {tuple(m): w for m, w in zip(member.tolist(), ways, strict=True)} == counted


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
def test_the_chances_of_all_groups_sum_to_one(problem, ordered):
    for groups in enumerate_groups(problem, 2, ordered):
        np.testing.assert_allclose(groups.chance_G.sum(), 1.0, **EXACT)
        assert (groups.batch.groups.lengths == 2).all()


@pytest.mark.parametrize("method", [tw.grpo(), tw.gigpo(), tw.aem()], ids=["grpo", "gigpo", "aem"])
def test_multisets_give_what_all_orders_give(method):
    for problem in (SPARSE, UNEVEN):
        for ordered, unordered in zip(enumerate_groups(problem, 3, True), enumerate_groups(problem, 3), strict=True):
            first, second = ordered.updates(method), unordered.updates(method)
            np.testing.assert_allclose(ordered.chance_G @ first, unordered.chance_G @ second, **EXACT)
            np.testing.assert_allclose(ordered.chance_G @ first**2, unordered.chance_G @ second**2, **EXACT)


@pytest.mark.parametrize("method", [tw.rloo(), tw.gigpo(), tw.aem()], ids=["rloo", "gigpo", "aem"])
def test_groups_in_batches_of_their_own_give_what_one_batch_gives(method):
    """For a method that does not look across groups; telling it apart must not change it."""
    apart = dataclasses.replace(method, across_groups=True)
    for groups in enumerate_groups(UNEVEN, 3):
        np.testing.assert_allclose(groups.updates(apart), groups.updates(method), **EXACT)


def test_a_method_that_looks_across_groups_sees_one_at_a_time():
    def update(credit_R, state, batch):
        assert batch.num_groups == 1
        assert batch.tokens is not None
        return credit_R - credit_R.mean(), state

    groups = enumerate_groups(UNEVEN, 2)[0]
    groups.updates(tw.Transform("center_batch", update, across_groups=True))


def running(seen: list) -> tw.Transform:
    """A method whose credit is how many batches it has seen."""

    def update(credit_R, state, batch):
        seen.append(state)
        return np.full_like(credit_R, state), state + 1

    return tw.Transform("count", update, init=lambda: 0)


def test_a_method_with_state_meets_every_group_in_the_same_state():
    groups = enumerate_groups(UNEVEN, 2)[0]
    seen: list[int] = []
    groups.updates(running(seen))
    assert seen == [0] * groups.batch.num_groups
    seen.clear()
    groups.updates(running(seen), history=3)
    assert seen == [0, 1, 2] + [3] * groups.batch.num_groups


def test_ranks_order_each_group_by_return_and_equals_in_the_order_drawn():
    for groups in enumerate_groups(PROBLEMS["dense"], 3, True):
        batch = groups.batch
        rank = batch.trajectories.first(batch.columns["rank"]).reshape(-1, 3)
        total = batch.trajectories.sum(batch.reward_R).reshape(-1, 3)
        np.testing.assert_array_equal(np.sort(rank, axis=1), np.tile([0, 1, 2], (len(rank), 1)))
        for i, j in itertools.combinations(range(3), 2):
            equal = np.isclose(total[:, i], total[:, j])
            assert ((total[:, i] > total[:, j]) == (rank[:, i] < rank[:, j]))[~equal].all()
        same = (total == total[:, :1]).all(axis=1)
        assert same.any()
        assert (rank[same] == [0, 1, 2]).all()
