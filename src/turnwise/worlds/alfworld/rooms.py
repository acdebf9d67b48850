"""Describe rooms: their receptacles, their objects, and the usual places of objects.

The generator furnishes rooms with these tables, the expert searches likely places first, and the vocabulary lists the
words. The type names are ALFRED's, so generated and real games share their vocabulary. The numbers are rough guesses.
"""

import dataclasses

APPLIANCES = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
"""Task type -> the receptacle that changes its object's state."""

LAMP = "DeskLamp"

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})

RECEPTACLES = {
    "Kitchen": {
        "Cabinet": 12, "Drawer": 8, "StoveBurner": 4, "CounterTop": 3, "DiningTable": 2, "Shelf": 3, "SideTable": 1,
        "Fridge": 1, "Microwave": 1, "SinkBasin": 1, "CoffeeMachine": 1, "Toaster": 1, "GarbageCan": 1,
    },
    "LivingRoom": {
        "Drawer": 8, "Shelf": 6, "Cabinet": 4, "SideTable": 3, "CoffeeTable": 2, "Sofa": 2, "ArmChair": 2,
        "DiningTable": 1, "Dresser": 1, "TVStand": 1, "Desk": 1, "Ottoman": 1, "Safe": 1, "GarbageCan": 1,
    },
    "Bedroom": {
        "Drawer": 9, "Shelf": 6, "Cabinet": 3, "SideTable": 2, "Desk": 2, "Bed": 2, "Dresser": 1, "DiningTable": 1,
        "ArmChair": 1, "LaundryHamper": 1, "Safe": 1, "GarbageCan": 1,
    },
    "Bathroom": {
        "Cabinet": 6, "Drawer": 6, "Shelf": 3, "SinkBasin": 2, "TowelHolder": 2, "HandTowelHolder": 2, "CounterTop": 2,
        "SideTable": 1, "Cart": 1, "Toilet": 1, "BathtubBasin": 1, "ToiletPaperHanger": 1, "GarbageCan": 1,
    },
}  # fmt: skip
"""Room -> receptacle type -> their maximum number in one room."""

FLOOR = {
    "Kitchen": ("Chair", "LightSwitch", "StoveKnob", "Sink", "Window", "Blinds"),
    "LivingRoom": ("Chair", "Curtains", "FloorLamp", "Footstool", "LightSwitch", "Painting", "Window"),
    "Bedroom": (
        "BaseballBat", "BasketBall", "Blinds", "Boots", "Chair", "LaundryHamperLid", "Mirror", "Poster", "TennisRacket",
    ),
    "Bathroom": (
        "Bathtub", "LightSwitch", "Mirror", "Plunger", "ScrubBrush", "ShowerDoor", "ShowerGlass", "Sink", "Window",
    ),
}  # fmt: skip
"""Room -> types of things outside receptacles."""

_PROPERTIES = {
    "p": "pickupable",
    "c": "cleanable",
    "h": "heatable",
    "k": "coolable",
    "s": "sliceable",
    "r": "isReceptacleObject",
    "t": "toggleable",
}

