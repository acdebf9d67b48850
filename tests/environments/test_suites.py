"""Suites: environments by name, and a person's own by `module:factory`."""

import asyncio
import dataclasses
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.environments.alfworld.written import save_game
from tests.needs import needs
from tests.toys import COLORS, Colors

from turnwise.base.errors import ConfigError, DataError, EnvironmentFault
from turnwise.base.imports import import_named
from turnwise.base.register import ENVIRONMENTS
from turnwise.environments.base import Demonstrated
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Seeded, make_suite, tasks_of
from turnwise.environments.workers import make_environments
from turnwise.worlds.alfworld.files import GAME_FILE, TRAJECTORY_FILE
from turnwise.worlds.alfworld.generate import generate_game
from turnwise.worlds.alfworld.suite import Household

TINY = {"size": "tiny", "num_train": 6, "num_valid": 4}


def suite(name: str = "household", max_steps: int = 20, **options) -> Any:
    return make_suite(EnvironmentConfig(name=name, max_steps=max_steps, options=options))


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """A suite that nothing can be added to."""

    config: EnvironmentConfig

    def tasks(self, split):
        return range(2)

    def task_name(self, task):
        return f"task {task}"


def test_a_suite_with_slots_names_its_tasks():
    assert suite(f"{__name__}:Slotted").task_name(1) == "task 1"


def test_household_has_the_games_that_were_asked_for():
    made = suite(**TINY)
    assert isinstance(made, Household)
    assert {split: len(made.tasks(split)) for split in ("train", "valid", "test")} == {
        "train": 6,
        "valid": 4,
        "test": 4,
    }
    names = [made.task_name(task) for split in ("train", "valid", "test") for task in made.tasks(split)]
    assert len(set(names)) == len(names)
    assert [made.task_name(task) for task in suite(**TINY).tasks("train")] == names[:6]


def test_household_demonstrations_win():
    made = suite(**TINY)
    won = 0
    for noise in (0.0, 0.3):
        for number, task in enumerate(made.tasks("train")):
            turns = made.demonstrate(task, noise=noise, seed=number)
            if turns is None:
                continue
            environment = made.environment(task)
            environment.start()
            steps = [environment.step(turn.response) for turn in turns]
            assert steps[-1].info["success"]
            assert not any(step.ended for step in steps[:-1])
            won += 1
            assert noise or all(turn.imitate for turn in turns)
    assert won >= 8


def test_a_demonstration_depends_on_its_seed_only():
    made = suite(**TINY)
    task = made.tasks("train")[0]
    assert made.demonstrate(task, noise=0.5, seed=1) == made.demonstrate(task, noise=0.5, seed=1)
    assert made.demonstrate(task, noise=0.5, seed=1) != made.demonstrate(task, noise=0.5, seed=2)


def test_the_settings_reach_the_environment():
    made = make_suite(EnvironmentConfig(max_steps=2, success_reward=3.0, options={**TINY, "state_key": "state"}))
    environment: Any = made.environment(made.tasks("train")[0])
    first = environment.start()
    assert first.state_key is not None
    assert not environment.step("look").ended
    assert environment.step("look").truncated
    task = made.tasks("train")[0]
    played: Any = make_suite(EnvironmentConfig(max_steps=20, success_reward=3.0, options=TINY)).environment(task)
    played.start()
    assert [played.step(command).reward for command in task.walkthrough][-1] == 3.0


def test_the_walkthrough_of_a_game_may_be_its_demonstration():
    made = suite(**TINY, demonstrator="walkthrough")
    for task in made.tasks("train"):
        turns = made.demonstrate(task, noise=0.5, seed=0)
        assert tuple(turn.response for turn in turns) == task.walkthrough
        assert all(turn.imitate for turn in turns)


