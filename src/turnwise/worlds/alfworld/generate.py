"""Generate games like ALFWorld's from seeds, small or large, each checked to be solvable.

    game = generate_game(7, size="small")
    panel = generate_games("valid", 64, size="small")

Splits are disjoint by content: a fingerprint of a game's content decides its split. So no held-out game equals a
training game with another seed or size. Train only on games or seeds of the split "train", because arbitrary seeds
include held-out games.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.worlds.alfworld.expert import solve
from turnwise.worlds.alfworld.game import TASK_TYPES, GameData, GameGoal, Receptacle, Thing
from turnwise.worlds.alfworld.rooms import (
    APPLIANCES,
    CAN_CONTAIN,
    FLOOR,
    KINDS,
    LAMP,
    OPENABLE,
    RECEPTACLES,
    TEMPLATES,
)

Range = tuple[int, int]
ROOMS = tuple(RECEPTACLES)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Size of a room: inclusive ranges, and the probability that receptacles of a type share a place."""

    receptacles: Range
    objects: Range
    shared: float = 0.0


SIZES = {
    "tiny": Size((4, 5), (3, 4)),
    "small": Size((6, 8), (5, 7)),
    "medium": Size((10, 14), (12, 18), shared=0.1),
    "large": Size((16, 30), (32, 48), shared=0.1),
}

# Each split has its own seeds, and some of 8 possible fingerprints.
_FIRST_SEED = {"train": 0, "valid": 1 << 40, "test": 1 << 41}
_FINGERPRINTS = {"train": range(2, 8), "valid": range(1), "test": range(1, 2)}

_MOST_SEEDS_WITHOUT_A_GAME = 10_000  # After this many seeds without a new game, the options are taken to allow no more.
_FLAT = 0.15  # As in ALFRED's rooms, some cabinets and drawers cannot be closed.
_ON_FLOOR = 0.2  # Fraction of a larger room's objects that are outside receptacles.
_MOST_OF_A_TYPE = 3
_MOST_TARGETS = 4


def generate_game(
    seed: int,
    *,
    task_types: Sequence[str] = TASK_TYPES,
    size: str = "small",
    rooms: Sequence[str] = ROOMS,
    num_receptacles: Range | None = None,
    num_objects: Range | None = None,
) -> GameData:
    """Generate the game of a seed; equal arguments give equal games.

    Args:
        seed: Any integer.
        task_types: The kinds of task to choose from.
        size: A key of `SIZES`: tiny, small, medium or large (as ALFWorld's rooms).
        rooms: The kinds of room to choose from.
        num_receptacles: Overrides the size's inclusive range. A room always has the receptacles that its task needs,
            and at most the maximum of its kind.
        num_objects: Overrides the size's inclusive range of objects.
    """
    return _solved(_furnish(seed, task_types, size, rooms, num_receptacles, num_objects))


def generate_games(split: str, count: int, **options) -> list[GameData]:
    """Return the first `count` games of a split, all different; `options` are those of `generate_game`."""
    return list(map(_solved, _split(split, count, **options)))


def fingerprint(game: GameData) -> str:
    """Return a hash of a game's content: goal and placement, without names, positions and the sentence."""
    contents = {receptacle.id: [receptacle.type, str(receptacle.openable)] for receptacle in game.receptacles}
    for type_name, place in sorted((thing.type, place) for thing in game.things for place in thing.receptacles):
        contents[place].append(type_name)
    content = (dataclasses.astuple(game.goal), sorted(contents.values()))
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _split(split: str, count: int, **options) -> Iterator[GameData]:
    """Yield the first seeds and games of a split, each content once; the games lack their walkthrough."""
    if split not in _FIRST_SEED:
        raise ConfigError(f"split is {split!r}; expected one of {', '.join(_FIRST_SEED)}.")
    given, seeds_without_a_game = set[str](), 0
    for seed in itertools.count(_FIRST_SEED[split]):
        if len(given) == count:
            return
        if seeds_without_a_game == _MOST_SEEDS_WITHOUT_A_GAME:
            raise ConfigError(
                f"split {split!r} has about {len(given)} games with these options, expected {count}; request fewer, or "
                "allow more objects, receptacles, rooms or task_types"
            )
        game = _furnish(seed, **options)
        content = fingerprint(game)
        seeds_without_a_game += 1
        if content not in given and int(content[:8], 16) % 8 in _FINGERPRINTS[split]:
            given.add(content)
            seeds_without_a_game = 0
            yield game


def _solved(game: GameData) -> GameData:
    """Fill in the walkthrough of a game; it proves that the game can be won."""
    walkthrough = solve(game, omniscient=True, max_turns=50)
    if not 0 < len(walkthrough) < 50:
        raise AssertionError(f"game {game.name} was made, but not solved in {len(walkthrough)} turns.")
    return dataclasses.replace(game, walkthrough=tuple(walkthrough))


