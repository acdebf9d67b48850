"""Rollouts on disk."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.toys import trajectory

from turnwise.rollout.experience import Experience
from turnwise.rollout.record import SCHEMA, read_rollouts, rows, write_rollouts
from turnwise.rollout.trajectory import Trajectory, Turn


def some_trajectories() -> list[Trajectory]:
    return [
        Trajectory(
            0,
            "a",
            [
                Turn("first", ("key", 1), [1, 2], [3, 4], [-0.5, -0.25], "go north", False, 0.0, True),
                Turn("zweite ✓", "k", [5], [6], [-1.0], "", True, 1.5, False),
            ],
            success=True,
            ended="terminated",
        ),
        Trajectory(0, "a", ended="failed", failure="environment: OSError: gone at step:3"),
        Trajectory(1, "b", [Turn("third", "k", [7], [8], [-2.0], "look", False)], ended="context"),
    ]


def test_a_round_trip_keeps_every_value(tmp_path):
    trajectories, path = some_trajectories(), tmp_path / "new" / "step-000001.parquet"
    write_rollouts(path, trajectories, {})
    assert pq.read_table(path).to_pylist() == rows(trajectories)
    assert pq.read_schema(path).equals(SCHEMA)


def test_the_agent_that_gave_a_response_is_recorded(tmp_path):
    trajectories = some_trajectories()
    trajectories[0].turns[1].put(actor="helper", spreads=[0.5])
    write_rollouts(tmp_path / "one.parquet", trajectories, {})
    (first, second), third = (each.turns for each in read_rollouts(tmp_path / "one.parquet")[0] if each.turns)
    assert [turn.extras for turn in (first, second, *third)] == [{}, {"actor": "helper"}, {}]


def test_the_state_at_the_end_is_recorded_as_text(tmp_path):
    path, trajectories = tmp_path / "r.parquet", some_trajectories()
    trajectories[0].last_key = ("room", 3)
    write_rollouts(path, trajectories, {})
    assert [each.last_key for each in read_rollouts(path)[0]] == ["('room', 3)", None, None]


def test_the_rest_of_a_response_keeps_its_tokens_though_it_has_no_prompt(tmp_path):
    first = Turn("seen", "k", [1, 2], [3], [-0.5], "go", False, fresh=True)
    rest, unknown = Turn("seen", "k", [], [4, 5], [-1.0, -0.25], "north", False), Turn("o", "k", [], [], [], "", False)
    told = [Trajectory(0, "a", [first, rest], ended="terminated"), Trajectory(0, "a", [unknown], ended="terminated")]
    path = tmp_path / "r.parquet"
    write_rollouts(path, told, {})
    assert pq.read_table(path)["response_ids"].to_pylist() == [[3], [4, 5], None]
    assert [each.turns for each in read_rollouts(path)[0]] == [[first, rest], [replace(unknown, fresh=True)]]
    write_rollouts(path, told[:1], {})
    assert pq.read_schema(path).metadata[b"turnwise_format"] == b"3", "format 1 would lose a turn without a prompt"


def test_what_an_environment_says_never_stops_a_write(tmp_path):
    loop: dict = {}
    loop["itself"] = loop
    told = Trajectory(0, "task \udcff", ended="failed", failure="said \ud83d")
    turn = Turn("saw \ud83d", "key \udcff", [1], [2], [-0.5], "look", False)
    odd = Trajectory(0, "a", [turn], ended="terminated", info={("a", 1): 2, "success": True, "loop": loop, "set": {1}})
    path = tmp_path / "rollouts.parquet"
    write_rollouts(path, [told, odd], {})
    first, second = pq.read_table(path).to_pylist()
    assert (first["task"], first["failure"]) == ("task ?", "said ?")
    assert (second["observation"], second["state_key"]) == ("saw ?", "key ?")
    info = json.loads(second["info"])
    assert (info["('a', 1)"], info["success"], info["set"]) == (2, True, "{1}")


def test_a_failed_trajectory_without_turns_leaves_a_row_with_its_cause():
    row = rows(some_trajectories())[2]
    assert (row["trajectory"], row["turn"], row["response_ids"]) == (1, 0, [])
    assert (row["ended"], row["failure"]) == ("failed", "environment: OSError: gone at step:3")


def test_credit_columns_have_gaps_where_there_is_no_credit(tmp_path):
    trajectories, path = some_trajectories(), tmp_path / "r.parquet"
    write_rollouts(path, trajectories, {"advantage": [1.0, -1.0, None, 0.5]})
    assert pq.read_table(path).column("advantage").to_pylist() == [1.0, -1.0, None, 0.5]


def test_credit_of_usable_trajectories_finds_its_rows():
    trajectories = [
        trajectory(0, ([1], [2]), ([3], [4])),
        trajectory(0, ([1], [2]), failure="environment: gone"),
        Trajectory(0, "0", ended="failed", failure="environment: gone"),
        Trajectory(1, "1", ended="context"),
        trajectory(1, ([1], [2])),
    ]
    experience = Experience(trajectories, np.array([t.usable for t in trajectories]), {})
    recorded = experience.recorded({"advantage": np.array([1.0, 2.0, 3.0])})
    assert recorded == {"advantage": [1.0, 2.0, None, None, None, 3.0]}
    assert len(rows(trajectories)) == 6


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.parquet"
    write_rollouts(path, some_trajectories(), {})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="length"):
        write_rollouts(path, some_trajectories(), {"advantage": [1.0]})
    assert path.read_bytes() == before


def test_nothing_but_the_file_is_left(tmp_path):
    write_rollouts(tmp_path / "r.parquet", some_trajectories(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["r.parquet"]
