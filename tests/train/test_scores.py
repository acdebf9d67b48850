"""The table of an evaluation, and that no result is lost to another."""

import json

import pytest
from tests.toys import small_config, trajectory

from turnwise.base.errors import RunError
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.evaluation.intervals import wilson_interval
from turnwise.train.evaluation.scores import (
    ALL,
    ScoreRow,
    as_markdown,
    as_table,
    evaluation_record,
    rows_by_type,
    write_evaluation,
)


def played(kind: str | None, success: bool, turns: int, *, invalid: int = 0, **info) -> Trajectory:
    made = trajectory(
        0, *([([1], [2])] * turns), success=success, info={**({"task_type": kind} if kind else {}), **info}
    )
    for turn in made.turns[:invalid]:
        turn.valid = False
    return made


def lost() -> Trajectory:
    return Trajectory(0, "0", ended="failed", failure="environment: gone")


def test_rows_by_hand():
    episodes = [
        played("heat", True, 2),
        played("cool", False, 4, invalid=3),
        played("heat", False, 6, invalid=1),
        lost(),
    ]
    cool, heat, everything = rows_by_type(episodes)
    assert (cool.task_type, cool.episodes, cool.success, cool.turns, cool.invalid_frac) == ("cool", 1, 0.0, 4.0, 0.75)
    assert (heat.task_type, heat.episodes, heat.success, heat.turns, heat.invalid_frac) == ("heat", 2, 0.5, 4.0, 0.125)
    assert (everything.task_type, everything.episodes, everything.success) == (ALL, 3, 1 / 3)
    assert (heat.low, heat.high) == wilson_interval(1, 2)
    assert (everything.low, everything.high) == wilson_interval(1, 3)
    assert everything.invalid_frac == pytest.approx(4 / 12)


def test_episodes_without_a_type_are_in_the_table_too():
    rows = rows_by_type([played("heat", True, 1), played(None, False, 1)])
    assert [(row.task_type, row.episodes) for row in rows] == [("-", 1), ("heat", 1), (ALL, 2)]
    assert [row.task_type for row in rows_by_type([played(None, True, 1)])] == [ALL]


def test_a_mean_score_needs_the_score_of_every_episode():
    rows = rows_by_type([played("a", True, 1, score=1.0), played("a", False, 1, score=0.5), played("b", False, 1)])
    assert [row.score for row in rows] == [0.75, None, None]


def test_nothing_played_is_no_success():
    (row,) = rows_by_type([lost()])
    assert row == ScoreRow(ALL, 0, 0.0, 0.0, 1.0, None, 0.0, 0.0)


RESULTS = [{"step": 3, "seed": seed, "tasks": "0123", "success": 0.5} for seed in (0, 4)]


def record(tmp_path, episodes, **changes):
    made = evaluation_record("own-w:x-valid-2", small_config(tmp_path), RESULTS, episodes, on_panel=False)
    return {**made, **changes}


def test_a_record_says_what_was_played(tmp_path):
    episodes = [played("a", True, 1), lost(), played("a", False, 2), played("b", True, 3)]
    made = record(tmp_path, episodes)
    assert (made["num_tasks"], made["seeds"], made["failed"], made["panel"]) == (2, [0, 4], 1, None)
    assert [(e["seed"], e["success"], e["turns"]) for e in made["episodes"]] == [
        (0, True, 1),
        (0, None, 0),
        (4, False, 2),
        (4, True, 3),
    ]
    assert made["settings"]["name"] == "tests.toys:Colors"
    assert made["settings"]["temperature"] == 0.4
    text = as_markdown(made, rows_by_type(episodes))
    assert "| tasks | 2, digest `0123` |" in text
    assert "| sampling seeds | 0, 4 |" in text
    assert "| all | 3 | 0.667 | 0.208 to 0.939 | 2.0 | 0.000 |" in text
    assert "none: the run's own choice of tasks" in text
    assert "every run on it plays these tasks" in as_markdown({**made, "panel": "p"}, rows_by_type(episodes))


def test_the_same_result_is_one_file_and_another_stands_beside_it(tmp_path):
    folder, episodes = tmp_path / "evaluations", [played("a", True, 1), played("a", False, 2)]
    rows = rows_by_type(episodes)
    first = write_evaluation(folder, record(tmp_path, episodes), rows)
    assert first.name == "own-w_x-valid-2-step-3.md"
    content = first.with_suffix(".json").read_bytes()
    assert json.loads(content)["table"][-1]["success"] == 0.5
    assert write_evaluation(folder, record(tmp_path, episodes), rows) == first
    assert sorted(path.name for path in folder.iterdir()) == [first.with_suffix(".json").name, first.name]
    made = {first}
    for changes in ({"seeds": [9]}, {"tasks": "4567"}, {"settings": {"temperature": 1.0}}):
        other = write_evaluation(folder, record(tmp_path, episodes, **changes), rows)
        assert other not in made
        made.add(other)
        assert write_evaluation(folder, record(tmp_path, episodes, **changes), rows) == other
        written = json.loads(other.with_suffix(".json").read_text())
        assert {name: written[name] for name in changes} == changes
    assert set(folder.iterdir()) == made | {path.with_suffix(".json") for path in made}
    assert first.with_suffix(".json").read_bytes() == content


def test_a_damaged_result_is_not_overwritten(tmp_path):
    folder, episodes = tmp_path / "evaluations", [played("a", True, 1), played("a", False, 2)]
    first = write_evaluation(folder, record(tmp_path, episodes), rows_by_type(episodes))
    first.with_suffix(".json").write_text("{")
    assert write_evaluation(folder, record(tmp_path, episodes), rows_by_type(episodes)) != first
    assert first.with_suffix(".json").read_text() == "{"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "evaluations").write_text("a file")
    with pytest.raises(RunError, match=r"cannot write the evaluation to .*evaluations"):
        write_evaluation(tmp_path / "evaluations", record(tmp_path, [played("a", True, 1)] * 2), rows_by_type([]))


def test_the_table_of_a_terminal_has_the_cells():
    table = as_table(rows_by_type([played("a", True, 1), played("b", True, 1)]))
    assert len(table) == 4
    assert table[-1][:3] == ["all", "2", "1.000"]
