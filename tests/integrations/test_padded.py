"""Credit of padded batches: by hand, against the library on a batch made directly, and against what goes wrong in such
batches.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import Rows, interleavings, rows

import turnwise as tw
from turnwise.base.errors import ConfigError, IntegrationError
from turnwise.integrations import stretches
from turnwise.integrations.padded import padded_advantages

METHODS = {
    "grpo": tw.grpo(),
    "turn rewards": tw.reinforce(discount=0.5),
    "aem of gigpo with penalty": tw.chain(tw.aem(tw.gigpo(discount=0.5)), tw.add_penalty()),
}
LENGTH = 4


def turn_rows(table: Rows) -> dict:
    """Arguments for `row="turn"`: responses of one to four tokens, the reward on the last one, entropies around their
    mean.
    """
    lengths = 1 + table.identity % LENGTH
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    rewards, entropies = np.zeros(mask.shape), np.full(mask.shape, np.nan)  # padding is not read
    rewards[np.arange(len(table)), lengths - 1] = table.reward
    tilt = np.arange(LENGTH) - (lengths[:, None] - 1) / 2
    entropies[mask == 1] = (table.entropy[:, None] + 0.01 * tilt)[mask == 1]
    names = table.names()
    return {
        "rewards": rewards,
        "response_mask": mask,
        "group": list(table.group),
        "trajectory": names,
        "turn": np.array([names[:row].count(name) for row, name in enumerate(names)]),
        "entropies": entropies,
        "columns": {"state_key": list(table.state_key), "penalty": table.penalty},
    }


def take(given: dict, order: np.ndarray) -> dict:
    pick = lambda column: column[order] if hasattr(column, "dtype") else [column[row] for row in order]  # noqa: E731
    return {k: {n: pick(c) for n, c in v.items()} if k == "columns" else pick(v) for k, v in given.items()}


def credit(method: tw.Transform, given: dict, **changes) -> np.ndarray:
    return padded_advantages(method, row="turn", **{**given, **changes}).rows


def close(actual, expected) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * scale)


@pytest.fixture(scope="module", params=[8, stretches.BLOCK])
def block(request):
    """Cells that are read at a time: those of one or two rows, or all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "BLOCK", request.param)
        yield


# -- one row a turn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@given(table=rows())
def test_rows_of_turns_get_what_the_library_gives(method, table):
    result = padded_advantages(method, row="turn", **turn_rows(table))
    expected = table.credit(method)
    close(result.rows, expected)
    close(result.tokens, expected[:, None] * turn_rows(table)["response_mask"])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@given(data=st.data(), table=rows())
def test_shuffled_rows_get_shuffled_credit(method, data, table):
    order = np.array(data.draw(st.permutations(range(len(table)))))
    close(credit(method, take(turn_rows(table), order)), credit(method, turn_rows(table))[order])


@given(data=st.data(), table=rows())
def test_without_turn_numbers_the_order_of_the_rows_counts(data, table):
    order = data.draw(interleavings(table))
    close(
        credit(METHODS["turn rewards"], take(turn_rows(table), order), turn=None),
        table.credit(METHODS["turn rewards"])[order],
    )


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@given(data=st.data(), table=rows())
def test_copies_and_padding_change_nothing(method, data, table):
    copies = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=5))
    order = np.array(data.draw(st.permutations([*range(len(table)), *copies])))
    padding = np.array(data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order))))
    given = take(turn_rows(table), order)
    at = np.flatnonzero(padding)
    given = take(
        given, np.sort(np.concatenate([np.arange(len(order)), at]))
    )  # each padding row stands before its model
    empty = np.zeros(len(given["response_mask"]), dtype=bool)
    empty[at + np.arange(len(at))] = True
    given["response_mask"][empty], given["rewards"][empty] = 0, 0.0
    given["group"] = [None if none else label for none, label in zip(empty, given["group"], strict=True)]
    actual = credit(method, given)
    close(actual[~empty], table.credit(method)[order])
    assert not actual[empty].any()


def test_a_reward_a_row_is_the_reward_of_its_turn():
    given = turn_rows(TWO)
    close(credit(tw.reinforce(), given, rewards=TWO.reward), credit(tw.reinforce(), given))


TWO = Rows.of(
    group=("q",) * 5,
    trajectory=("a", "a", "a", "b", "c"),
    reward=np.array([0.0, 0.0, 1.0, 0.0, 0.5]),
    entropy=np.array([0.1, 0.5, 0.9, 0.2, 0.3]),
    penalty=np.zeros(5),
    state_key=("x", "y", "x", "x", "y"),
)


# -- one row a trajectory ----------------------------------------------------------------------------------------------

