import dataclasses
import random

import pytest
from tests.needs import needs

from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.alfworld.engine import GameEngine
from turnwise.worlds.alfworld.expert import Expert, Facts, solve
from turnwise.worlds.alfworld.files import find_games, load_game
from turnwise.worlds.alfworld.game import TASK_TYPES, GameData, GameGoal, Thing
from turnwise.worlds.alfworld.generate import SIZES, generate_game

SEEDS = {"tiny": range(60), "small": range(100), "medium": range(40), "large": range(30)}


@pytest.fixture(scope="module")
def games():
    return {size: [generate_game(seed, size=size) for seed in seeds] for size, seeds in SEEDS.items()}


@pytest.mark.parametrize("size", SIZES)
def test_wins_every_generated_game(games, size):
    assert all(len(solve(game, max_turns=50)) < 50 for game in games[size])


@pytest.mark.parametrize("size", SIZES)
def test_wins_while_exploring_and_disturbed(games, size):
    for seed, game in enumerate(games[size]):
        assert len(solve(game, random.Random(seed), exploration=0.3, noise=0.3, max_turns=150)) < 150


@pytest.mark.parametrize("size", SIZES)
def test_recovers_from_any_state(games, size):
    """After thirty random commands the expert, who read along, still wins."""
    for seed, game in enumerate(games[size]):
        engine, expert, rng = GameEngine(game), Expert(game), random.Random(seed)
        played = None
        for _ in range(30):
            expert.act(engine.observation, engine.admissible, played)
            played = rng.choice(engine.admissible)
            engine.step(played)
        for _ in range(60):
            if engine.won:
                break
            played = expert.act(engine.observation, engine.admissible, played)
            engine.step(played)
        assert engine.won, game.name


@pytest.mark.parametrize("size", SIZES)
def test_finds_out_by_trying_where_no_admissible_commands_are_told(games, size):
    for game in games[size]:
        engine, expert = GameEngine(game), Expert(game)
        turns = 0
        while not engine.won and turns < 60:
            engine.step(expert.act(engine.observation))
            turns += 1
        assert engine.won, game.name


def test_plays_only_admissible_commands(games):
    def watch(engine, advice, command):
        assert advice in engine.admissible

    for game in games["large"]:
        solve(game, noise=0.2, max_turns=100, watch=watch)


def test_searches_what_an_omniscient_expert_knows(games):
    for game in games["medium"]:
        assert len(solve(game)) >= len(solve(game, omniscient=True)) - 1
    searched, known = (sum(len(solve(game, omniscient=o)) for game in games["large"]) for o in (False, True))
    assert searched > 1.2 * known


def test_does_not_look_at_the_facts(games):
    """Two games that look alike so far are played alike, wherever the target really is."""
    for game in games["small"][:20]:
        one, other = GameEngine(game), GameEngine(with_targets_elsewhere(game))
        experts, turns = (Expert(game), Expert(other.compiled.game)), 0
        while one.observation == other.observation:
            command, same = (expert.act(one.observation, one.admissible) for expert in experts)
            assert command == same
            one.step(command)
            other.step(command)
            turns += 1
        assert turns
        assert Facts.of(game).where != Facts.of(other.compiled.game).where


def with_targets_elsewhere(game: GameData) -> GameData:
    """Put the targets into other places that may hold them."""

    def moved(thing: Thing) -> Thing:
        if thing.type != game.goal.object_type:
            return thing
        place = next(
            each
            for each in game.receptacles
            if (each.type, thing.type) in game.can_contain and each.id not in thing.receptacles
        )
        return dataclasses.replace(thing, receptacles=(place.id,), locations=(place.location,))

    return dataclasses.replace(game, things=tuple(map(moved, game.things)))


def test_the_same_generator_plays_the_same():
    game = generate_game(1, size="large")
    plays = [solve(game, random.Random(3), exploration=0.5, noise=0.3) for _ in range(2)]

    assert plays[0] == plays[1]


