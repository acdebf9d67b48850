import collections
import pickle
import time

import pytest

from turnwise.base.errors import ConfigError
from turnwise.worlds.alfworld.engine import GameEngine
from turnwise.worlds.alfworld.game import TASK_TYPES
from turnwise.worlds.alfworld.generate import SIZES, fingerprint, generate_game, generate_games
from turnwise.worlds.alfworld.rooms import CAN_CONTAIN, KINDS, OPENABLE, RECEPTACLES

SEEDS = {"tiny": range(200), "small": range(200), "medium": range(60), "large": range(40)}


@pytest.fixture(scope="module")
def games():
    return {size: [generate_game(seed, size=size) for seed in seeds] for size, seeds in SEEDS.items()}


def test_a_hand_checked_game():
    game = generate_game(3, size="tiny")
    lamps = [thing for thing in game.things if thing.type == "DeskLamp"]
    (pencil,) = (thing for thing in game.things if thing.type == "Pencil")

    assert GameEngine(game).observation == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, "
        "you see a coffeetable 1, a drawer 1, a dresser 1, a garbagecan 1, and a safe 1.\n\n"
        "Your task is to: look at pencil under the desklamp."
    )
    assert game.goal.object_type == "Pencil"
    assert game.goal.receptacle_type is None
    assert game.goal.toggle_type == "DeskLamp"
    assert [lamp.receptacles[0].partition("_bar_")[0] for lamp in lamps] == ["CoffeeTable", "Dresser"]
    assert pencil.id.startswith("Pencil_bar__plus_00_dot_35_bar__plus_00_dot_92_bar__minus_00_dot_51")
    assert pencil.receptacles[0].startswith("Drawer_bar_")
    assert pencil.properties == {"pickupable"}
    assert ("Drawer", "Pencil") in game.can_contain
    assert game.walkthrough == (
        "go to drawer 1",
        "open drawer 1",
        "take pencil 1 from drawer 1",
        "go to coffeetable 1",
        "use desklamp 2",
    )


def test_the_same_arguments_make_the_same_game():
    for size in SIZES:
        assert generate_game(5, size=size) == generate_game(5, size=size)
    assert generate_game(5) != generate_game(6)


@pytest.mark.parametrize("size", SIZES)
def test_the_walkthrough_wins_and_the_start_does_not(games, size):
    for game in games[size]:
        engine = GameEngine(game)
        for command in game.walkthrough:
            assert not engine.won
            assert command in engine.admissible
            engine.step(command)
        assert engine.won


@pytest.mark.parametrize("size", SIZES)
def test_rooms_are_as_large_as_asked(games, size):
    for game in games[size]:
        for number, (least, most) in (
            (len(game.receptacles), SIZES[size].receptacles),
            (len(game.things), SIZES[size].objects),
        ):
            assert least <= number <= most, game.name


def test_the_ranges_can_be_given():
    game = generate_game(0, num_receptacles=(12, 12), num_objects=(20, 20))

    assert (len(game.receptacles), len(game.things)) == (12, 20)


def test_a_room_has_what_its_task_needs_even_if_that_is_more_than_asked():
    game = generate_game(0, num_receptacles=(0, 0), num_objects=(0, 0))

    assert game.walkthrough


def test_all_task_types_and_rooms_occur(games):
    for size, made in games.items():
        assert {game.goal.task_type for game in made} == set(TASK_TYPES), size
    some = generate_games("train", 20, task_types=TASK_TYPES[:2])
    assert {game.goal.task_type for game in some} == set(TASK_TYPES[:2])


def test_contents_obey_the_tables(games):
    for game in games["large"]:
        types = {receptacle.id: receptacle.type for receptacle in game.receptacles}
        furniture = collections.Counter(types.values())
        assert any(furniture <= collections.Counter(most) for most in RECEPTACLES.values())
        assert all(receptacle.type in OPENABLE for receptacle in game.receptacles if receptacle.openable)
        assert all(game.agent_location != receptacle.location for receptacle in game.receptacles)
        for thing in game.things:
            for place in thing.receptacles:
                assert KINDS[thing.type].places[types[place]] > 0
                if "pickupable" in thing.properties:
                    assert (types[place], thing.type) in game.can_contain
        assert game.can_contain <= CAN_CONTAIN


