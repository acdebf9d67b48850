"""Grid games: FrozenLake on random maps, Sokoban in random rooms, and the expert of both."""

import importlib
from typing import Any

import pytest
from tests.needs import reason

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.words import split_words
from turnwise.worlds.grids.base import Map
from turnwise.worlds.grids.frozen_lake import GAME, random_lake
from turnwise.worlds.grids.sokoban import SokobanEnvironment, random_room, read_map

pytest.importorskip("gymnasium", reason=reason("gymnasium"))

GAMES = ["frozen_lake", "sokoban"]
LAKE = Map(5, ("SHFF", "FHFH", "FFFH", "HFFG"))
ROOM = ("######", "#@$-.#", "#-#--#", "#----#", "#----#", "######")


def suite(name: str, max_steps: int = 30, **options: Any) -> Any:
    options = {"num_train": 30, "num_valid": 10, **options}
    return make_suite(EnvironmentConfig(name=name, max_steps=max_steps, success_reward=3.0, options=options))


@pytest.mark.parametrize("name", GAMES)
def test_maps_are_the_same_each_time_and_in_one_split_only(name):
    made = suite(name)
    splits = {split: list(made.tasks(split)) for split in ("train", "valid", "test")}
    assert [len(tasks) for tasks in splits.values()] == [30, 10, 10]
    lines = [task.lines for tasks in splits.values() for task in tasks]
    assert len(set(lines)) == 50
    assert [made.task_name(task) for task in splits["valid"]] == [str(task.seed) for task in splits["valid"]]
    assert list(suite(name).tasks("valid")) == splits["valid"]
    assert list(suite(name, num_train=5).tasks("train")) == splits["train"][:5]


def test_a_lake_is_the_one_that_gymnasium_draws():
    theirs = importlib.import_module(GAME).generate_random_map
    for seed in range(30):
        assert random_lake(seed, size=5, frozen_frac=0.6) == tuple(theirs(size=5, p=0.6, seed=seed))


def test_all_small_lakes_divide_among_the_splits():
    splits = {}
    for split in ("train", "valid", "test"):
        with pytest.raises(ConfigError, match=r"has about \d+ maps of this kind, expected 4") as caught:
            suite("frozen_lake", size=2, num_train=4, num_valid=4).tasks(split)
        splits[split] = int(str(caught.value).split("about ")[1].split()[0])
    assert sum(splits.values()) == 3  # of a 2x2 map, two places are free, and one of them is ice


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_demonstrations_win(name, noise):
    made = suite(name, max_steps=60)
    lengths = []
    for number, task in enumerate(made.tasks("train")):
        turns = made.demonstrate(task, noise=noise, seed=number)
        assert turns is not None or noise
        if turns is None:
            continue
        environment = made.environment(task)
        steps = [environment.start(), *(environment.step(turn.response) for turn in turns)]
        assert steps[-1].info["success"]
        assert noise or all(turn.imitate and step.valid for turn, step in zip(turns, steps[1:], strict=True))
        lengths.append((len(turns), len(made.plan(task, made.state(made_fresh(made, task))))))
        assert made.demonstrate(task, noise=noise, seed=number) == turns
    assert len(lengths) >= 25
    assert all(played >= shortest for played, shortest in lengths)
    assert noise or all(played == shortest for played, shortest in lengths)
    assert not noise or any(played > shortest for played, shortest in lengths)


def made_fresh(made: Any, task: Any) -> Any:
    environment = made.environment(task)
    environment.start()
    return environment


@pytest.mark.parametrize("name", GAMES)
def test_a_tiny_policy_knows_all_words(name):
    made = suite(name)
    known, heard = set(made.words()), set()
    for number, task in enumerate(made.tasks("train")):
        environment = made.environment(task)
        heard |= set(split_words(environment.start().observation))
        for turn in made.demonstrate(task, noise=0.3, seed=number) or ():
            heard |= set(split_words(turn.response))
            heard |= set(split_words(environment.step(turn.response).observation))
    assert heard <= known
    assert {"left", "down", "right", "up"} <= heard


@pytest.mark.parametrize("name", GAMES)
def test_the_environments_are_sound(name):
    assert check_environment(suite(name)) == []


def test_the_shortest_way_over_the_ice():
    made = suite("frozen_lake")
    environment = made_fresh(made, LAKE)
    plan = made.plan(LAKE, made.state(environment))
    assert len(plan) == 6  # three down, three right; the first two must be down
    assert plan[:2] == ["down", "down"]
    assert made.plan(LAKE, (0, 2)) is not None
    assert made.plan(Map(0, ("SH", "HG")), (0, 0)) is None


def test_the_agent_is_seen_on_the_map():
    environment = suite("frozen_lake").environment(LAKE)
    assert environment.start().observation == "@ H F F\nF H F H\nF F F H\nH F F G\nActions: left, down, right, up"
    step = environment.step("down")
    assert step.observation == step.state_key == "S H F F\n@ H F H\nF F F H\nH F F G"
    assert environment.step("right").terminated  # a hole


