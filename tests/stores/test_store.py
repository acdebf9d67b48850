"""A store is bounded, knows age and origin of every row, and a damaged one is refused with file and row."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.toys import trajectory
from turnwise.base.errors import ConfigError, DamagedError, DataError, RunError
from turnwise.extensions.stores.rows import FILE, Row, from_record, make_row, read_store, to_record, write_store
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.rollout.trajectory import Extras, Trajectory, Turn


def row(task: int = 0, step: int = 1, key: Any = ("room", 3, (1.5, None)), **fields: Any) -> Row:
    made = trajectory(4, ([1, 2], [3]), ([4], [5, 6]), **fields)
    for number, turn in enumerate(made.turns):
        turn.behavior_logprobs = [-0.1 - 1 / 3 * number] * len(turn.response_ids)
        turn.state_key, turn.version, turn.reward = key, step - 1, 0.1 * number
    info: dict[Any, Any] = {"gold": "a", "places": (1, 2), 3: {4}}
    made.info = info
    return make_row(task, step, dataclasses.replace(made, task=str(task)))


def store(**settings: Any) -> Store:
    return Store(StoreConfig(name="rlep", **{"capacity": 4, "replays": 2, **settings}), str)


def steps(given: Store) -> list[int]:
    return [each.step for each in given.rows]


def test_the_oldest_leave_first():
    given = store(capacity=3)
    for step in range(1, 6):
        given.add([row(step, step)], step=step)
    assert steps(given) == [3, 4, 5]


def test_a_task_has_its_limit():
    given = store(per_task=2)
    given.add([row(task, step) for step in (1, 2, 3) for task in (0, 1)], step=3)
    assert [(each.task, each.step) for each in given.rows] == [(0, 2), (1, 2), (0, 3), (1, 3)]
    assert steps_of(given, 0) == [2, 3]


def steps_of(given: Store, task: int) -> list[int]:
    return [each.step for each in given.of(task)]


def test_old_rows_leave():
    given = store(max_age=2)
    given.add([row(0, 1), row(1, 2), row(2, 3)], step=3)
    assert steps(given) == [1, 2, 3]
    given.add([], step=4)
    assert steps(given) == [2, 3]
    assert given.metrics(4) == {"stored": 2.0, "stored_age": 1.5, "stored_age_max": 2.0}
    given.add([], step=9)
    assert given.metrics(9) == {"stored": 0.0}


@pytest.mark.parametrize("key", [None, "room", 3, 2.5, True, ("a", 1, ("b",)), np.int64(7), np.float32(0.1)])
def test_a_row_is_the_same_after_it_was_saved(tmp_path, key):
    """To the last bit, and of the same types: a resumed run must not differ."""
    rows = [row(0, 1, key, last_key=key), row(1, 7)]
    write_store(tmp_path / FILE, rows)
    again = read_store(tmp_path / FILE)
    assert again == rows
    assert [type(each.trajectory.turns[0].state_key) for each in again] == [
        type(each.trajectory.turns[0].state_key) for each in rows
    ]
    assert again[0].trajectory.turns[0].state_key == (key.item() if isinstance(key, np.generic) else key)
    assert again[0].trajectory.last_key == again[0].trajectory.turns[0].state_key
    assert again[0].trajectory.info == {"gold": "a", "places": [1, 2], "3": "{4}"}
    record = json.loads((tmp_path / FILE).read_text().splitlines()[2])
    assert (record["row"], record["task"], record["step"], record["version"]) == (2, "1", 7, 6)


def test_a_key_that_cannot_be_saved_is_said():
    with pytest.raises(ConfigError, match=r"cannot keep the state key frozenset"):
        row(key=frozenset("ab"))


def test_rows_are_not_copied():
    """A checkpoint's state is copied every step; the rows in it never change."""
    one = row()
    assert copy.deepcopy({"store": (one,)})["store"][0] is one


def written(folder: Path, *, rows: int = 3) -> Path:
    write_store(folder / FILE, [row(number, number) for number in range(rows)])
    return folder / FILE


