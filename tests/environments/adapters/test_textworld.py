"""TextWorld's own games, made and played by the real package; skipped where it is missing."""

import json
import os
import pickle
import shutil
import sys
from typing import Any

import pytest
from tests.needs import needs

from turnwise.base.errors import ConfigError, DataError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.adapters.textworld import CHALLENGES

real = needs("textworld")


def suite(max_steps: int = 20, **options) -> Any:
    options = {"num_train": 2, "num_valid": 1, **options}
    return make_suite(EnvironmentConfig(name="textworld", max_steps=max_steps, options=options))


def coins(**options) -> Any:
    return suite(**{"challenge": "coin_collector", "settings": {"level": 3}, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "wants one of environment.options.challenge and games"),
        ({"challenge": "simple", "games": "here"}, "wants one of environment.options.challenge and games"),
        ({"games": "here", "settings": {"level": 1}}, "settings is only for generated games"),
        ({"challenge": "simple", "reward": "gains"}, "Did you mean 'gain'?"),
        ({"challenge": "simple", "num_valid": 0}, "expected a whole number of games, 1 or more"),
    ],
)
def test_a_wrong_option_is_one_line_even_without_the_package(options, message):
    with pytest.raises(ConfigError) as caught:
        suite(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ConfigError, match=r"pip install 'turnwise-rl\[textworld\]'"):
        coins()