@pytest.mark.parametrize("demonstrator", [{}, {"demonstrator": "expert"}])
def test_alfworld_plays_the_games_of_its_data(tmp_path, demonstrator):
    for number in (1, 2):
        folder = tmp_path / "json_2.1.1" / "valid_seen" / f"game-{number}" / "trial"
        folder.mkdir(parents=True)
        game = generate_game(number)
        (folder / TRAJECTORY_FILE).write_text(json.dumps({"task_type": game.goal.task_type}))
        save_game(game, folder / GAME_FILE, domain="", grammar='Your task is to: UNKNOWN."')
    made = suite("alfworld", data=str(tmp_path), **demonstrator)
    tasks = made.tasks("valid_seen")
    assert [made.task_name(task) for task in tasks] == ["game-1/trial", "game-2/trial"]
    for number, task in enumerate(tasks, 1):
        environment = made.environment(task)
        environment.start()
        turns = made.demonstrate(task, noise=0.0, seed=0)
        steps = [environment.step(turn.response) for turn in turns]
        assert (steps[-1].terminated, steps[-1].info["success"]) == (True, True)
        if not demonstrator:
            assert tuple(turn.response for turn in turns) == generate_game(number).walkthrough


def test_alfworld_without_its_data_says_what_to_set(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(DataError, match="set ALFWORLD_DATA"):
        suite("alfworld").tasks("valid_seen")
    with pytest.raises(DataError, match=r"holds no folder json_2\.1\.1"):
        suite("alfworld", data="nowhere").tasks("valid_seen")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hausehold", {}, r"unknown environment 'hausehold'. Did you mean 'household'\? Your own is 'module:factory'"),
        ("household", {"sizes": "tiny"}, r"environment 'household' has no option 'sizes'. Did you mean 'size'\?"),
        ("household", {"seed": 3}, r"has no option 'seed'"),
        ("household", {"size": 3}, r"environment.options.size=3: expected text, such as 'small'"),
        ("household", {"num_train": "6"}, r"environment.options.num_train='6': expected a whole number, such as 1000"),
        ("household", {"num_train": 0}, r"environment.options.num_train=0: expected a whole number of games"),
        ("household", {"num_valid": 2.5}, r"environment.options.num_valid=2.5: expected a whole number, such as 256"),
        ("household", {"rooms": "kitchen"}, r"environment.options.rooms='kitchen': expected a list"),
        (
            "search_qa",
            {"max_searches": 2.5},
            r"environment.options.max_searches=2.5: expected a whole number, such as 3",
        ),
        ("search_qa", {"b": "0.4"}, r"environment.options.b='0.4': expected a number, such as 0.75"),
        ("seats", {"depth": 2.5}, r"environment.options.depth=2.5: expected a whole number, such as 4"),
        ("sokoban", {"size": 6.5}, r"environment.options.size=6.5: expected a whole number, such as 6"),
        ("swe", {"tiers": 1}, r"environment.options.tiers=1: expected a list"),
        ("frozen_lake", {"slippery": "no"}, r"environment.options.slippery='no': expected true or false"),
        ("tests.toys:Colors", {"turns": "2"}, r"environment.options.turns='2': expected something like 1"),
        ("household", {"demonstrator": "me"}, r"demonstrator='me': expected 'expert' or 'walkthrough'"),
        ("alfworld", {"size": "tiny"}, r"environment 'alfworld' has no option 'size'"),
        (
            "tests.toys:Colors",
            {"turn": 2},
            r"environment 'tests.toys:Colors' has no option 'turn'. Did you mean 'turns'\?",
        ),
        ("tests.toys:Colours", {}, r"'tests.toys' has no 'Colours'. Did you mean 'Colors'\?"),
        ("tests.toys:", {}, r"'tests.toys' has no ''"),
        ("tests.nowhere:Toy", {}, r"cannot import 'tests.nowhere': ModuleNotFoundError"),
        (":Toy", {}, r"cannot import ''"),
        ("tests.toys:COLORS", {}, r"'tests.toys:COLORS' is not a factory of environments"),
    ],
)
def test_what_is_wrong_is_said_with_what_may_have_been_meant(name, options, message):
    with pytest.raises(ConfigError, match=message):
        suite(name, **options)