def test_targets_hide_and_come_in_numbers(games):
    """Some targets lie in closed receptacles, some rooms hold several, and none is where a placing task wants it."""
    hidden, several = 0, 0
    for game in games["small"]:
        closed = {receptacle.id for receptacle in game.receptacles if receptacle.openable}
        targets = [thing for thing in game.things if thing.type == game.goal.object_type]
        hidden += all(thing.receptacles[0] in closed for thing in targets)
        several += len(targets) > 2
        if game.goal.task_type in ("pick_and_place_simple", "pick_two_obj_and_place"):
            goals = {place.id for place in game.receptacles if place.type == game.goal.receptacle_type}
            assert not any(goals.intersection(thing.receptacles) for thing in targets)
    assert hidden > 20
    assert several > 20


def test_large_rooms_have_the_quirks_of_real_ones(games):
    assert any(len({r.location for r in game.receptacles}) < len(game.receptacles) for game in games["large"])
    assert any(not thing.receptacles for game in games["large"] for thing in game.things)
    assert any(r.type in ("Cabinet", "Drawer") and not r.openable for game in games["large"] for r in game.receptacles)


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_splits_share_no_content(size):
    """Not only the games that are compared: what decides the split differs."""
    contents = {
        split: {fingerprint(game) for game in generate_games(split, 100, size=size)}
        for split in ("train", "valid", "test")
    }
    remainders = [{int(content[:8], 16) % 8 for content in of_split} for of_split in contents.values()]

    assert len(set().union(*contents.values())) == 300
    assert sum(map(len, remainders)) == len(set().union(*remainders))


def test_a_fingerprint_tells_contents_and_not_names(games):
    one, other = games["small"][:2]

    assert fingerprint(one) == fingerprint(generate_game(0))
    assert fingerprint(one) != fingerprint(other)


def test_options_that_allow_too_few_games_are_refused():
    options = {"task_types": ["pick_heat_then_place_in_recep"], "num_receptacles": [0, 0], "num_objects": [0, 0]}
    with pytest.raises(
        ConfigError, match=r"split 'valid' has about \d+ games with these options, expected 1000"
    ) as few:
        generate_games("valid", 1000, **options)
    found = int(str(few.value).split("about ")[1].split()[0])
    assert len(generate_games("valid", found, **options)) == found


def test_seeds_make_the_games_of_their_split():
    games, others = (generate_games(split, count, size="tiny") for split, count in (("valid", 5), ("train", 500)))
    seeds, other_seeds = ([int(game.name.rpartition("-")[2]) for game in each] for each in (games, others))

    assert [generate_game(seed, size="tiny") for seed in seeds] == games
    assert not set(seeds) & set(other_seeds)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate_game(0, size="huge"), "size is 'huge'"),
        (lambda: generate_game(0, task_types=["pick_three"]), "task_types are"),
        (lambda: generate_game(0, num_receptacles=3), "num_receptacles is 3; expected the least"),  # pyright: ignore
        (lambda: generate_game(0, num_objects=[5, 2]), r"num_objects is \[5, 2\]"),  # pyright: ignore
        (lambda: generate_game(0, num_objects=[-1, 2]), r"num_objects is \[-1, 2\]"),  # pyright: ignore
        (lambda: generate_game(0, num_objects=["a", "b"]), "num_objects is"),  # pyright: ignore
        (lambda: generate_games("validation", 1), "split is 'validation'"),
    ],
)
def test_wrong_options_are_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_games_can_be_pickled(games):
    for made in games.values():
        assert pickle.loads(pickle.dumps(made[0])) == made[0]


def test_a_small_game_takes_milliseconds():
    start = time.process_time()
    for seed in range(1000, 1200):
        generate_game(seed)

    assert (time.process_time() - start) / 200 < 0.02  # Generous for a busy machine; about 0.7 ms on an idle one.