def edit(number: int, change: Any) -> Any:
    def edited(lines: list[str]) -> list[str]:
        lines[number] = change(lines[number])
        return lines

    return edited


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit(2, lambda line: line.replace("-0.1", "-0.2", 1)), r"row 2, is damaged: expected CRC-32"),
        (edit(3, lambda line: line[:-9]), r"row 3, is damaged: not valid JSON"),
        (lambda lines: lines[:-1], r"row 3, is missing: expected 3 rows"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], r"row 1, is row 2: rows are missing or in another"),
        (lambda lines: [*lines[:3], lines[2], lines[3]], r"row 3, is row 2"),
        (edit(0, lambda line: line.replace("3", "2")), r"header, is damaged"),
        (lambda lines: [], r"header, is damaged"),
    ],
)
def test_damage_is_found_with_its_row(tmp_path, damage, message):
    path = written(tmp_path)
    path.write_text("\n".join(damage(path.read_text().splitlines())))
    with pytest.raises(DamagedError, match=f"{FILE}, {message}"):
        read_store(path)
    given = store()
    with pytest.raises(RunError, match=r"resume with store\.damaged=empty"):
        given.load_state_dict(path)
    explicit = store(damaged="empty")
    explicit.load_state_dict(path)
    assert explicit.rows == ()


def test_every_flipped_byte_is_found(tmp_path):
    path = written(tmp_path, rows=1)
    data, rows, refused = path.read_bytes(), read_store(path), 0
    for place in range(0, len(data) - 1, 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert read_store(path) == rows, "such as another last digit of the same float"
        except DamagedError:
            refused += 1
    assert refused > len(data) / 7 - 5
    path.write_bytes(b"\xff" + data[1:])
    with pytest.raises(DamagedError, match=r"row 0, is damaged: it is not text"):
        read_store(path)
    path.unlink()
    with pytest.raises(DamagedError, match="cannot be read"):
        read_store(path)


def test_a_store_to_start_with_must_be_of_the_same_tasks(tmp_path):
    path = written(tmp_path)
    assert steps(store(start=path, capacity=2)) == [-1, 0], "before the first step of this run"
    given = store(start=path, max_age=2)
    assert given.metrics(1) == {"stored": 3.0, "stored_age": 2.0, "stored_age_max": 3.0}
    given.add([], step=2)
    assert steps(given) == [0]
    with pytest.raises(DataError, match=r"row 1: task 0 is '0' there and 'x0' here"):
        Store(StoreConfig(name="rlep", capacity=4, replays=1, start=path), lambda number: f"x{number}")


def test_stored_trajectories_are_plain():
    assert isinstance(row().trajectory, Trajectory)
    assert row().trajectory.tree is None


def test_a_fork_inside_a_response_is_stored_without_the_one_that_it_comes_from():
    """A stored trajectory is alone: all tokens of its responses are its own."""
    whole = Turn("o", "k", [1], [2, 3], [-1.0, -1.0], "r", False)
    forked = dataclasses.replace(whole, response_ids=[2, 4]).put(origin=whole, begun=1, actor="x", state=np.ones(2))
    (turn,) = make_row(0, 1, Trajectory(0, "0", [forked])).trajectory.turns
    assert turn == dataclasses.replace(forked, extras=Extras(actor="x"))
    assert "state" not in turn.extras
    assert turn.num_generated == 2


def test_a_store_of_an_earlier_version_is_read():
    """Its turns have the extras as fields."""
    now = row()
    now.trajectory.turns[0].put(actor="x", spreads=[0.5])
    record = to_record(now)
    for number, turn in enumerate(record["turns"]):
        extras = turn.pop("extras")
        turn |= {"actor": extras.get("actor", ""), "behavior_spreads": extras.get("spreads")}
        turn |= {"origin": None, "begun": 0, "learned": bool(number)}
    read = from_record(json.loads(json.dumps(record)))
    assert read.trajectory.turns[0] == now.trajectory.turns[0]
    assert [turn.extras for turn in read.trajectory.turns[1:]] == [Extras(learned=True)] * (len(record["turns"]) - 1)