@pytest.mark.parametrize(("name", "options"), [("frozen_lake", {"frozen_frac": 1}), ("swe", {"tiers": (1, 2)})])
def test_a_whole_number_is_a_number_and_a_tuple_a_list(name, options):
    suite(name, **options)


def test_training_tasks_never_become_held_out_ones():
    assert suite("crossroads", num_train=1_000_000).tasks("train")[-1] < suite("crossroads").tasks("valid")[0]
    with pytest.raises(ConfigError, match="split 'train' has at most 1,000,000 tasks, got 1,000,001; request fewer"):
        suite("crossroads", num_train=1_000_001).tasks("train")


@pytest.mark.parametrize("name", ["household", "tests.toys:Colors"])
def test_an_unknown_split_names_a_known_one(name):
    with pytest.raises(ConfigError, match=r"split 'vald'. Did you mean 'valid'\?"):
        suite(name).tasks("vald")


def test_a_seeded_environment_gets_its_seed_and_options():
    made = suite("tests.toys:Colors", turns=3)
    assert isinstance(made, Seeded)
    task = made.tasks("valid")[5]
    environment = made.environment(task)
    assert isinstance(environment, Colors)
    assert (environment.seed, environment.turns, made.task_name(task)) == (1_000_005, 3, "1000005")
    splits = [set(made.tasks(split)) for split in ("train", "valid", "test")]
    assert not splits[0] & splits[1]
    assert not (splits[0] | splits[1]) & splits[2]


def test_a_seeded_environment_may_teach():
    made = suite("tests.toys:Colors", turns=2)
    assert made.words() == sorted(["say", *COLORS])
    assert made.demonstrate(1, noise=0.0, seed=0) == [Demonstrated(COLORS[1], True), Demonstrated(COLORS[2], True)]


def test_words_may_be_given_as_texts():
    class Toy(Colors):
        @staticmethod
        def words():  # pyright: ignore[reportIncompatibleMethodOverride]
            return ["go to door 12.", "go home"]

    assert Seeded(Toy, {}).words() == [".", "12", "door", "go", "home", "to"]


def test_an_environment_that_cannot_teach_says_what_to_add():
    made = suite("tests.toys:Mute")
    with pytest.raises(ConfigError, match=r"tests.toys:Mute has no words\(\): add words\(\) -> list\[str\]"):
        made.words()
    with pytest.raises(ConfigError, match=r"has no demonstrate\(\): add demonstrate\(.*warmstart.steps=0"):
        made.demonstrate(0, noise=0.0, seed=0)


class OwnSuite:
    """A whole suite of a person's own."""

    def __init__(self, config: EnvironmentConfig, count: int = 2):
        self.config, self.count = config, count

    def tasks(self, split: str):
        return [f"{split} {number}" for number in range(self.count)]

    def environment(self, task) -> Any:
        raise NotImplementedError


def test_a_whole_suite_may_be_given():
    made = make_suite(EnvironmentConfig(name=f"{__name__}:OwnSuite", max_steps=7, options={"count": 3}))
    assert isinstance(made, OwnSuite)
    assert made.config.max_steps == 7
    assert made.tasks("train") == ["train 0", "train 1", "train 2"]
    with pytest.raises(ConfigError, match="has no option 'counts'"):
        make_suite(EnvironmentConfig(name=f"{__name__}:OwnSuite", options={"counts": 3}))


class Dataset(list):
    """Is read by whole numbers from 0 on, like many a data set."""

    def __getitem__(self, place):
        if isinstance(place, int) and 0 <= place < len(self):
            return super().__getitem__(place)
        raise KeyError(place)


@pytest.mark.parametrize("tasks", [Dataset(["a", "b"]), range(3), ("a",), np.array([1, 2])], ids=str)
def test_tasks_may_be_whatever_has_a_length_and_numbered_entries(tasks):
    assert tasks_of(SimpleNamespace(tasks=lambda split: tasks), "own", "train") is tasks  # pyright: ignore


@pytest.mark.parametrize("tasks", [{0: "a", 1: "b"}, {"a", "b"}, iter("ab"), {}])
def test_tasks_without_an_order_are_refused(tasks):
    with pytest.raises(ConfigError, match=f"returned {type(tasks).__name__}, expected a list of tasks"):
        tasks_of(SimpleNamespace(tasks=lambda split: tasks), "own", "train")  # pyright: ignore