GOALS = [
    (GameGoal("pick_and_place_simple", "Apple", "CounterTop"), 6),
    (GameGoal("pick_clean_then_place_in_recep", "Mug", "Shelf"), 5),
    (GameGoal("pick_heat_then_place_in_recep", "Apple", "Drawer"), 9),
    (GameGoal("pick_cool_then_place_in_recep", "Mug", "Drawer"), 7),
    (GameGoal("pick_two_obj_and_place", "Mug", "Drawer"), 10),
    (GameGoal("look_at_obj_in_light", "Mug", None, "DeskLamp"), 6),
]


@pytest.mark.parametrize(("goal", "most"), GOALS, ids=[goal.task_type for goal, _ in GOALS])
@pytest.mark.parametrize("told", [True, False])
def test_wins_in_the_kitchen_of_quirks(kitchen, goal, most, told):
    game = kitchen(goal=goal)
    engine, expert = GameEngine(game), Expert(game)
    commands = []
    while not engine.won and len(commands) < 30:
        commands.append(expert.act(engine.observation, engine.admissible if told else None))
        engine.step(commands[-1])

    assert engine.won, commands
    assert len(commands) <= most + 6, commands


def test_a_play_by_hand(kitchen):
    assert solve(kitchen()) == [
        "go to countertop 1",
        "take mug 1 from countertop 1",
        "examine sinkbasin 1",  # It is at the same place: one cannot go there.
        "clean mug 1 with sinkbasin 1",
        "go to shelf 1",
        "move mug 1 to shelf 1",
    ]


def test_memory_reads_the_environment():
    memory = Facts()
    memory.read("You are in the middle of a room. Looking quickly around you, you see a desk 1, and a drawer 1.")
    memory.read("You arrive at drawer 1. The drawer 1 is closed.")
    assert (memory.receptacles, memory.at, memory.closed) == (["desk 1", "drawer 1"], "drawer 1", {"drawer 1"})
    memory.read("You open the drawer 1. The drawer 1 is open. In it, you see a mug 2, and a pen 1.")
    assert (memory.where, memory.closed) == ({"mug 2": "drawer 1", "pen 1": "drawer 1"}, set())
    memory.read("You pick up the mug 2 from the drawer 1.")
    assert (memory.held, memory.where) == ("mug 2", {"pen 1": "drawer 1"})
    memory.read("You heat the mug 2 using the microwave 1.")
    memory.read("You clean the mug 2 using the sinkbasin 1.")
    memory.read("You cool the mug 2 using the fridge 1.")
    assert memory.states == {("clean", "mug 2"), ("cool", "mug 2")}
    memory.read("You arrive at desk 1. On the desk 1, you see nothing.")
    memory.read("You move the mug 2 to the desk 1.")
    assert (memory.held, memory.where["mug 2"], memory.seen) == (None, "desk 1", {"desk 1", "drawer 1"})
    memory.read("Nothing happens.", "open desk 1")
    assert memory.refused == {("desk 1", "open desk 1")}
    memory.read("You close the drawer 1.")
    assert memory.closed == {"drawer 1"}


@pytest.mark.data
@needs("ALFWORLD_DATA")
def test_wins_real_games():
    for task_type in TASK_TYPES:
        for path in find_games("train", task_types=[task_type])[::40]:
            game = load_game(path)
            assert len(solve(game, max_turns=51)) < 51, path
            assert len(solve(game, omniscient=True)) <= len(game.walkthrough) + 2, path


def test_a_walkthrough_longer_than_the_limit_is_no_demonstration():
    def taught(max_steps: int) -> list[int]:
        options = {"size": "small", "num_train": 20, "demonstrator": "walkthrough"}
        made = make_suite(EnvironmentConfig(name="household", max_steps=max_steps, options=options))
        found = [made.demonstrate(task, noise=0.0, seed=0) for task in made.tasks("train")]
        return [len(turns) for turns in found if turns is not None]

    every, short = taught(50), taught(7)
    assert len(every) == 20
    assert short == [turns for turns in every if turns <= 7]
    assert len(short) < 20