@real
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"challenge": "coins"}, "no such challenge."),
        ({"challenge": "cokking"}, "Did you mean 'cooking'?"),
        ({"challenge": "coin_collector", "settings": {"levl": 3}}, "Did you mean 'level'?"),
        ({"challenge": "coin_collector", "settings": {"level": "3"}}, "settings.level='3': expected int"),
        ({"challenge": "cooking", "settings": {"go": 7}}, "settings.go=7: expected one of 1, 6, 9, 12"),
        ({"challenge": "cooking", "settings": {"cut": 1}}, "settings.cut=1: expected bool"),
        ({"challenge": "cooking", "settings": {"split": "test"}}, "cooking has no such setting"),
    ],
)
def test_a_wrong_setting_is_one_line(options, message):
    with pytest.raises(ConfigError) as caught:
        suite(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@real
@pytest.mark.parametrize("challenge", CHALLENGES)
def test_every_challenge_is_made_once_and_won_by_its_policy(challenge, monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    made = suite(max_steps=50, challenge=challenge)
    task = made.tasks("valid")[0]
    assert pickle.loads(pickle.dumps(task)) == task
    turns = made.demonstrate(task, noise=0.0, seed=0)
    assert turns
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(path.suffix for path in files) == [".json", ".z8"]
    environment = made.environment(task)
    start = environment.start()
    assert "$$$" not in start.observation
    assert start.info == {"success": False, "score": 0.0, "task_type": challenge}
    steps = [environment.step(turn.response) for turn in turns]
    assert all(step.valid for step in steps)
    assert (steps[-1].terminated, steps[-1].info["success"], steps[-1].info["score"]) == (True, True, 1.0)
    assert sum(step.reward for step in steps) == pytest.approx(10.0)
    with pytest.raises(EnvironmentFault, match="after the end"):
        environment.step("look")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == files


@real
def test_it_is_sound():
    assert check_environment(coins(), num_tasks=2) == []


@real
def test_games_differ_by_seed_and_cooking_by_recipe():
    made = suite(challenge="cooking", num_train=3)
    openings = [made.environment(task).start().observation for task in coins(num_train=3).tasks("train")]
    assert len(set(openings)) == 3
    foods = {
        turn.response
        for task in made.tasks("train")
        for turn in made.demonstrate(task, noise=0.0, seed=0)
        if "take" in turn.response
    }
    assert len(foods) > 1
    for split in ("train", "valid", "test"):
        assert {json.loads(task.settings)["split"] for task in made.tasks(split)} == {split}
    names = {split: {made.task_name(task) for task in made.tasks(split)} for split in ("train", "valid", "test")}
    assert not names["train"] & names["valid"]
    assert not names["valid"] & names["test"]
    with pytest.raises(ConfigError, match=r"no split 'vald'\. Did you mean 'valid'"):
        made.tasks("vald")


@real
def test_environments_side_by_side_are_as_they_are_alone():
    made = coins(num_train=2)
    first, second = made.tasks("train")
    scripts = {task: [turn.response for turn in made.demonstrate(task, noise=0.5, seed=3)] for task in (first, second)}
    alone = {}
    for task, script in scripts.items():
        environment = made.environment(task)
        alone[task] = [environment.start().observation, *(environment.step(action).observation for action in script)]
    environments = {task: made.environment(task) for task in scripts}
    beside = {task: [environment.start().observation] for task, environment in environments.items()}
    for turn in range(max(map(len, scripts.values()))):
        for task, script in scripts.items():
            if turn < len(script):
                beside[task].append(environments[task].step(script[turn]).observation)
    assert beside == alone


@real
@pytest.mark.parametrize("response", ["", "save", "Quit", "restart now", "undo", "a" * 2000, "é" * 100])
def test_what_is_no_command_for_the_game_does_not_reach_it(response, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    made = coins(state_key="state")
    environment = made.environment(made.tasks("train")[0])
    before = environment.start()
    step = environment.step(response)
    assert (step.valid, step.ended, step.state_key) == (False, False, before.state_key)
    assert step.observation == "That is no command."
    assert environment.step("  look\n").valid
    assert list(tmp_path.iterdir()) == []


@real
def test_what_the_game_does_not_know_is_invalid_and_the_limit_truncates():
    made = coins(max_steps=2, admissible=False)
    environment = made.environment(made.tasks("train")[0])
    with pytest.raises(EnvironmentFault, match="before start"):
        environment.step("look")
    assert environment.start().admissible is None
    assert not environment.step("go nowhere").valid
    last = environment.step("look")
    assert (last.valid, last.truncated, last.terminated) == (True, True, False)


@real
@pytest.mark.parametrize("reward", ["gain", "final", "success"])
def test_rewards_add_up_to_the_same_for_a_win(reward):
    made = suite(challenge="simple", settings={"rewards": "dense"}, reward=reward, max_steps=30)
    task = made.tasks("train")[0]
    environment, turns = made.environment(task), made.demonstrate(task, noise=0.0, seed=0)
    environment.start()
    rewards = [environment.step(turn.response).reward for turn in turns]
    assert sum(rewards) == pytest.approx(10.0)
    assert (sum(reward > 0 for reward in rewards) > 1) == (reward == "gain")
    short = suite(challenge="simple", settings={"rewards": "dense"}, reward=reward, max_steps=len(turns) - 1)
    environment = short.environment(task)
    environment.start()
    total = sum(environment.step(turn.response).reward for turn in turns[:-1])
    assert (0 < total < 10) if reward != "success" else total == 0


@real
def test_games_of_a_folder(tmp_path):
    generated = coins()
    for split, task in (("train", generated.tasks("train")[0]), ("valid", generated.tasks("valid")[0])):
        (tmp_path / "games" / split).mkdir(parents=True)
        for suffix in (".z8", ".json"):
            shutil.copy(task.path().with_suffix(suffix), tmp_path / "games" / split / f"coin{suffix}")
    bare = tmp_path / "games" / "bare"
    bare.mkdir()
    shutil.copy(generated.tasks("train")[0].path(), bare)  # without TextWorld's file beside
    made = suite(games=str(tmp_path / "games"))
    (task,) = made.tasks("train")
    assert made.task_name(task) == "train/coin.z8"
    turns = made.demonstrate(task, noise=0.0, seed=0)
    environment = made.environment(task)
    environment.start()
    assert [environment.step(turn.response) for turn in turns][-1].info["success"]
    (task,) = made.tasks("bare")
    environment = made.environment(task)
    assert "-=" in environment.start().observation  # the name of a room
    step = environment.step("inventory")
    assert (step.valid, step.admissible) == (True, None)
    assert made.demonstrate(task, noise=0.0, seed=0) is None
    with pytest.raises(DataError, match=r"has no folder 'vald'\. Did you mean 'valid'"):
        made.tasks("vald")
    (tmp_path / "games" / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no game; expected files that end in \.z1 to \.z8"):
        made.tasks("empty")
    with pytest.raises(DataError, match="is not a folder"):
        suite(games=str(tmp_path / "nowhere")).tasks("train")


@real
def test_environments_leave_nothing_open():
    made = coins()
    task = made.tasks("train")[0]
    for round in range(30):
        environment = made.environment(task)
        environment.start()
        environment.step("look")
        if round == 5:
            files, loaded = len(os.listdir("/proc/self/fd")), maps()
    assert len(os.listdir("/proc/self/fd")) <= files
    assert maps() <= loaded + 20


def maps() -> int:
    """Copies of the interpreter that are loaded."""
    with open("/proc/self/maps") as file:
        return sum("frotz" in line for line in file)