def test_slippery_ice_slips_alike_for_the_same_task():
    made = suite("frozen_lake", slippery=True)
    plays = []
    for task in [*made.tasks("train")] * 2:
        environment = made_fresh(made, task)
        plays.append(environment.step("left").observation)
    assert plays[:30] == plays[30:]
    moved = [made.task_name(task) for task, seen in zip(made.tasks("train"), plays, strict=False) if seen[0] != "@"]
    assert 0 < len(moved) < 30  # left of the start is the edge; one slip in three goes down


def test_a_box_is_pushed_to_its_goal():
    environment = SokobanEnvironment(ROOM, success_reward=3.0)
    assert environment.start().observation.splitlines()[1] == "# @ $ - . #"
    first = environment.step("right")
    assert (first.observation.splitlines()[1], first.reward, first.ended) == ("# - @ $ . #", 0.0, False)
    last = environment.step("right")
    assert last.observation.splitlines()[1] == "# - - @ * #"
    assert (last.reward, last.terminated, last.info["success"]) == (3.0, True, True)
    with pytest.raises(EnvironmentFault, match="after the end"):
        environment.step("left")


def walled(lines: tuple[str, str]) -> tuple[str, ...]:
    """A room whose upper half is given."""
    return ("######", *(f"#{line}#" for line in (*lines, "----", "----")), "######")


@pytest.mark.parametrize(
    ("lines", "move", "after"),
    [
        (("@$$-", "-..-"), "right", ("@$$-", "-..-")),  # two boxes
        (("@$#-", "-.--"), "right", ("@$#-", "-.--")),  # a wall behind the box
        (("--@$", ".---"), "right", ("--@$", ".---")),  # the end of the map
        (("@-$.", "----"), "left", ("@-$.", "----")),  # the player at the end of the map
        (("$@-.", "----"), "right", ("$-@.", "----")),  # nobody pulls
        (("+$--", "----"), "right", (".@$-", "----")),  # off a goal
        (("-@*-", "----"), "right", ("--+$", "----")),  # a box off a goal, and the player on it
    ],
)
def test_moves_follow_sokobans_rules(lines, move, after):
    room, state = read_map(walled(lines))
    assert room.draw(room.move(state, move)) == walled(after)


def test_what_is_no_move_changes_nothing():
    environment = SokobanEnvironment(ROOM, max_steps=3)
    start = environment.start()
    steps = [environment.step(response) for response in ("push right", "up", "")]
    assert [step.valid for step in steps] == [False, True, False]
    assert {step.state_key for step in steps} == {start.state_key}
    assert [step.truncated for step in steps] == [False, False, True]
    with pytest.raises(EnvironmentFault, match="after the end"):
        environment.step("right")
    with pytest.raises(EnvironmentFault, match=r"before start\(\)"):
        SokobanEnvironment(ROOM).step("right")


@pytest.mark.parametrize("num_boxes", [1, 2])
def test_every_room_can_be_solved_and_not_at_once(num_boxes):
    made = suite("sokoban", num_boxes=num_boxes, min_moves=6)
    for task in made.tasks("train"):
        room, state = read_map(task.lines)
        assert len(room.goals) == len(state.boxes) == num_boxes
        assert not room.goals & state.boxes
        assert room.draw(state) == task.lines
        assert len(made.plan(task, state)) >= 6


def test_a_stuck_box_has_no_plan():
    made = suite("sokoban")
    stuck = ("#####", "#$--#", "#-@-#", "#--.#", "#####")
    assert made.plan(Map(0, stuck), read_map(stuck)[1]) is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("frozen_lake", {"size": 1}, "frozen_lake has size=1"),
        ("frozen_lake", {"frozen_frac": 0.0}, "frozen_frac=0.0"),
        (
            "frozen_lake",
            {"size": 8, "frozen_frac": 0.05},
            "none of 1000 maps with size=8 and frozen_frac=0.05 has a way to the goal",
        ),
        ("sokoban", {"size": 3}, "sokoban has no rooms with size=3"),
        ("sokoban", {"min_moves": 60}, "found no sokoban room with .*min_moves=60"),
    ],
)
def test_maps_that_cannot_be_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        suite(name, **options).tasks("train")


@pytest.mark.parametrize("name", GAMES)
def test_a_mistaken_option_is_said(name):
    with pytest.raises(ConfigError, match=r"has no option 'sise'. Did you mean 'size'\?"):
        suite(name, sise=4)
    with pytest.raises(ConfigError, match="num_valid=0: expected a whole number of maps"):
        suite(name, num_valid=0)
    with pytest.raises(ConfigError, match=r"no split 'vald'. Did you mean 'valid'\?"):
        suite(name).tasks("vald")
    with pytest.raises(ConfigError, match=r"max_steps is 0"):
        SokobanEnvironment(ROOM, max_steps=0)


def test_a_room_depends_on_its_seed_only():
    assert random_room(3) == random_room(3)
    assert len({random_room(seed) for seed in range(20)}) > 15
