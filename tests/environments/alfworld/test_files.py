"""Game files: what is read, what is written, where games are found, and what a broken file says."""

import dataclasses
import json
import re
import time
from pathlib import Path

import pytest
from tests.environments.alfworld.written import problem_to_pddl, save_game

from turnwise.base.errors import DataError
from turnwise.worlds.alfworld.files import find_games, load_game, parse_problem
from turnwise.worlds.alfworld.game import TASK_TYPES, GameData, GameGoal, Receptacle, Thing

GRAMMAR = 'grammar :: """{"task": [{"rhs": "Your task is to: UNKNOWN GOAL."}]}"""'
PROBLEM = """
(define (problem plan_trial_1)
(:domain alfred)
(:objects
    agent1 - agent
    Mug - object          ; a bare type name, as the files have it
    Mug_bar_9 - object    ; declared without a fact
    Mug_bar_1 - object
    Bowl_bar_1 - object
    Fork_bar_1 - object
    Tray_bar_1 - object
    Fridge_bar_1 - receptacle
    Shelf_bar_1 - receptacle
    loc_bar_1 - location
    loc_bar_2 - location
)
(:init
    (receptacleType Fridge_bar_1 FridgeType)
    (receptacleType Shelf_bar_1 ShelfType)
    (receptacleAtLocation Fridge_bar_1 loc_bar_1)
    (receptacleAtLocation Shelf_bar_1 loc_bar_1)
    (canContain ShelfType MugType)
    (canContain ShelfType MugType)
    (openable Fridge_bar_1)
    (objectType Mug_bar_1 MugType)
    (objectType Bowl_bar_1 BowlType)
    (inReceptacle Mug_bar_1 Fridge_bar_1)
    (inReceptacle Mug_bar_1 Shelf_bar_1)
    (inReceptacleObject Fork_bar_1 Tray_bar_1)
    (isReceptacleObject Bowl_bar_1)
    (pickupable Mug_bar_1)
    (isCool Mug_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_1)
    (atLocation agent1 loc_bar_2)
)
(:goal
    (and
        (exists (?r - receptacle)
            (exists (?o - object)
                (and
                    (inReceptacle ?o ?r)
                    (objectType ?o MugType)
                    (receptacleType ?r ShelfType)
                )
            )
        )
    )
)
)
"""
GAME = GameData(
    name="plan_trial_1",
    task="put a mug in shelf",
    goal=GameGoal("pick_and_place_simple", "Mug", "Shelf"),
    agent_location="loc_bar_2",
    receptacles=(
        Receptacle("Fridge_bar_1", "Fridge", "loc_bar_1", openable=True),
        Receptacle("Shelf_bar_1", "Shelf", "loc_bar_1"),
    ),
    things=(
        Thing("Bowl_bar_1", "Bowl", properties=frozenset({"isReceptacleObject"})),
        Thing("Fork_bar_1", "", inside=("Tray_bar_1",)),
        Thing(
            "Mug_bar_1",
            "Mug",
            ("Fridge_bar_1", "Shelf_bar_1"),
            ("loc_bar_1",),
            properties=frozenset({"pickupable", "isCool"}),
        ),
        Thing("Tray_bar_1", ""),
    ),
    can_contain=frozenset({("Shelf", "Mug")}),
    walkthrough=("look",),
)