SPANS = np.array([[1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]])
SPAN_ENTROPY = np.array([[0.1, 0.3, 9, 9, 0.5, 0.7], [0.4, 9, 0.2, 9, 9, 9], [9, 0.9, 0.1, 0.3, 0.3, 0.1]])


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("method", [tw.reinforce(discount=0.5), tw.aem(tw.rloo())], ids=str)
def test_each_run_of_ones_is_a_response(method):
    rewards = np.array([[0, 2.0, 0, 0, 0, 1.0], [0, 0, 4.0, 0, 0, 0], [0, 0.5, 0, 0, 0, 0.5]])
    batch = tw.Batch.from_trajectories(
        [
            [
                [{"reward": 2.0, "entropy": 0.2}, {"reward": 1.0, "entropy": 0.6}],
                [{"reward": 0.0, "entropy": 0.4}, {"reward": 4.0, "entropy": 0.2}],
                [{"reward": 1.0, "entropy": 0.34}],
            ]
        ]
    )
    a, b, c, d, e = method(batch)
    result = padded_advantages(
        method, row="trajectory", rewards=rewards, response_mask=SPANS, group=["q"] * 3, entropies=SPAN_ENTROPY
    )
    close(result.tokens, [[a, a, 0, 0, b, b], [c, 0, d, 0, 0, 0], [0, e, e, e, e, e]])
    close(result.rows, [(a + b) / 2, (c + d) / 2, e])


def test_a_reward_a_row_is_paid_for_the_last_response():
    result = padded_advantages(
        tw.reinforce(discount=0.5), row="trajectory", rewards=[1.0, 2.0, 4.0], response_mask=SPANS, group=["q"] * 3
    )
    close(result.tokens, [[0.5, 0.5, 0, 0, 1, 1], [1, 0, 2, 0, 0, 0], [0, 4, 4, 4, 4, 4]])


@pytest.mark.usefixtures("block")
def test_turn_ids_split_a_run_and_join_runs():
    ids = np.array([[0, 0, 7, 7, 0, 1], [3, 7, 5, 7, 7, 7], [7, 0, 0, 1, 1, 2]])  # 7 is masked
    result = padded_advantages(
        tw.reinforce(discount=0.5),
        row="trajectory",
        rewards=[1.0, 2.0, 4.0],
        response_mask=SPANS,
        group=[0] * 3,
        turn_ids=ids,
    )
    close(result.tokens, [[0.5, 0.5, 0, 0, 0.5, 1], [1, 0, 2, 0, 0, 0], [0, 1, 1, 2, 2, 4]])


def test_copied_trajectories_count_once():
    order = [0, 1, 0, 2, 0]

    def make(order):
        return padded_advantages(
            tw.aem(tw.grpo()),
            row="trajectory",
            rewards=np.array([1.0, 0, 0])[order],
            response_mask=SPANS[order],
            group=["q"] * len(order),
            trajectory=order,
            entropies=SPAN_ENTROPY[order],
        ).tokens

    close(make(order), make([0, 1, 2])[order])


def test_two_rows_of_a_trajectory_that_differ_are_refused():
    with pytest.raises(IntegrationError, match="rows 0 and 1 name the same response but differ in response_mask"):
        padded_advantages(
            tw.grpo(),
            row="trajectory",
            rewards=[0, 0, 0],
            response_mask=SPANS,
            group=[0] * 3,
            trajectory=["a", "a", "b"],
        )


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_tensors_come_back_as_tensors_of_their_dtype(dtype):
    given = turn_rows(TWO)
    tensors = {k: torch.tensor(given[k]) for k in ("response_mask", "turn")} | {
        k: torch.tensor(given[k], dtype=dtype) for k in ("rewards", "entropies")
    }
    tensors["rewards"].requires_grad_()
    tokens, per_row = padded_advantages(tw.grpo(), row="turn", **{**given, **tensors})
    assert tokens.dtype == per_row.dtype == dtype
    assert not tokens.requires_grad
    np.testing.assert_allclose(per_row.double(), TWO.credit(tw.grpo()), atol=0.02)


def test_object_rewards_beside_a_tensor_mask_give_single_precision():
    given = turn_rows(TWO) | {"rewards": TWO.reward.astype(object)}
    assert credit(tw.grpo(), given, response_mask=torch.tensor(given["response_mask"])).dtype == torch.float32


