"""ALFWorld behind the environment protocol."""

import pickle

import pytest
from tests.environments.alfworld.written import save_game

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Environment
from turnwise.worlds.alfworld.environment import AlfworldEnvironment
from turnwise.worlds.alfworld.game import GameGoal

MUG_ON_SHELF = GameGoal("pick_and_place_simple", "Mug", "Shelf")
SOLUTION = ("go to countertop 1", "take mug 1 from countertop 1", "go to shelf 1", "move mug 1 to shelf 1")


def test_it_follows_the_protocol(kitchen):
    assert isinstance(AlfworldEnvironment(kitchen()), Environment)


def test_the_start_shows_the_room_and_the_task_without_the_banner(kitchen):
    start = AlfworldEnvironment(kitchen()).start()
    assert start.observation == (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, a countertop 1,"
        " a drawer 1, a fridge 1, a microwave 1, a shelf 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a clean mug in shelf."
    )
    assert not start.ended
    assert start.reward == 0
    assert start.state_key is None
    assert start.admissible is not None
    assert "go to fridge 1" in start.admissible
    assert start.info == {"success": False, "task_type": "pick_clean_then_place_in_recep"}


def test_reaching_the_goal_ends_with_the_reward(kitchen):
    environment = AlfworldEnvironment(kitchen(goal=MUG_ON_SHELF), success_reward=2.5)
    environment.start()
    steps = [environment.step(command) for command in SOLUTION]
    assert [step.reward for step in steps] == [0, 0, 0, 2.5]
    assert [step.terminated for step in steps] == [False, False, False, True]
    assert not any(step.truncated or not step.valid for step in steps)
    assert steps[-1].observation == "You move the mug 1 to the shelf 1."
    assert [step.info["success"] for step in steps] == [False, False, False, True]


def test_the_default_reward_is_ten(kitchen):
    environment = AlfworldEnvironment(kitchen(goal=MUG_ON_SHELF))
    environment.start()
    assert [environment.step(command).reward for command in SOLUTION][-1] == 10


@pytest.mark.parametrize("response", ["dance", "", "go to moon 1", "Go to fridge 1", "<action>look</action>"])
def test_what_is_not_admissible_is_invalid_and_counts_as_a_step(kitchen, response):
    environment = AlfworldEnvironment(kitchen(), max_steps=2)
    admissible = environment.start().admissible
    step = environment.step(response)
    assert (step.observation, step.valid, step.reward) == ("Nothing happens.", False, 0)
    assert step.admissible == admissible
    assert environment.step("look").truncated


def test_white_space_around_a_command_is_ignored(kitchen):
    environment = AlfworldEnvironment(kitchen())
    environment.start()
    step = environment.step("  go to shelf 1\n")
    assert step.valid
    assert step.observation.startswith("You arrive at shelf 1.")


def test_the_last_step_truncates_unless_it_wins(kitchen):
    environment = AlfworldEnvironment(kitchen(goal=MUG_ON_SHELF), max_steps=4)
    environment.start()
    last = [environment.step(command) for command in SOLUTION][-1]
    assert (last.terminated, last.truncated) == (True, False)
    environment = AlfworldEnvironment(kitchen(goal=MUG_ON_SHELF), max_steps=3)
    environment.start()
    last = [environment.step(command) for command in SOLUTION[:3]][-1]
    assert (last.terminated, last.truncated, last.reward) == (False, True, 0)


def test_a_game_that_begins_won_ends_with_the_first_step(kitchen):
    environment = AlfworldEnvironment(kitchen(goal=GameGoal("pick_cool_then_place_in_recep", "Apple", "Fridge")))
    start = environment.start()
    assert not start.ended
    assert start.info["success"]
    assert environment.step("look").terminated


def test_no_step_before_the_start_or_after_the_end(kitchen):
    environment = AlfworldEnvironment(kitchen(), max_steps=1)
    with pytest.raises(EnvironmentFault, match=r"step\(\) before start\(\) of kitchen"):
        environment.step("look")
    environment.start()
    environment.step("look")
    with pytest.raises(EnvironmentFault, match=r"step\(\) after the end of kitchen"):
        environment.step("look")


def test_the_state_as_key_tells_apart_what_the_text_does_not(kitchen):
    environment = AlfworldEnvironment(kitchen(), state_key="state")
    environment.start()
    first = environment.step("go to shelf 1")
    environment.step("close cabinet 1")
    environment.step("go to drawer 1")
    second = environment.step("go to shelf 1")
    environment.step("open cabinet 1")
    environment.step("go to drawer 1")
    third = environment.step("go to shelf 1")
    assert first.observation == second.observation == third.observation
    assert first.state_key != second.state_key
    assert first.state_key == third.state_key
    assert len({first.state_key, second.state_key, third.state_key}) == 2


def test_a_task_is_a_game_a_path_or_a_pickled_game(kitchen, tmp_path):
    path = tmp_path / "game.tw-pddl"
    save_game(kitchen(), path, domain="", grammar='Your task is to: UNKNOWN GOAL."')
    observations = {
        AlfworldEnvironment(task).start().observation
        for task in (kitchen(), pickle.loads(pickle.dumps(kitchen())), path, str(path))
    }
    assert len(observations) == 1
    assert AlfworldEnvironment(path).game is AlfworldEnvironment(str(path)).game


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_key": "stat"}, "state_key is 'stat'. Did you mean 'state'"),
        ({"max_steps": 0}, "max_steps is 0; it must be"),
    ],
)
def test_wrong_options_are_refused(kitchen, options, message):
    with pytest.raises(ConfigError, match=message):
        AlfworldEnvironment(kitchen(), **options)


@pytest.mark.data
def test_walkthroughs_of_real_games_earn_the_reward(alfworld_games):
    for path in alfworld_games:
        environment = AlfworldEnvironment(path, max_steps=200)
        environment.start()
        steps = [environment.step(command) for command in environment.game.walkthrough]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [10.0], path
        assert steps[-1].info["success"]
