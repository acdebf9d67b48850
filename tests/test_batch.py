"""Batches: what they accept, what they refuse, and what they say then."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import BatchError, TurnwiseError
from turnwise.credit.batch import encode_labels
from turnwise.integrations.padded import padded_batch


def rows(**changes):
    """Two prompts, rows interleaved; trajectory labels are unique in their prompt only."""
    return {
        "group": ["b", "a", "b", "a", "b"],
        "trajectory": [1, 1, 0, 1, 1],
        "reward": [0.0, 1.0, 2.0, 3.0, 4.0],
        "columns": {"entropy": [0.5, 0.1, 0.2, 0.3, 0.4]},
    } | changes


def test_rows_are_sorted_by_group_and_trajectory_in_order_of_first_appearance():
    batch, order = tw.Batch.from_arrays(**rows(num_tokens=[5, 1, 2, 3, 4]))
    # b: trajectory 1 (rows 0, 4), trajectory 0 (row 2); a: trajectory 1 (rows 1, 3)
    np.testing.assert_array_equal(order, [0, 4, 2, 1, 3])
    np.testing.assert_array_equal(batch.groups.lengths, [2, 1])
    np.testing.assert_array_equal(batch.trajectories.lengths, [2, 1, 2])
    np.testing.assert_array_equal(batch.reward_R, [0, 4, 2, 1, 3])
    np.testing.assert_array_equal(batch.columns["entropy"], [0.5, 0.4, 0.2, 0.1, 0.3])
    np.testing.assert_array_equal(batch.turn_R, [0, 1, 0, 0, 1])
    np.testing.assert_array_equal(batch.group_responses.lengths, [3, 2])
    assert batch.tokens is not None
    np.testing.assert_array_equal(batch.tokens.lengths, [5, 4, 2, 1, 3])
    assert (batch.num_groups, batch.num_trajectories, batch.num_responses) == (2, 3, 5)
    assert repr(batch) == "Batch(2 groups, 3 trajectories, 5 responses, columns ['entropy'])"


def test_trajectories_keep_their_order_of_appearance_when_groups_share_labels():
    batch, order = tw.Batch.from_arrays(
        group=["b", "b", "a", "a"], trajectory=["x", "y", "y", "x"], reward=[0, 1, 2, 3]
    )
    np.testing.assert_array_equal(order, [0, 1, 2, 3])
    assert batch.num_trajectories == 4


def test_results_go_back_to_their_rows():
    batch, order = tw.Batch.from_arrays(**rows())
    out = np.empty(5)
    out[order] = tw.outcome_return()(batch)
    np.testing.assert_array_equal(out, [4, 4, 2, 4, 4])


@pytest.mark.parametrize(
    "labels", [["1", "01"], [1, "1"], [("a", 1), ("a", 2)], [None, 0], [b"a", "a"], np.array(["1", "01"])]
)
def test_labels_that_look_alike_are_told_apart(labels):
    batch, _ = tw.Batch.from_arrays(group=labels, trajectory=[0, 0], reward=[1, 2])
    assert batch.num_groups == 2
    batch, _ = tw.Batch.from_arrays(group=[0, 0], trajectory=[0, 1], reward=[1, 2], columns={"state_key": labels})
    assert len(set(batch.columns["state_key"].tolist())) == 2


FOREIGN = """
import numpy as np
import turnwise as tw

class Foreign:
    # what tensors and table columns share: tolist, __array__, elements that hash by identity, indices that are no
    # positions
    def __init__(self, values): self.values = values
    def __len__(self): return len(self.values)
    def __iter__(self): return iter([object() for _ in self.values])
    def __getitem__(self, index): raise KeyError(index)
    def __array__(self, dtype=None, copy=None): return np.array(self.values, dtype=dtype)
    def tolist(self): return list(self.values)

