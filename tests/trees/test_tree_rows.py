"""Turns that trajectories share are one row on disk, and one object after loading."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.trees.growing import binary_tree, some_turn

from turnwise.base.errors import DataError
from turnwise.lab.report.chunks import shared_turns
from turnwise.rollout import record
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.record import SCHEMA, read_rollouts, read_table, write_rollouts
from turnwise.rollout.trajectory import Trajectory, distinct_turns
from turnwise.train.recorded import read_step, recorded_batch


def some_trees() -> list[Trajectory]:
    """Four paths and a branch that was lost in its replay, a lone trajectory, and one that failed at once."""
    tree = binary_tree(words=9, turns=4, forks=(1, 3))
    lost = Trajectory(0, "task", tree[0].turns[:2], ended="failed", failure="environment: it differs", shared=2, tree=0)
    for number, path in enumerate(tree):
        path.tree, path.info, path.last_key = 0, {"success": path.success}, f"end {number}"
    lone = Trajectory(1, "other", [some_turn(np.random.default_rng(0), 9, prompt=2, response=3)], tree=0)
    tree[0].turns[0].fresh = lone.turns[0].fresh = True
    return [*tree, lost, lone, Trajectory(1, "other", ended="failed", failure="environment: gone", tree=1)]


def same(one: Trajectory, other: Trajectory) -> bool:
    facts = ("group", "task", "success", "ended", "failure", "tree", "turns")
    return all(getattr(one, fact) == getattr(other, fact) for fact in facts)


def test_a_shared_turn_is_one_row_and_one_object(tmp_path):
    trees, path = some_trees(), tmp_path / "step-000001.parquet"
    write_rollouts(path, trees, {})
    turns = len(distinct_turns(trees))
    assert pq.read_table(path).num_rows == turns + 2, "and one for each trajectory without a turn of its own"
    loaded, _ = read_rollouts(path)
    assert all(same(one, other) for one, other in zip(trees, loaded, strict=True))
    assert [one.info for one in loaded] == [one.info for one in trees]
    assert [one.last_key for one in loaded] == [one.last_key for one in trees]
    assert len(distinct_turns(loaded)) == turns
    assert [one.shared for one in loaded] == [0, 3, 1, 3, 2, 0, 0]


def test_credit_of_a_shared_row_is_the_mean_of_its_trajectories(tmp_path):
    trees, path = some_trees()[:4], tmp_path / "step-000001.parquet"
    own = [None if number == 3 else float(number) for number, tree in enumerate(trees) for _ in tree.turns]
    write_rollouts(path, trees, {"advantage": own})
    step = read_step(path)
    advantage = step.values("advantage").reshape(4, 4)
    np.testing.assert_array_equal(advantage[:, 0], [1, 1, 1, np.nan])
    np.testing.assert_array_equal(advantage[:, 1], [0.5, 0.5, 2, np.nan])
    np.testing.assert_array_equal(advantage[:, 3], [0, 1, 2, np.nan])


def test_a_measure_that_differs_between_paths_keeps_the_value_of_each(tmp_path):
    """Fails if a shared row has the mean of ranks, which is the rank of no trajectory."""
    trees, path = some_trees(), tmp_path / "step-000001.parquet"
    rank = [float(number) if one.usable else None for number, one in enumerate(trees) for _ in one.turns or [None]]
    alike = [None if value is None else 1.0 for value in rank]
    write_rollouts(path, trees, {"rank": rank, "entropy": alike, "advantage": rank})
    assert pq.read_schema(path).metadata[b"turnwise_format"] == b"6", "older versions would fail at a list"
    assert pa.types.is_float64(pq.read_schema(path).field("entropy").type), "one value, where all are equal"
    _, columns = read_rollouts(path)
    np.testing.assert_array_equal(columns["rank"], np.array(rank, dtype=np.float64))
    np.testing.assert_array_equal(recorded_batch(read_step(path), invalid_penalty=0.0).columns["rank"][:4], [0.0] * 4)
    assert columns["advantage"][0] == 1.5, "the mean over four paths"


def test_a_recorded_batch_knows_the_trees(tmp_path):
    trees, path = some_trees(), tmp_path / "step-000001.parquet"
    learned = [0.0 if one.usable else None for one in trees for _ in one.turns or [None]]
    write_rollouts(path, trees, {"advantage": learned})
    batch = recorded_batch(read_step(path), invalid_penalty=0.0)
    assert batch.num_trajectories == 5
    assert batch.columns["num_paths"].reshape(-1)[:8].tolist() == [4, 2, 2, 1, 4, 2, 2, 1]
    prefix = batch.columns["prefix"]
    assert prefix[0] == prefix[4] == prefix[8]
    assert len(set(prefix.tolist())) == len(distinct_turns([one for one in trees if one.usable]))
    assert batch.trajectories.first(batch.columns["tree"]).tolist() == [0, 0, 0, 0, 1]


def test_files_without_trees_are_as_before_and_older_versions_refuse_trees(tmp_path, monkeypatch):
    lone, path = binary_tree(words=9, turns=2, forks=()), tmp_path / "step-000001.parquet"
    write_rollouts(path, lone, {})
    assert pq.read_schema(path).equals(SCHEMA)
    assert pq.read_schema(path).metadata[b"turnwise_format"] == b"1"
    write_rollouts(path, some_trees(), {})
    monkeypatch.setattr(record, "NEWEST", 1)
    with pytest.raises(DataError, match="newer turnwise, in format 2, and this version knows formats up to 1"):
        read_table(path, ())


def test_the_report_knows_shared_turns_and_where_branches_begin(tmp_path):
    trees, path = some_trees()[:4], tmp_path / "step-000001.parquet"
    write_rollouts(path, trees, {"advantage": [0.0] * 16})
    told = {name: column.to_pylist() for name, column in shared_turns(read_step(path)).items()}
    assert told["num_paths"] == [4, 2, 2, 1] * 4
    # 0 is the first path; 1 leaves it after three turns, 2 after one, and 3 leaves 2 after three
    nothing = [None] * 3
    assert told["parent"] == [*nothing, None, *nothing, 0, None, 0, None, None, *nothing, 2]
    write_rollouts(path, binary_tree(words=9, turns=2, forks=()), {"advantage": [0.0] * 2})
    told = {name: column.to_pylist() for name, column in shared_turns(read_step(path)).items()}
    assert told == {"num_paths": [1, 1], "parent": [None, None]}


def test_metrics_count_a_shared_response_once_and_every_environment_step():
    trees = binary_tree(words=9)
    metrics = rollout_metrics(trees)
    assert (metrics["tokens"], metrics["env_steps"], metrics["turns"]) == (75 * 2, 160, 20)