@functools.cache
def _goals(task_type: str) -> dict[str, dict[str, list[str]]]:
    """Return room -> object type -> receptacle types that make sense for the task.

    They are those of the goal, or for look_at_obj_in_light those that the lamp may stand on.
    """
    appliance = APPLIANCES.get(task_type)
    ability = {"SinkBasin": "cleanable", "Microwave": "heatable", "Fridge": "coolable"}.get(
        appliance or "", "pickupable"
    )
    goals: dict[str, dict[str, list[str]]] = {room: {} for room in RECEPTACLES}
    for (room, furniture), (name, kind) in itertools.product(RECEPTACLES.items(), KINDS.items()):
        if room not in kind.rooms or not {"pickupable", ability} <= kind.properties:
            continue
        if appliance is not None and appliance not in furniture:
            continue
        places = kind.places
        if task_type == "look_at_obj_in_light":
            places = KINDS[LAMP].places if room in KINDS[LAMP].rooms else {}
        ends = [place for place in places if place in furniture and place != appliance]
        # The object must also have somewhere else to be found.
        ends = [end for end in ends if _sources(task_type, room, name, end)]
        if ends:
            goals[room][name] = ends
    return {room: objects for room, objects in goals.items() if objects}


def _sources(task_type: str, room: str, name: str, end: str) -> list[str]:
    """Return the receptacle types where the object may lie at the start, so that the start is not won."""
    anywhere = task_type in APPLIANCES or task_type == "look_at_obj_in_light"
    places = KINDS[name].places
    return [
        place
        for place, chance in places.items()
        if chance and place in RECEPTACLES[room] and (anywhere or place != end)
    ]


def _check_range(name: str, given: Any) -> None:
    """The first and last number, both included."""
    if given is None:
        return
    whole = isinstance(given, (list, tuple)) and len(given) == 2 and all(type(number) is int for number in given)
    if not (whole and 0 <= given[0] <= given[1]):
        raise ConfigError(f"{name} is {given!r}; expected the least and the most, such as [2, 3].")