columns = {"state_key": Foreign(["x", "y", "x"]), "penalty": Foreign([0.0, -1.0, -2.0])}
batch, order = tw.Batch.from_arrays(
    group=Foreign([7, 3, 7]), trajectory=Foreign([0, 0, 1]), reward=Foreign([1.0, 2.0, 3.0]), columns=columns
)
print(batch.num_groups, order.tolist(), batch.reward_R.tolist())
print(batch.columns["penalty"].tolist(), batch.columns["state_key"].tolist())
"""


def test_arrays_of_other_libraries_are_read_by_value_and_position():
    # in a process without run-time type checks, which would turn them away at the door
    done = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["2 [0, 2, 1] [1.0, 3.0, 2.0]", "[0.0, -2.0, -1.0] [0, 0, 1]"], done.stderr


def objects(*values):
    """An array of any objects: run-time type checks look into lists, but not into these."""
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result


def test_labels_become_codes_and_numbers_float64():
    batch = tw.Batch(
        tw.Segments([0, 1]), tw.Segments([0, 3]), [1, 0, 2],
        {"state_key": [10, 20, 10], "role": ["a", "b", "a"], "tool": ["x", None, "x"], "level": [3, 1, 2],
         "won": [True, False, True]},
    )  # fmt: skip
    for name, expected in {"state_key": [0, 1, 0], "role": [0, 1, 0], "tool": [0, 1, 0]}.items():
        np.testing.assert_array_equal(batch.columns[name], expected)
        assert batch.columns[name].dtype == np.int64
    for name, expected in {"level": [3, 1, 2], "won": [1, 0, 1]}.items():
        np.testing.assert_array_equal(batch.columns[name], expected)
        assert batch.columns[name].dtype == np.float64
    assert batch.reward_R.dtype == np.float64


def test_numbers_of_states_are_compared_exactly():
    states, ends = np.array([2**60, 2**60 + 1, 5, 6, 7], np.uint64), np.array([5, 5, 5, 5, 7], np.int64)
    batch, order = tw.Batch.from_arrays(**rows(columns={"state_key": states, "end_key": ends, "": [1, 1, 1, 1, 1.5]}))
    state_R, end_R = batch.columns["state_key"], batch.columns["end_key"]
    assert (end_R[:, None] == state_R).tolist() == [[bool(e == s) for s in states[order]] for e in ends[order]]
    assert batch.columns[""].tolist() == [1.0, 1.5, 1.0, 1.0, 1.0], "a name of no letters is no other column's"


@pytest.mark.usefixtures("array_types_unchecked")  # which would find the dict, now and then
@pytest.mark.parametrize("make", [list, np.array])
def test_the_last_state_has_the_number_of_the_equal_state(make):
    columns = {"end_key": make(["c", "c", "c", "b", "b"]), "state_key": make(["a", "b", "b", "a", "c"])}
    batch, order = tw.Batch.from_arrays(**rows(columns=columns))
    names = {code: columns["state_key"][row] for code, row in zip(batch.columns["state_key"], order, strict=True)}
    assert [names[code] for code in batch.columns["end_key"]] == [columns["end_key"][row] for row in order]
    again = tw.Batch(batch.groups, batch.trajectories, batch.reward_R, batch.columns)
    for name in columns:
        np.testing.assert_array_equal(again.columns[name], batch.columns[name])
    with pytest.raises(BatchError, match=r"state_key\[1\] is a dict"):
        tw.Batch.from_arrays(**rows(columns={"end_key": list("abcde"), "state_key": ["a", {}, "b", "c", "d"]}))


def test_nested_trajectories_give_the_same_batch():
    batch = tw.Batch.from_trajectories(
        [
            [[{"reward": 0, "entropy": 0.5, "num_tokens": 3}, {"reward": 1, "entropy": 0.25, "num_tokens": 1}]],
            [[{"reward": 2, "entropy": 0.0, "num_tokens": 2}]],
        ]
    )
    np.testing.assert_array_equal(batch.groups.lengths, [1, 1])
    np.testing.assert_array_equal(batch.trajectories.lengths, [2, 1])
    np.testing.assert_array_equal(batch.reward_R, [0, 1, 2])
    np.testing.assert_array_equal(batch.columns["entropy"], [0.5, 0.25, 0])
    assert batch.tokens is not None
    np.testing.assert_array_equal(batch.tokens.lengths, [3, 1, 2])
    assert tw.Batch.from_trajectories([[[{"reward": 0}]]]).tokens is None


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ([], "at least one group"),
        ([[[{"reward": 1}]], []], "group 1 is empty; leave it out"),
        ([[[{"reward": 1}], []]], "trajectory 1 of group 0 is empty; leave it out"),
        (
            [[[{"reward": 1}, {"reward": 1, "entropy": 2}]]],
            r"response 1 has \['entropy', 'reward'\], response 0 has \['reward'\]",
        ),
        ([[[{"entropy": 1}]]], r"responses have \['entropy'\], but no 'reward'"),
        ([[[{"reward": 1, "num_tokens": 0}]]], r"num_tokens\[0\] is 0, expected a whole number, 1 or more"),
    ],
)
def test_nested_trajectories_with_holes_are_refused(groups, complaint):
    with pytest.raises(BatchError, match=complaint):
        tw.Batch.from_trajectories(groups)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"reward": []} | {"group": [], "trajectory": [], "columns": {}}, "at least one response"),
        ({"group": ["a"]}, "group has 1 rows, reward has 5"),
        ({"trajectory": [0] * 6}, "trajectory has 6 rows, reward has 5"),
        ({"columns": {"entropy": [0.1]}}, "entropy has 1 rows"),
        ({"num_tokens": [1] * 6}, "num_tokens has 6 rows"),
        ({"group": objects(0, 1, [2], 0, 0)}, r"group\[2\] is a list, which is not hashable; use a string or a tuple"),
        ({"group": objects(0, 1, (2, [3]), 0, 0)}, r"group\[2\] is a tuple, which is not hashable"),
        ({"columns": {"state_key": objects(0, 1, 2, {3}, 0)}}, r"state_key\[3\] is a set, which is not hashable"),
        ({"group": [0, float("nan"), 0, 0, 0]}, "group holds nan, which is not equal to itself"),
        ({"columns": {"state_key": [0, 1, 2, 3, float("nan")]}}, "state_key holds nan"),
        ({"columns": {"length": [3, 2, 0, 1, 1]}}, r"length\[2\] is 0 \(group .*\), expected 1 or more"),
        ({"reward": np.array(["high"] * 5)}, "reward must hold numbers, got text, such as 'high'"),
        ({"columns": {"entropy": ["x"] * 5}}, "entropy must hold numbers"),
        ({"columns": {"level": [1.0, (2, (3, 4)), 0, 0, 0]}}, "level must hold numbers"),
        ({"columns": {"level": [(2, (3, 4))] * 5}}, "level must hold numbers"),
        ({"columns": {"level": [[1, 2]] * 5}}, r"level has shape \(5, 2\), expected \(5,\): one value per response"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changes, complaint):
    with pytest.raises(BatchError, match=complaint):
        tw.Batch.from_arrays(**rows(**changes))


def test_a_reward_that_is_no_number_is_found_in_the_callers_row():
    with pytest.raises(
        BatchError,
        match=r"reward\[4\] is nan \(group 0, trajectory 0, turn 1\), expected a finite number; drop or repair",
    ):
        tw.Batch.from_arrays(**rows(reward=[0, 1, 2, 3, np.nan]))
    with pytest.raises(BatchError, match=r"entropy\[3\] is inf \(group 1, trajectory 2, turn 1\)"):
        tw.Batch.from_arrays(**rows(columns={"entropy": [0, 0, 0, np.inf, 0]}))


def test_a_missing_entropy_is_no_label():
    """A column of codes 0, 1, 2, ... in place of entropies would pass for numbers."""
    with pytest.raises(BatchError, match=r"entropy\[0\] is nan"):
        tw.Batch.from_arrays(**rows(columns={"entropy": [None, 0.1, 0.2, 0.3, 0.4]}))


@pytest.mark.parametrize(
    ("groups", "trajectories", "reward", "columns", "tokens", "complaint"),
    [
        ([0, 3], [0, 1, 3], [1, 2, 3], {}, None, "groups cover 3 trajectories, but there are 2"),
        ([0, 2], [0, 1, 3], [1, 2], {}, None, r"reward has shape \(2,\), expected \(3,\): one value per response"),
        ([0, 2], [0, 1, 3], [1, 2, 3], {"x": [1]}, None, r"x has shape \(1,\)"),
        ([0, 2], [0, 1, 3], [1, 2, 3], {"role": ["a"]}, None, r"role has shape \(1,\)"),
        ([0, 2], [0, 1, 3], [1, 2, 3], {}, [0, 4], "tokens has 1 segments for 3 responses"),
        ([0, 2], [0, 1, 3], [1, np.inf, 3], {}, None, r"reward\[1\] is inf \(group 0, trajectory 1, turn 0\)"),
        ([0, 2], [0, 1, 3], [1, 2, 3], {"role": objects("a", {}, "b")}, None, r"role\[1\] is a dict"),
    ],
)
def test_parts_that_do_not_fit_are_refused(groups, trajectories, reward, columns, tokens, complaint):
    with pytest.raises(BatchError, match=complaint):
        tw.Batch(
            tw.Segments(groups),
            tw.Segments(trajectories),
            reward,
            columns,
            None if tokens is None else tw.Segments(tokens),
        )


def test_a_missing_column_names_who_needs_it_what_there_is_and_the_closest():
    batch, _ = tw.Batch.from_arrays(**rows(columns={"entropies": [0.0] * 5, "penalty": [0.0] * 5}))
    with pytest.raises(
        BatchError,
        match=r"aem needs column 'entropy', which this batch does not have; it has \['entropies', 'penalty'\]. "
        r"Did you mean 'entropies'\?",
    ):
        batch.column("entropy", needed_by="aem")
    with pytest.raises(BatchError, match=r"it has \['entropies', 'penalty'\]. Known: entropies, penalty."):
        batch.column("zzz", needed_by="aem")
    bare, _ = tw.Batch.from_arrays(**rows(columns=None))
    with pytest.raises(BatchError, match=r"it has \[\].$"):
        bare.column("entropy", needed_by="aem")


def test_turn_is_a_column_of_every_batch():
    batch, _ = tw.Batch.from_arrays(**rows())
    np.testing.assert_array_equal(batch.column("turn", needed_by="x"), [0, 1, 0, 0, 1])


def test_credit_is_checked_for_shape_and_finiteness_and_its_source_named():
    batch, _ = tw.Batch.from_arrays(**rows())
    with pytest.raises(BatchError, match=r"mine returned shape \(4,\), expected \(5,\)"):
        batch.check_credit(np.zeros(4), "mine")
    with pytest.raises(
        BatchError, match=r"the credit that mine returned\[4\] is nan \(group 0, trajectory 0, turn 1\)"
    ):
        batch.check_credit(np.array([0, np.nan, 0, 0, 0]), "mine")
    np.testing.assert_array_equal(batch.check_credit(np.arange(5), "mine"), np.arange(5))


def test_a_batch_can_be_pickled():
    batch, _ = tw.Batch.from_arrays(**rows())
    copy = pickle.loads(pickle.dumps(batch))
    np.testing.assert_array_equal(tw.grpo()(copy), tw.grpo()(batch))


def test_errors_are_value_errors_of_one_family():
    assert issubclass(BatchError, TurnwiseError)
    assert issubclass(BatchError, ValueError)


@pytest.mark.parametrize("kind", ["list", "objects"])
def test_labels_that_are_tensors_are_equal_by_value(kind):
    """As a data set in torch format gives them, one per row."""
    torch = pytest.importorskip("torch")
    number = [0, 1, 0, 1]
    labels: Any = [torch.tensor(each) for each in number]
    if kind == "objects":
        labels = np.fromiter(labels, dtype=object, count=4)
    given = {"reward": [1.0, 0.0, 0.0, 0.0], "columns": {"state_key": labels}}
    batch, _ = tw.Batch.from_arrays(group=labels, trajectory=[*range(4)], **given)
    assert (batch.num_groups, len({*batch.columns["state_key"].tolist()})) == (2, 2)
    padded = padded_batch(row="trajectory", rewards=torch.ones(4, 1), response_mask=torch.ones(4, 1), group=labels)
    assert padded.batch.num_groups == 2
    with pytest.raises(BatchError, match=r"group\[0\] is a list, which is not hashable"):
        encode_labels("group", [torch.tensor([1, 2])] * 2)