def test_numpy_alone_does_not_import_torch():
    code = (
        "import sys, numpy as np, turnwise as tw; from turnwise.integrations.padded import padded_advantages as f;"
        "f(tw.grpo(), row='trajectory', rewards=[1, 0], response_mask=np.ones((2, 3)), group=[0, 0]); print('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_labels_that_look_alike_stay_apart():
    mask = np.ones((4, 1))
    result = padded_advantages(
        tw.dr_grpo(), row="trajectory", rewards=[1, 0, 3, 0], response_mask=mask, group=["1", "1", 1, 1]
    )
    close(result.rows, [0.5, -0.5, 1.5, -1.5])


# -- refusals ----------------------------------------------------------------------------------------------------------

MASKED = turn_rows(TWO)["response_mask"]
REFUSALS = {
    "a missing entropy": ({"entropies": None}, r"needs column 'entropy', which was not given; pass entropies="),
    "a trajectory in two groups": (
        {"group": ["q", "p", "q", "q", "q"]},
        "rows 0 and 1 have the same trajectory but different groups",
    ),
    "a reward outside the mask": (
        {"rewards": np.eye(5, LENGTH, k=3)},
        r"rewards\[0, 3\] is 1.0, where response_mask has no response",
    ),
    "a reward of padding": (
        {"response_mask": MASKED * [[1], [1], [0], [1], [1]], "rewards": TWO.reward},
        r"rewards\[2\] is 1.0",
    ),
    "copies with another reward": (
        {"turn": [0, 0, 0, 0, 0], "response_mask": MASKED[[0] * 5], "rewards": TWO.reward, "entropies": TWO.entropy},
        r"rows 0 and 2 .* differ in rewards",
    ),
    "copies with another mask": ({"turn": [0, 1, 1, 0, 0]}, "rows 1 and 2 .* differ in response_mask"),
    "a mask of fractions": ({"response_mask": MASKED * 0.5}, "must hold 0 and 1, got 0.5"),
    "a mask of one row": ({"response_mask": MASKED[0]}, r"expected \[rows, length\]"),
    "an empty mask": ({"response_mask": 0 * MASKED, "rewards": np.zeros(5)}, "is 0 in all 5 rows"),
    "rewards of another shape": ({"rewards": np.zeros((5, 7))}, r"rewards has shape \(5, 7\), expected \(5, 4\)"),
    "rewards that are no numbers": ({"rewards": ["a"] * 5}, "rewards must hold numbers"),
    "an entropy that is not finite": ({"entropies": np.full(5, np.inf)}, r"entropy\[0\] is inf"),
    "too few groups": ({"group": ["q"]}, "group has shape"),
    "half a turn": ({"turn": [0, 0.5, 1, 0, 0]}, "turn must hold whole numbers, got 0.5"),
    "no trajectory": ({"trajectory": None}, "needs trajectory="),
    "labels a token": ({"columns": {"state_key": np.zeros((5, LENGTH))}}, "one label per row"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_known_is_refused_in_one_line(changes, message):
    with pytest.raises(IntegrationError, match=message) as caught:
        credit(tw.aem(tw.grpo()), turn_rows(TWO), **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn": [0, 0, 0]}, "takes no turn="),
        ({"entropies": np.zeros(3)}, r"must be \[rows, length\]"),
        ({"turn_ids": -np.cumsum(SPANS, axis=1)}, "turn_ids falls from -1 to -2"),
    ],
)
def test_what_a_row_of_a_trajectory_cannot_have_is_refused(changes, message):
    with pytest.raises(IntegrationError, match=message):
        padded_advantages(tw.grpo(), row="trajectory", rewards=[0, 0, 0], response_mask=SPANS, group=[0] * 3, **changes)


def test_unknown_rows_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'turn'"):
        padded_advantages(tw.grpo(), row="turns", rewards=[0], response_mask=[[1]], group=[0])  # pyright: ignore


# -- known wrong: what adapters of this field do, each rejected by a batch on which it shows ---------------------------


def standardised(values, members):
    return (values - values[members].mean()) / (values[members].std(ddof=1) + 1e-6)


def mean_over_turn_rows(given):
    """verl-agent's default: every turn row counts as a trajectory."""
    names = given["trajectory"]
    outcome = np.array(
        [sum(r for r, other in zip(given["rewards"].sum(1), names, strict=True) if other == n) for n in names]
    )
    return standardised(outcome, np.arange(len(names)))


def copies_counted_twice(given):
    """verl-agent's `adjust_batch`: rows are repeated before the advantage, and a copied turn pays its reward again."""
    return credit(tw.grpo(convention="verl"), given, turn=None)


def reward_counted_once_a_turn(given):
    """The outcome stands on every turn row of its trajectory and is summed."""
    names = given["trajectory"]
    outcome = {
        n: sum(given["rewards"].sum(1)[row] for row, other in enumerate(names) if other == n) for n in set(names)
    }
    return credit(tw.grpo(convention="verl"), given, rewards=np.array([outcome[n] for n in names]))


def check(of, *, copy: bool):
    """A trajectory of three turns that won, one that lost and one that won half; behind them a copy of the winning
    turn.
    """
    order = np.array([0, 1, 2, 3, 4, 2] if copy else range(5))
    outcome = np.array([1.0, 1.0, 1.0, 0.0, 0.5])[order]
    close(of(take(turn_rows(TWO), order)), standardised(outcome, [0, 3, 4]))


@pytest.mark.parametrize("copy", [False, True])
def test_the_adapter_counts_trajectories_and_turns_once(copy):
    check(lambda given: credit(tw.grpo(convention="verl"), given), copy=copy)


@pytest.mark.parametrize(
    ("wrong", "copy"), [(mean_over_turn_rows, False), (reward_counted_once_a_turn, False), (copies_counted_twice, True)]
)
def test_the_known_bug_is_rejected(wrong, copy):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(wrong, copy=copy)


def test_counting_copies_twice_is_right_only_where_there_are_none():
    check(copies_counted_twice, copy=False)