def _furnish(
    seed: int,
    task_types: Sequence[str] = TASK_TYPES,
    size: str = "small",
    rooms: Sequence[str] = ROOMS,
    num_receptacles: Range | None = None,
    num_objects: Range | None = None,
) -> GameData:
    """Make the game of a seed, without its walkthrough."""
    if size not in SIZES:
        raise ConfigError(f"size is {size!r}; expected one of {', '.join(SIZES)}.")
    if not task_types or not set(task_types) <= set(TASK_TYPES):
        raise ConfigError(f"task_types are {list(task_types)}; expected some of {', '.join(TASK_TYPES)}.")
    if not rooms or not set(rooms) <= set(ROOMS):
        raise ConfigError(f"rooms are {list(rooms)}; expected some of {', '.join(ROOMS)}.")
    possible = [task_type for task_type in task_types if set(rooms) & set(_goals(task_type))]
    if not possible:
        raise ConfigError(f"no task of the types {', '.join(task_types)} is possible in rooms {', '.join(rooms)}.")
    for name, given in (("num_receptacles", num_receptacles), ("num_objects", num_objects)):
        _check_range(name, given)
    rng = random.Random(seed)
    extent = SIZES[size]
    task_type = rng.choice(possible)
    goals = _goals(task_type)
    room = rng.choice([room for room in goals if room in rooms])
    objects = goals[room]
    target = rng.choices(list(objects), [KINDS[name].rooms[room] for name in objects])[0]
    end = rng.choice(objects[target])
    sources = _sources(task_type, room, target, end)
    look_at = task_type == "look_at_obj_in_light"

    builder = _Builder(rng, room)
    needed = [end, *filter(None, [APPLIANCES.get(task_type)])]
    if not set(needed) & set(sources):
        needed.append(_weighted(rng, sources, KINDS[target].places))
    builder.add_receptacles(needed, rng.randint(*num_receptacles or extent.receptacles), extent.shared)

    total = rng.randint(*num_objects or extent.objects)
    if look_at:
        builder.add_thing(LAMP, [end])
    minimum = 2 if task_type == "pick_two_obj_and_place" else 1
    spare = max(0, min(_MOST_TARGETS - minimum, (total - minimum) // 2))
    for _ in range(minimum + rng.choices(range(spare + 1), (4, 3, 2, 1)[: spare + 1])[0]):
        builder.add_thing(target, sources)
    if total >= 10:
        for _ in range(round(total * _ON_FLOOR)):
            builder.add_on_floor()
    builder.add_distractors(total, without=target)

    types = {receptacle.type for receptacle in builder.receptacles}, {thing.type for thing in builder.things}
    return GameData(
        name=f"generated-{size}-{seed}",
        task=rng.choice(TEMPLATES[task_type]).format(target.lower(), LAMP.lower() if look_at else end.lower()),
        goal=GameGoal(task_type, target, None if look_at else end, LAMP if look_at else None),
        agent_location=builder.new_location(),
        receptacles=tuple(builder.receptacles),
        things=tuple(builder.things),
        can_contain=frozenset(pair for pair in CAN_CONTAIN if pair[0] in types[0] and pair[1] in types[1]),
    )


def _weighted(rng: random.Random, places: Sequence[str], chances: dict[str, int]) -> str:
    return rng.choices(places, [chances[place] for place in places])[0]


class _Builder:
    """Puts receptacles and things into a room."""

    def __init__(self, rng: random.Random, room: str):
        self.receptacles: list[Receptacle] = []
        self.things: list[Thing] = []
        self._rng = rng
        self._room = room
        self._positions: dict[str, tuple[float, float, float]] = {}  # Of receptacles, by id.
        self._used = set[str]()  # Ids and locations.

    def add_receptacles(self, needed: list[str], count: int, shared: float) -> None:
        """Add the needed types, and others until there are `count`; a first of a type is more likely than a second."""
        left = dict(RECEPTACLES[self._room])
        for type_name in needed:
            left[type_name] -= 1
        pool = [(name, number) for name, most in left.items() for number in range(most)]
        # Weighted sampling without replacement: the largest u ** (1 / weight) win.
        order = {(n, i): self._rng.random() ** (0.25 if i == 0 and n not in needed else 1) for n, i in pool}
        others = [name for name, _ in sorted(pool, key=lambda entry: -order[entry])]
        for type_name in [*needed, *others[: max(0, count - len(needed))]]:
            self._add_receptacle(type_name, shared)

    def _add_receptacle(self, type_name: str, shared: float) -> None:
        rng = self._rng
        beside = [receptacle for receptacle in self.receptacles if receptacle.type == type_name]
        location = rng.choice(beside).location if beside and rng.random() < shared else self.new_location()
        openable = type_name in OPENABLE and (type_name not in ("Cabinet", "Drawer") or rng.random() > _FLAT)
        position = (rng.uniform(-3, 3), rng.uniform(0, 1.5), rng.uniform(-3, 3))
        identifier = self._identifier(type_name, position)
        self._positions[identifier] = position
        self.receptacles.append(Receptacle(identifier, type_name, location, openable))

    def add_thing(self, type_name: str, places: Sequence[str]) -> None:
        """Add a thing to one of the receptacles whose type is among `places`, likely ones more often."""
        kind = KINDS[type_name]
        present = [place for place in places if any(receptacle.type == place for receptacle in self.receptacles)]
        place = _weighted(self._rng, present, kind.places)
        receptacle = self._rng.choice([receptacle for receptacle in self.receptacles if receptacle.type == place])
        x, y, z = self._positions[receptacle.id]
        position = (x + self._rng.uniform(-0.4, 0.4), y + self._rng.uniform(0, 0.2), z + self._rng.uniform(-0.4, 0.4))
        identifier = self._identifier(type_name, position)
        self.things.append(
            Thing(identifier, type_name, (receptacle.id,), (receptacle.location,), properties=kind.properties)
        )

    def add_on_floor(self) -> None:
        """Add a thing that is in no receptacle: a window, a chair."""
        type_name = self._rng.choice(FLOOR[self._room])
        beside = self._rng.random() < 0.5
        location = self._rng.choice(self.receptacles).location if beside else self.new_location()
        position = (self._rng.uniform(-3, 3), self._rng.uniform(0, 2), self._rng.uniform(-3, 3))
        self.things.append(Thing(self._identifier(type_name, position), type_name, locations=(location,)))

    def add_distractors(self, total: int, without: str) -> None:
        """Add things of other types at their usual places until there are `total`, or there is no place for more."""
        types = {receptacle.type for receptacle in self.receptacles}
        places = {
            name: [place for place, chance in kind.places.items() if chance and place in types]
            for name, kind in KINDS.items()
            if self._room in kind.rooms and name != without
        }
        counts = {name: 0 for name, present in places.items() if present}
        while len(self.things) < total and counts:
            name = self._rng.choices(list(counts), [KINDS[name].rooms[self._room] for name in counts])[0]
            self.add_thing(name, places[name])
            counts[name] += 1
            if counts[name] == _MOST_OF_A_TYPE:
                del counts[name]

    def new_location(self) -> str:
        """Return a location that nothing else has, named as ALFRED does: position, turn and angle."""
        x, z, turn, angle = (
            self._rng.choice(numbers) for numbers in (_GRID, _GRID, range(4), (-30, 0, 15, 30, 45, 60))
        )
        name = "loc" + "".join(f"_bar_{'_minus_' if n < 0 else ''}{abs(n)}" for n in (x, z, turn, angle))
        return self._fresh(name) or self.new_location()

    def _identifier(self, type_name: str, position: tuple[float, float, float]) -> str:
        """Write an id as ALFRED does: "Apple_bar__plus_00_dot_12_bar_..."."""
        parts = (f"_bar__{'minus' if n < 0 else 'plus'}_{abs(n):05.2f}".replace(".", "_dot_") for n in position)
        x, y, z = position
        whole = type_name.removesuffix("Basin")  # Basins are named as a part of what they belong to.
        name = whole + "".join(parts) + (f"_bar_{type_name}" if whole != type_name else "")
        return self._fresh(name) or self._identifier(type_name, (x, y + 0.01, z))

    def _fresh(self, name: str) -> str | None:
        """Return the name and remember it, or None when it is taken."""
        if name in self._used:
            return None
        self._used.add(name)
        return name


_GRID = range(-12, 13)
