"""Credit from states that trajectories share: GAGPO, GraphGPO and RTMC."""

from collections import deque

import numpy as np
import pytest
from tests.timing import in_references

import turnwise as tw
from turnwise.base.errors import BatchError, ConfigError
from turnwise.credit.transforms.graphs import distances_to_success


def walks(
    seed: int,
    *,
    groups: int = 3,
    size: int = 4,
    states: int = 5,
    longest: int = 7,
    success: float = 0.5,
    ends: bool = False,
):
    """Random walks over named states; a reward at the end of those that succeed. `ends`: the last states are told."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, groups * size)
    won_N = generator.random(groups * size) < success
    turns = tw.Segments.from_lengths(lengths)
    reward = np.zeros(lengths.sum())
    reward[turns.offsets[1:] - 1] = won_N
    keys = generator.integers(0, states, lengths.sum()).astype(str).tolist()
    columns = {"state_key": keys, "success": np.repeat(won_N.astype(float), lengths)}
    if ends:
        names = [f"{end}" for end in generator.integers(0, states + 1, groups * size)]  # one is nobody's state
        columns["end_key"] = [name for name, length in zip(names, lengths, strict=True) for _ in range(length)]
    return tw.Batch(tw.Segments(np.arange(groups + 1) * size), turns, reward, columns)


def searched(batch: tw.Batch) -> np.ndarray:
    """Distances by breadth-first search, backwards from success, one group at a time."""
    offsets, keys = batch.trajectories.offsets, list(batch.column("state_key", needed_by="a test"))
    end_R = batch.columns.get("end_key")
    success_R, result = batch.column("success", needed_by="a test"), np.full(batch.num_responses, np.inf)
    for first, last in zip(batch.groups.offsets[:-1], batch.groups.offsets[1:], strict=True):
        edges = []
        for n in range(first, last):
            rows = range(offsets[n], offsets[n + 1])
            end = ("state", end_R[rows[0]]) if end_R is not None else None
            end = "success" if success_R[rows[0]] else end
            edges += [(row, keys[row], ("state", keys[row + 1]) if row + 1 in rows else end) for row in rows]
        distance, queue = {"success": 0}, deque(["success"])
        while queue:
            node = queue.popleft()
            for _, before, after in edges:
                if after == node and ("state", before) not in distance:
                    distance["state", before] = distance[node] + 1
                    queue.append(("state", before))
        if len(distance) > 1:
            worst = 1 + max(distance.values())
            for row, _, after in edges:
                result[row] = distance.get(after, worst)
    return result


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_distances_are_those_of_a_search(seed, ends):
    batch = walks(seed, success=0.3, ends=ends)
    np.testing.assert_array_equal(distances_to_success(batch), searched(batch))


def test_a_failure_that_stops_next_to_success_came_as_near_as_the_success():
    """A to B, then success; and A to B, where the step limit cuts it off: two equal edges."""
    columns = {"state_key": ["A", "B", "A"], "success": [1.0, 1.0, 0.0]}
    turns = tw.Segments([0, 2, 3])

    def nearness(**more) -> list[float]:
        batch = tw.Batch(tw.Segments([0, 2]), turns, [0.0, 1.0, 0.0], {**columns, **more})
        np.testing.assert_allclose(
            (tw.graph_gpo()(batch) - tw.grpo()(batch))[[0, 2]], expected, rtol=1e-3, atol=1e-12, err_msg=str(more)
        )
        return tw.reward_nearness()(batch).tolist()

    expected = [0.0, 0.0]
    assert nearness(end_key=["over", "over", "B"]) == [1.0, 10.0, 1.0]
    expected = [np.sqrt(0.5), -np.sqrt(0.5)]
    assert nearness() == nearness(end_key=["over", "over", "C"]) == pytest.approx([1.0, 10.0, 0.01])


def test_a_chain_of_success_counts_down():
    batch = walks(0, groups=1, size=1, longest=1, success=2.0)
    assert distances_to_success(batch).tolist() == [0.0]
    keys, won = list("abcdef"), [1.0] * 6
    chain = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 6]), [0.0] * 6, {"state_key": keys, "success": won})
    assert distances_to_success(chain).tolist() == [5, 4, 3, 2, 1, 0]
    np.testing.assert_allclose(tw.reward_nearness(omega=0.5, reward=2.0)(chain), 2.0 * 0.5 ** np.arange(5, -1, -1.0))


def test_graph_gpo_without_its_graph_is_grpo():
    batch = walks(1)
    np.testing.assert_array_equal(tw.graph_gpo(weight=0.0)(batch), tw.grpo()(batch))
    failed = walks(1, success=-1.0)
    np.testing.assert_array_equal(tw.graph_gpo()(failed), tw.grpo()(failed))


def test_the_reward_of_success_hardly_matters():
    batch = walks(2, longest=3)
    np.testing.assert_allclose(tw.graph_gpo(reward=10.0)(batch), tw.graph_gpo(reward=20.0)(batch), rtol=1e-3, atol=1e-4)


def test_graph_gpo_reads_success_of_whole_trajectories():
    columns = {"state_key": ["a", "b"], "success": [0.0, 1.0]}
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0.0, 1.0], columns)
    with pytest.raises(BatchError, match="needs one success between 0 and 1 per trajectory"):
        tw.graph_gpo()(batch)


@pytest.mark.parametrize("seed", range(5))
def test_gagpo_at_decay_1_is_the_return_minus_the_mean_of_the_state(seed):
    batch = walks(seed)
    state = tw.chain(
        tw.discounted_return(discount=0.9),
        tw.center_by_group(over="responses", same="state_key"),
        tw.center_by_group(over="responses"),
        tw.scale_by_group_std(over="responses"),
    )
    np.testing.assert_allclose(tw.gagpo(discount=0.9, decay=1.0)(batch), state(batch), atol=1e-9)


def test_gagpo_is_gae_on_the_values_of_the_states():
    batch = walks(7)
    return_R = tw.discounted_return(discount=0.8)(batch)
    centred_R = tw.chain(
        tw.discounted_return(discount=0.8), tw.center_by_group(over="responses", same="state_key", lone="zero")
    )(batch)
    columns = {**batch.columns, "value": return_R - centred_R}
    valued = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, columns)
    np.testing.assert_allclose(
        tw.sum_td_errors_of_states(discount=0.8, decay=0.6)(batch),
        tw.sum_td_errors(discount=0.8, decay=0.6)(valued),
        atol=1e-12,
    )


def test_states_that_nobody_shares_get_nothing():
    batch = walks(3)
    columns = {**batch.columns, "state_key": [str(row) for row in range(batch.num_responses)]}
    alone = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, columns)
    assert not tw.gagpo(discount=0.95, decay=0.9)(alone).any()
    np.testing.assert_array_equal(tw.graph_gpo()(alone), tw.grpo()(alone))


def test_gagpo_needs_what_is_not_published():
    with pytest.raises(ConfigError, match="discount"):
        tw.gagpo(decay=0.9)


@pytest.mark.parametrize("method", [tw.gagpo(discount=0.95, decay=0.9), tw.graph_gpo()], ids=["gagpo", "graph_gpo"])
def test_thirty_thousand_responses_take_at_most_twelve_references(method):
    batch = walks(0, groups=128, size=8, states=40, longest=59)
    assert batch.num_responses > 28_000
    assert in_references(lambda: method(batch)) <= 12.0


# -- RTMC --------------------------------------------------------------------------------------------------------------


def acting(seed: int, **more) -> tw.Batch:
    """Random walks with an action per response."""
    batch = walks(seed, **more)
    actions = np.random.default_rng([seed, 1]).integers(0, 2, batch.num_responses).astype(str).tolist()
    columns = {name: batch.column(name, needed_by="a test") for name in ("state_key", "success")}
    return tw.Batch(batch.groups, batch.trajectories, batch.reward_R, {**columns, "action_key": actions})


@pytest.mark.parametrize("seed", range(5))
def test_rtmc_is_what_asking_every_visit_gives(seed):
    batch, discount, prior = acting(seed), 0.9, 2.0
    turns = batch.trajectories
    state_R, action_R = (batch.column(name, needed_by="a test").tolist() for name in ("state_key", "action_key"))
    return_R, own_R = turns.suffix_sum(batch.reward_R, discount=discount), turns.ids
    expected = []
    for row in range(batch.num_responses):
        group = [
            k for k in range(batch.num_responses) if batch.group_responses.ids[k] == batch.group_responses.ids[row]
        ]
        met = [k for k in group if state_R[k] == state_R[row]]
        tried = {}
        for k in met:
            if action_R[k] == action_R[row]:
                tried.setdefault(own_R[k], return_R[k])
        outcomes = [batch.reward_R[own_R == n].sum() for n in {own_R[k] for k in group}]
        value = (return_R[met].sum() + prior * np.mean(outcomes)) / (len(met) + prior)
        expected.append(np.mean([*tried.values()]) - value)
    np.testing.assert_allclose(tw.rtmc(discount=discount)(batch), expected, rtol=1e-12, atol=1e-12)


def test_where_states_never_recur_rtmc_damps_the_groups_advantage():
    batch = acting(0)
    alone = {"state_key": [*range(batch.num_responses)], "action_key": [0] * batch.num_responses}
    batch = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, alone)
    above_R = tw.chain(tw.outcome_return(), tw.center_by_group())(batch)
    for prior in (2.0, 0.5):
        np.testing.assert_allclose(
            tw.rtmc(discount=1.0, prior_count=prior)(batch), prior / (1 + prior) * above_R, atol=1e-12
        )


def test_rtmc_takes_signatures_of_ones_own():
    batch = acting(3)
    keys = {name: batch.column(name, needed_by="a test") for name in ("state_key", "action_key")}
    mine = {"folded": keys["state_key"].astype(str).tolist(), "call": keys["action_key"].astype(str).tolist()}
    other = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, mine)
    method = tw.rtmc(state="folded", action="call")
    assert method.needs == ("folded", "call")
    np.testing.assert_array_equal(method(other), tw.rtmc()(batch))
    with pytest.raises(ConfigError, match=r"prior_count=-1\.0 must be 0 or more"):
        tw.rtmc(prior_count=-1.0)