def write(path: Path, **changes: object) -> Path:
    content = {
        "pddl_domain": "",
        "grammar": GRAMMAR.replace("UNKNOWN GOAL", "put a mug in shelf"),
        "pddl_problem": PROBLEM,
        "solvable": True,
        "walkthrough": ["look"],
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


def test_a_file_is_read_fact_by_fact(tmp_path):
    assert load_game(write(tmp_path / "game.tw-pddl")) == GAME


@pytest.mark.parametrize(
    "goal",
    [
        GameGoal("pick_and_place_simple", "Mug", "Shelf"),
        GameGoal("look_at_obj_in_light", "Mug", None, "DeskLamp"),
        GameGoal("pick_clean_then_place_in_recep", "Mug", "Shelf"),
        GameGoal("pick_heat_then_place_in_recep", "Mug", "Shelf"),
        GameGoal("pick_cool_then_place_in_recep", "Mug", "Shelf"),
        GameGoal("pick_two_obj_and_place", "Mug", "Shelf"),
    ],
    ids=lambda goal: goal.task_type,
)
def test_what_is_written_is_read_back(kitchen, tmp_path, goal):
    game = kitchen(goal=goal, walkthrough=("go to shelf 1", "look"))
    save_game(game, tmp_path / "game.tw-pddl", domain="(domain)", grammar=GRAMMAR)
    read = load_game(tmp_path / "game.tw-pddl")
    assert read.things == tuple(sorted(game.things, key=lambda thing: thing.id))
    changed = {name for name in GameData.__dataclass_fields__ if getattr(read, name) != getattr(game, name)}
    assert changed <= {"things"}
    content = json.loads((tmp_path / "game.tw-pddl").read_text())
    assert content["pddl_domain"] == "(domain)"
    assert content["grammar"] == GRAMMAR.replace("UNKNOWN GOAL", game.task)
    assert content["solvable"] is True


@pytest.mark.parametrize("small", [False, True])
def test_a_problem_declares_all_that_it_and_the_rules_name(kitchen, small):
    goal = GameGoal("look_at_obj_in_light", "Watch", None, "FloorLamp")
    text = problem_to_pddl(dataclasses.replace(GAME, goal=goal) if small else kitchen(goal=goal))
    declared = re.findall(r"^ {2}(\S+) - \w+$", text, re.MULTILINE)
    assert len(declared) == len(set(declared))
    named = set(re.findall(r"\b(?:\w+_bar_\w+|[A-Z]\w+Type|agent1)\b", text.partition("(:init")[2]))
    assert {"WatchType", "FloorLampType", "Mug_bar_1"} < named
    assert named | {"MicrowaveType", "FridgeType", "SinkBasinType", "KnifeType", "ButterKnifeType"} <= set(declared)


def test_a_goal_of_no_known_kind_is_named(tmp_path):
    problem = PROBLEM.replace("(inReceptacle ?o ?r)", "(isSliced ?o)")
    assert problem != PROBLEM
    with pytest.raises(DataError, match=r"game\.tw-pddl: the goal is none of ALFWorld's six kinds .*isSliced \?o"):
        load_game(write(tmp_path / "game.tw-pddl", pddl_problem=problem))


def test_a_goal_whose_two_types_differ_is_refused(kitchen):
    text = problem_to_pddl(kitchen(goal=GameGoal("pick_two_obj_and_place", "Mug", "Shelf")))
    broken = text.replace("(objectType ?o2 MugType)", "(objectType ?o2 PlateType)")
    assert broken != text
    with pytest.raises(DataError, match="none of ALFWorld's six kinds"):
        parse_problem(broken, task="t")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pddl_problem": "(define nothing)"}, "the problem is not laid out as"),
        ({"pddl_problem": PROBLEM.replace("(atLocation agent1 loc_bar_2)", "")}, "plan_trial_1 lacks a fact"),
        ({"pddl_problem": PROBLEM.replace("(receptacleAtLocation Shelf_bar_1 loc_bar_1)", "")}, "lacks a fact"),
        ({"pddl_problem": None}, "the problem is not laid out as"),
        ({"walkthrough": 3}, "expected JSON with pddl_problem and grammar"),
        ({"grammar": "none"}, 'the grammar holds no sentence "Your task is to: '),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        load_game(write(tmp_path / "game.tw-pddl", **changes))


@pytest.mark.parametrize("text", ["{", "[]", '{"grammar": ""}'])
def test_what_is_no_game_file_is_refused(tmp_path, text):
    (tmp_path / "game.tw-pddl").write_text(text)
    with pytest.raises(DataError, match=r"game\.tw-pddl: no game\.tw-pddl file"):
        load_game(tmp_path / "game.tw-pddl")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.tw-pddl: cannot read the game: No such file"):
        load_game(tmp_path / "none.tw-pddl")


def test_a_grammar_without_its_sentence_is_refused(kitchen, tmp_path):
    with pytest.raises(DataError, match="found 0"):
        save_game(kitchen(), tmp_path / "game.tw-pddl", domain="", grammar="{}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Lay out a split with one good game a task type, and one game for every reason to leave it out."""
    split = tmp_path / "json_2.1.1" / "train"

    def add(task: str, task_type: str, **changes: object) -> Path:
        folder = split / task / "trial_1"
        folder.mkdir(parents=True)
        (folder / "traj_data.json").write_text(json.dumps({"task_type": task_type}))
        return write(folder / "game.tw-pddl", **changes)

    for task_type in TASK_TYPES:
        add(f"{task_type}-Mug-None-Shelf-1", task_type)
    add("pick_and_place_with_movable_recep-Mug-Bowl-Shelf-1", "pick_and_place_simple")
    add("pick_and_place_simple-MugSliced-None-Shelf-1", "pick_and_place_simple")
    add("pick_and_place_simple-Mug-None-Shelf-2", "pick_and_place_simple", solvable=False)
    add("pick_and_place_simple-Mug-None-Shelf-3", "another type")
    add("pick_and_place_simple-Mug-None-Shelf-4", "pick_and_place_simple").unlink()
    add("pick_and_place_simple-Mug-None-Shelf-5", "pick_and_place_simple").with_name("traj_data.json").unlink()
    (split.parent / "valid_seen").mkdir()
    return tmp_path


def test_games_are_found_by_the_official_rules(data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    games = find_games("train")
    assert [path.parts[-3] for path in games] == sorted(f"{task_type}-Mug-None-Shelf-1" for task_type in TASK_TYPES)
    assert {path.parts[-2:] for path in games} == {("trial_1", "game.tw-pddl")}
    assert find_games("train", data) == games


def test_games_are_filtered_by_task_type(data):
    (game,) = find_games("train", data, ["look_at_obj_in_light"])
    assert game.parts[-3].startswith("look_at_obj_in_light")


def test_a_data_folder_may_be_called_as_tasks_that_are_left_out(data):
    moved = data.rename(data.with_name("movable-Sliced"))
    assert len(find_games("train", moved)) == 6


def test_missing_data_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(DataError, match=r"^set ALFWORLD_DATA to the folder that holds json_2\.1\.1"):
        find_games("train")
    with pytest.raises(DataError, match=r"holds no folder json_2\.1\.1"):
        find_games("train", tmp_path)


def test_an_unknown_split_or_task_type_gets_a_suggestion(data):
    with pytest.raises(
        DataError, match=r"no split 'valid_sen'; it has train, valid_seen\. Did you mean 'valid_seen'\?"
    ):
        find_games("valid_sen", data)
    for outside in ("../json_2.1.1/train", str(data / "json_2.1.1" / "train"), ".", "..", "", "train/../train"):
        with pytest.raises(DataError, match=r"no split '.*'; it has train, valid_seen\."):
            find_games(outside, data)
    with pytest.raises(DataError, match=r"no task type is called 'look_at_obj'\. Did you mean 'look_at_obj_in_light'"):
        find_games("train", data, ["look_at_obj"])
    with pytest.raises(DataError, match="holds no playable game of the task types"):
        find_games("valid_seen", data)


@pytest.mark.parametrize(("there", "missing"), [("game.tw-pddl", "traj_data.json"), ("traj_data.json", "game.tw-pddl")])
def test_a_missing_file_of_a_game_is_named(tmp_path, there, missing):
    folder = tmp_path / "json_2.1.1" / "train" / "pick_and_place_simple-Mug-None-Shelf-1" / "trial_1"
    folder.mkdir(parents=True)
    (folder / there).write_text("{}")
    with pytest.raises(
        DataError,
        match=rf"holds no playable game .* 1 of its folders hold {there} but no {missing}, such as .*trial_1;",
    ):
        find_games("train", tmp_path)


@pytest.mark.data
def test_real_games_are_read_fast_and_survive_being_written(alfworld_games):
    begun = time.process_time()
    games = [load_game(path) for path in alfworld_games]
    assert (time.process_time() - begun) / len(games) < 0.010
    assert {game.goal.task_type for game in games} == set(TASK_TYPES)
    for game in games:
        read = parse_problem(problem_to_pddl(game), task=game.task, walkthrough=game.walkthrough)
        assert read == game
