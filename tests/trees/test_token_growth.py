"""Rules that fork inside responses: where they fork, what a group costs, and what a run learns from it."""

import numpy as np
import pytest
from tests.toys import small_config
from tests.train.test_every_method_trains import batches  # noqa: F401
from tests.trees.test_branching import Long, play, settings

import turnwise as tw
from turnwise.errors import ConfigError
from turnwise.measures import Played
from turnwise.measures.shared_tokens import shared_tokens
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.environments import InProcessEnvironments
from turnwise.rollout.forks import Fork, Group
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.token_growth import fork_at, num_tokens, spo_tree
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.loop import train


def path(*lengths: int, **fields) -> Trajectory:
    """A trajectory whose responses have these numbers of tokens."""
    turns = [Turn("", "", [1], [2] * length, [-0.5] * length, "", False) for length in lengths]
    return Trajectory(0, "task", turns, ended="terminated", **fields)


def test_a_place_among_tokens_is_a_turn_and_a_token_of_its_response():
    one = path(3, 1, 2)
    assert [fork_at(7, one, token) for token in range(6)] == [
        Fork(7, 0, 0), Fork(7, 0, 1), Fork(7, 0, 2), Fork(7, 1, 0), Fork(7, 2, 0), Fork(7, 2, 1),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="behind the end"):
        fork_at(7, one, 6)


def test_spo_tree_parts_after_every_so_many_tokens():
    growth = spo_tree(Group(12), branching=[2, 3, 2], tokens=2)
    assert next(growth) == [None, None]
    first = [path(3, 2), path(1, 1)]  # the second one ends where it would part
    assert list(growth.send(first)) == [Fork(0, 0, 2)] * 2
    second = [*first, path(3, 2, shared=0), path(3, failure="environment: gone")]
    assert list(growth.send(second)) == [Fork(0, 1, 1), Fork(2, 1, 1)]
    with pytest.raises(StopIteration):
        growth.send([*second, path(3, 2), path(3, 2)])


@pytest.mark.parametrize("window", [False, True])
def test_a_tree_generates_each_token_once(window):
    played = play(Long, size=8, window=window, tasks=[0, 1], rule="spo_tree", branching=[2, 2, 2], tokens=2)
    assert all(one.usable for one in played)
    assert [one.group for one in played] == [0] * 8 + [1] * 8
    token_T = shared_tokens.run(Played(played), {})["token_T"]
    assert len(np.unique(token_T)) == rollout_metrics(played)["tokens"] < len(token_T)
    ends = np.cumsum([num_tokens(one) for one in played])
    paths = np.split(token_T, ends[:-1])[:8]
    for level, number in enumerate((2, 4, 8)):
        begins = {tuple(tokens[: 2 * level + 1].tolist()) for tokens in paths}
        assert len(begins) == number, "nodes of this level"
    assert any(turn.begun for one in played for turn in one.turns), "inside a response"


@pytest.mark.parametrize(
    ("collector", "size", "message"),
    [
        ({"rule": "spo_tree"}, 8, r"branching=\[6, 6, 6\] plays 216 trajectories .* set rollout.group_size=216"),
        ({"rule": "spo_tree", "branching": [2, 0]}, 8, r"branching=\[2, 0\] and tokens=30 must be 1 or more"),
        ({"rule": "spo_tree", "branching": 2}, 8, "branching=2: Input should be a valid list"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(collector, size, message):
    with pytest.raises(ConfigError, match=message):
        make_collector(settings(size, **collector), InProcessEnvironments(Long), str)


def config_of(folder, method: str, size: int, **collector):
    return small_config(
        folder,
        method=method,
        aem=False,
        environment={"name": "tests.trees.test_branching:Long", "max_steps": 6},
        rollout={"groups": 3, "group_size": size, "collector": {"name": "branching", **collector}},
    )


def test_a_run_with_spo_tree_learns_and_records_where_responses_forked(tmp_path, batches):  # noqa: F811
    folder = train(config_of(tmp_path, "spo_tree", 8, rule="spo_tree", branching=[2, 2, 2], tokens=2))
    steps = [line for line in folder.metrics() if "update/loss" in line]
    assert all(line["update/grad_norm"] > 0 for line in steps)
    trajectories, further = read_rollouts(folder.rollouts / "step-000002.parquet")
    assert np.isfinite(further["advantage"]).all()
    assert any(turn.begun for one in trajectories for turn in one.turns)
    assert rollout_metrics(trajectories)["tokens"] == steps[1]["rollout/tokens"]
    trace, _ = tw.spo_tree().trace(batches[-1])
    within_T = trace.within_T(batches[-1].tokens)
    assert within_T is not None
    assert np.abs(within_T).max() > 0, "tokens of a response have credit of their own"