# Columns: type; rooms with the relative number there (K, L, B are kitchen, living room and bedroom, W the
# bathroom); properties by the letters above; places with the chance to be found there. A place with 0 may hold
# the object, but is no place to look for it.
_OBJECTS = """
Apple          K3     pchks Fridge 5 CounterTop 4 DiningTable 4 Microwave 2 GarbageCan 2 SinkBasin 2
                            SideTable 2
Tomato         K3     pchks Fridge 5 CounterTop 4 DiningTable 4 SinkBasin 2 GarbageCan 1 SideTable 2
                            Microwave 0
Potato         K3     pchks Fridge 4 CounterTop 4 DiningTable 4 Microwave 2 SinkBasin 2 GarbageCan 1
                            SideTable 2
Egg            K3     pchks Fridge 5 CounterTop 4 Microwave 2 SinkBasin 2 GarbageCan 2 DiningTable 2
                            SideTable 1
Lettuce        K3     pcks  CounterTop 5 Fridge 4 DiningTable 4 SinkBasin 2 SideTable 2 GarbageCan 1
Bread          K2     phks  CounterTop 6 DiningTable 4 Fridge 2 GarbageCan 1 SideTable 1 Microwave 0
Mug            K3B2   pchkr CounterTop 5 Cabinet 4 Fridge 3 Desk 3 DiningTable 2 Microwave 2 SinkBasin 2
                            Shelf 1 SideTable 1 Dresser 1 CoffeeMachine 1
Cup            K3     pchkr Cabinet 4 Fridge 4 CounterTop 4 DiningTable 3 SinkBasin 2 Microwave 2 Shelf 1
                            SideTable 1
Plate          K3L1   pchkr Cabinet 6 CounterTop 4 DiningTable 4 CoffeeTable 2 Fridge 1 SinkBasin 1 Shelf 1
                            SideTable 1 Microwave 0 Dresser 0
Bowl           K3L1B1 pckr  Cabinet 5 CounterTop 3 Fridge 3 DiningTable 3 Desk 3 CoffeeTable 1 Shelf 2
                            Dresser 1 SideTable 1 SinkBasin 1 Microwave 1
Pan            K2     pckr  StoveBurner 5 CounterTop 3 Cabinet 1 DiningTable 1 Fridge 1 SinkBasin 0
                            SideTable 0
Pot            K2     pckr  StoveBurner 6 CounterTop 2 Cabinet 1 DiningTable 1 Fridge 1 Shelf 0 SinkBasin 1
                            SideTable 0
Kettle         K1     pc    StoveBurner 4 CounterTop 3 Cabinet 2 DiningTable 1 SinkBasin 1 Shelf 0
                            SideTable 0
Ladle          K1     pc    CounterTop 4 Cabinet 3 Drawer 2 DiningTable 2 SinkBasin 1
Fork           K3     pc    CounterTop 5 Drawer 4 DiningTable 3 SinkBasin 2 SideTable 1
Spoon          K3     pc    CounterTop 5 Drawer 5 DiningTable 3 SinkBasin 2 SideTable 1
Knife          K3     pc    CounterTop 6 DiningTable 4 Drawer 3 SinkBasin 1 SideTable 1
ButterKnife    K3     pc    CounterTop 6 DiningTable 4 Drawer 1 SinkBasin 1 SideTable 1
Spatula        K3     pc    CounterTop 5 DiningTable 3 Drawer 3 SinkBasin 1 SideTable 1
DishSponge     K3W1   pc    CounterTop 4 Cabinet 3 Drawer 3 DiningTable 2 SinkBasin 2 BathtubBasin 2
                            GarbageCan 1 Shelf 1 Toilet 1 Cart 1 SideTable 0
WineBottle     K2     pk    CounterTop 4 Cabinet 3 DiningTable 3 GarbageCan 1 Shelf 1 Fridge 1 SideTable 0
Glassbottle    K1     p     Cabinet 3 CounterTop 3 DiningTable 2 Fridge 1 SinkBasin 1 GarbageCan 1 Shelf 0
                            Microwave 0
PepperShaker   K3     p     CounterTop 4 Cabinet 4 Drawer 2 DiningTable 2 Shelf 1 SideTable 1
SaltShaker     K3     p     CounterTop 4 Cabinet 4 Drawer 2 DiningTable 2 Shelf 1 SideTable 1
SoapBottle     K3W3   p     CounterTop 4 Cabinet 4 Toilet 4 GarbageCan 2 DiningTable 2 Shelf 2 Cart 1
                            SideTable 1 Drawer 1 Dresser 0
PaperTowelRoll K1W1   p     CounterTop 4 DiningTable 1 Toilet 2 GarbageCan 1 Shelf 1 Cart 1 SideTable 0
SoapBar        W3     pc    CounterTop 4 SinkBasin 3 Toilet 3 Cabinet 2 Drawer 2 BathtubBasin 2 GarbageCan 1
                            Shelf 1 Cart 1 SideTable 1
Cloth          W3     pc    BathtubBasin 5 CounterTop 3 Cabinet 3 Drawer 3 SinkBasin 1 Shelf 1 Toilet 1
                            Cart 1 LaundryHamper 1 SideTable 0 GarbageCan 0 Dresser 0
SprayBottle    W3     p     CounterTop 5 Toilet 5 Cabinet 3 GarbageCan 2 Shelf 1 Cart 2 SideTable 1 Drawer 0
                            Dresser 0
ToiletPaper    W3     p     CounterTop 4 Toilet 4 Cabinet 2 Drawer 2 GarbageCan 2 ToiletPaperHanger 2
                            Shelf 1 SideTable 1 Cart 1 Dresser 0
Candle         W3L1   p     Toilet 5 CounterTop 4 Drawer 2 CoffeeTable 2 Cabinet 2 SideTable 2 DiningTable 1
                            Shelf 1 Cart 1 Dresser 0
HandTowel      W2     p     HandTowelHolder 9 CounterTop 1 Cabinet 0 Drawer 0 Toilet 0 GarbageCan 0 Shelf 0
                            SinkBasin 0 Cart 0 SideTable 0 BathtubBasin 0
Towel          W2     p     TowelHolder 1
TissueBox      L2W1B1 p     CoffeeTable 4 CounterTop 4 SideTable 3 DiningTable 2 Desk 2 Shelf 2 Drawer 1
                            TVStand 1 Dresser 1 Toilet 1 Cart 1 Cabinet 0 GarbageCan 0
Book           B3L1   p     Bed 6 Desk 3 CoffeeTable 3 Drawer 2 Dresser 1 SideTable 1 Sofa 2 ArmChair 1
                            DiningTable 1 Cabinet 1 Shelf 1 Ottoman 0 CounterTop 0
CellPhone      B3L1   p     Bed 5 Desk 4 Drawer 3 Dresser 2 SideTable 2 Shelf 1 Sofa 2 CoffeeTable 1
                            ArmChair 1 DiningTable 1 Safe 1 Ottoman 0 CounterTop 0
Laptop         B3L2   p     Bed 8 Desk 3 Sofa 4 CoffeeTable 4 DiningTable 3 SideTable 1 Dresser 1 ArmChair 1
                            Ottoman 1 CounterTop 0
Pillow         B3L2   p     Bed 9 Sofa 9 ArmChair 2 Ottoman 0
AlarmClock     B3     p     Desk 5 SideTable 3 Shelf 3 Dresser 3 DiningTable 1 CounterTop 0
CD             B3     p     Drawer 4 Desk 4 Dresser 2 SideTable 2 GarbageCan 1 Shelf 1 DiningTable 1 Safe 0
                            Cabinet 0
Pen            B3L1   p     Desk 5 Shelf 3 Drawer 3 Dresser 3 SideTable 3 CoffeeTable 2 DiningTable 1
                            GarbageCan 1 CounterTop 0
Pencil         B3L1   p     Desk 5 Shelf 3 Drawer 3 Dresser 3 SideTable 3 CoffeeTable 2 DiningTable 1
                            GarbageCan 1 CounterTop 0
CreditCard     B3L3   p     Drawer 4 Desk 3 Shelf 2 SideTable 3 Dresser 2 Sofa 3 CoffeeTable 3 ArmChair 2
                            DiningTable 2 TVStand 1 Ottoman 0 Safe 0 CounterTop 0
KeyChain       B3L2   p     Drawer 4 Desk 3 Shelf 2 SideTable 3 Dresser 2 CoffeeTable 3 Sofa 2 DiningTable 1
                            ArmChair 1 TVStand 1 Safe 1 Ottoman 0 CounterTop 0
RemoteControl  L3B1   p     CoffeeTable 5 Sofa 4 SideTable 3 DiningTable 2 Dresser 2 TVStand 2 Drawer 2
                            ArmChair 2 Shelf 1 Ottoman 1 Desk 1 CounterTop 0
Watch          L2B1   p     CoffeeTable 4 Drawer 4 SideTable 2 Dresser 2 DiningTable 2 TVStand 1 Shelf 1
                            Desk 1
Newspaper      L2     p     CoffeeTable 4 Sofa 4 DiningTable 3 SideTable 3 Shelf 2 Dresser 1 ArmChair 1
                            Drawer 1 Ottoman 0 GarbageCan 0 Cabinet 0
Statue         L3B1K1 p     CoffeeTable 4 DiningTable 3 SideTable 3 Shelf 3 Dresser 2 Desk 1 TVStand 1
                            CounterTop 2 Safe 0
Vase           L3K1   p     Shelf 5 CoffeeTable 3 DiningTable 2 SideTable 2 CounterTop 2 Cabinet 1 Dresser 1
                            TVStand 1 Desk 1 Safe 0
Box            L2     pr    DiningTable 3 Sofa 3 CoffeeTable 3 SideTable 1 Shelf 1 Dresser 1 ArmChair 1
                            Ottoman 0 Desk 0 Cabinet 0
WateringCan    L1     p     CoffeeTable 2 Shelf 1 SideTable 1 DiningTable 0 Desk 0 Dresser 0 Drawer 0
                            Cabinet 0
TeddyBear      B1     p     Bed 1
DeskLamp       B1L1   t     Desk 4 SideTable 4 Dresser 2 Shelf 1 CoffeeTable 1
HousePlant     K1L1   -     SideTable 3 CounterTop 3 CoffeeTable 1 DiningTable 1 Shelf 1 Desk 1 Dresser 1
Television     L1     -     Dresser 2 TVStand 2 CoffeeTable 1
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """Description of one object type.

    Attributes:
        rooms: Room -> relative number of such objects in it.
        properties: Properties of each such object, as in `Thing.properties`.
        places: Receptacle type -> chance of being there at the start; 0: it can only be put there.
    """

    rooms: dict[str, int]
    properties: frozenset[str]
    places: dict[str, int]


def _parse(line: str) -> tuple[str, Kind]:
    name, rooms, letters, *places = line.split()
    names = {"K": "Kitchen", "L": "LivingRoom", "B": "Bedroom", "W": "Bathroom"}
    return name, Kind(
        rooms={names[letter]: int(number) for letter, number in zip(rooms[::2], rooms[1::2], strict=True)},
        properties=frozenset(_PROPERTIES[letter] for letter in letters.strip("-")),
        places={place: int(chance) for place, chance in zip(places[::2], places[1::2], strict=True)},
    )


KINDS: dict[str, Kind] = dict(_parse(line) for line in _OBJECTS.strip().replace("\n ", " ").splitlines())

CAN_CONTAIN = frozenset(
    (place, name) for name, kind in KINDS.items() if "pickupable" in kind.properties for place in kind.places
)
"""Allowed pairs of receptacle type and object type."""

TEMPLATES = {
    "pick_and_place_simple": ("put a {0} in {1}", "put some {0} on {1}"),
    "look_at_obj_in_light": ("look at {0} under the {1}", "examine the {0} with the {1}"),
    "pick_clean_then_place_in_recep": ("put a clean {0} in {1}", "clean some {0} and put it in {1}"),
    "pick_heat_then_place_in_recep": ("put a hot {0} in {1}", "heat some {0} and put it in {1}"),
    "pick_cool_then_place_in_recep": ("put a cool {0} in {1}", "cool some {0} and put it in {1}"),
    "pick_two_obj_and_place": ("put two {0} in {1}", "find two {0} and put them in {1}"),
}
"""Task type -> its sentences; {0} is the object, {1} the receptacle or the lamp."""