class PreloadingSuite(OwnSuite):
    """Its environments tell which process loaded what they share, and which one plays them."""

    loaded_by = 0

    def preload(self) -> None:
        self.loaded_by = os.getpid()

    def environment(self, task):
        told = f"{self.loaded_by} {os.getpid()}"
        return SimpleNamespace(start=lambda: told, step=lambda response: told)


class EndlessSuite(OwnSuite):
    def preload(self) -> None:
        time.sleep(600)


class MistakenSuite(OwnSuite):
    def preload(self) -> None:
        print(self.games)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_suite_that_loads_ends_at_once_with_the_run():
    config = EnvironmentConfig(name=f"{__name__}:EndlessSuite", workers=1)
    environments = make_environments(make_suite(config), config)

    async def play() -> float:
        starting = asyncio.ensure_future(environments.start(0, "train 0"))
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        await environments.aclose()
        with pytest.raises(EnvironmentFault, match="was closed"):
            await starting
        return time.monotonic() - begun

    assert asyncio.run(play()) < 5


def test_a_mistake_while_a_suite_loads_is_not_taken_for_a_missing_module():
    config = EnvironmentConfig(name=f"{__name__}:MistakenSuite", workers=1)
    with pytest.raises(ConfigError, match="AttributeError: 'MistakenSuite' object has no attribute 'games'") as raised:
        asyncio.run(make_environments(make_suite(config), config).start(0, "train 0"))
    assert "module" not in str(raised.value)


def test_a_suite_loads_once_for_all_workers():
    config = EnvironmentConfig(name=f"{__name__}:PreloadingSuite", workers=2)
    environments = make_environments(make_suite(config), config)

    async def play() -> list[str]:
        steps = await asyncio.gather(*(environments.start(key, f"train {key}") for key in range(2)))
        await environments.aclose()
        return [step.observation for step in steps]

    loaded_by, played_by = zip(*(told.split() for told in asyncio.run(play())), strict=True)
    assert len(set(played_by)) == 2
    assert len(set(loaded_by)) == 1
    assert not {*loaded_by} & {"0", str(os.getpid()), *played_by}


def anything(seed: int, **options):
    return options


def test_a_factory_that_takes_anything_gets_anything():
    made = make_suite(EnvironmentConfig(name=f"{__name__}:anything", options={"what": 3}))
    assert made.environment(0) == {"what": 3}


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "an_environment_of_mine.py").write_text("class Toy:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert import_named("an_environment_of_mine:Toy").__name__ == "Toy"
    del sys.modules["an_environment_of_mine"]


def test_every_suite_has_a_name():
    environments = {"household", "alfworld", "webshop", "search_qa", "frozen_lake", "sokoban", "crossroads", "helpdesk"}
    assert set(ENVIRONMENTS) == environments | {
        "seats",
        "scienceworld",
        "gymnasium",
        "openenv",
        "mcp",
        "harbor",
        "textarena",
        "textworld",
        "verifiers",
        "swe",
    }


class OfTrl:
    """As TRL's `environment_factory` makes them."""

    def reset(self, **kwargs):
        return "hello"

    def move(self, way: str) -> str:
        """Move."""
        return way


@needs("gymnasium")
def test_environments_of_other_libraries_are_told_how_they_fit(tmp_path, monkeypatch):
    (tmp_path / "foreign.py").write_text("import gymnasium\n\n\nclass Maze(gymnasium.Env):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    mend = r"is an environment of gymnasium; register it in foreign .* environment.options.id=foreign:Maze-v0"
    with pytest.raises(ConfigError, match=mend):
        make_suite(EnvironmentConfig(name="foreign:Maze"))
    with pytest.raises(ConfigError, match=r"as TRL's environment_factory wants them; here start\(\) returns the first"):
        make_suite(EnvironmentConfig(name=f"{__name__}:OfTrl"))
