"""Describe rooms: their receptacles, their objects, and the usual places of objects.

The generator furnishes rooms with these tables, the expert searches likely places first, and the vocabulary lists the
words.
"""

import dataclasses

from turnwise.worlds.alfworld.game import TABLES

APPLIANCES: dict[str, str] = {name: task["appliance"] for name, task in TABLES["tasks"].items() if "appliance" in task}
"""Task type -> the receptacle that changes its object's state."""
TEMPLATES: dict[str, list[str]] = {name: task["sentences"] for name, task in TABLES["tasks"].items()}
"""Task type -> its sentences; {0} is the object, {1} the receptacle or the lamp."""
LAMP = "DeskLamp"
OPENABLE = frozenset(TABLES["openable"])
RECEPTACLES: dict[str, dict[str, int]] = TABLES["receptacles"]
"""Room -> receptacle type -> their maximum number in one room."""
FLOOR: dict[str, list[str]] = TABLES["floor"]
"""Room -> types of things outside receptacles."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """Description of one object type."""

    rooms: dict[str, int]  # room -> relative number of such objects in it
    properties: frozenset[str]  # properties of each such object, as in `Thing.properties`
    places: dict[str, int]  # receptacle type -> chance of being there at the start; 0: it can only be put there


def _parse(line: str) -> tuple[str, Kind]:
    name, rooms, letters, *places = line.split()
    names = {"K": "Kitchen", "L": "LivingRoom", "B": "Bedroom", "W": "Bathroom"}
    return name, Kind(
        rooms={names[letter]: int(number) for letter, number in zip(rooms[::2], rooms[1::2], strict=True)},
        properties=frozenset(TABLES["letters"][letter] for letter in letters.strip("-")),
        places={place: int(chance) for place, chance in zip(places[::2], places[1::2], strict=True)},
    )


KINDS: dict[str, Kind] = dict(map(_parse, TABLES["objects"]["lines"].strip().replace("\n ", " ").splitlines()))

CAN_CONTAIN = frozenset(
    (place, name) for name, kind in KINDS.items() if "pickupable" in kind.properties for place in kind.places
)
"""Allowed pairs of receptacle type and object type."""
