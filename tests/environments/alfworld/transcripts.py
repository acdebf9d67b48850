"""What TextWorld says in the kitchen of conftest.py: the introduction, and games in it, command by command.

The kitchen was saved with `save_game` (domain and grammar of the alfworld 0.4.2 package) and played in TextWorld 1.7.0
behind the package's AlfredDemangler. tests/crosscheck/alfworld/oracle.py compares the two on real games.
"""

INTRODUCTION = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see"
    " a cabinet 2, a cabinet 1, a countertop 1, a drawer 1, a fridge 1, a microwave 1, a shelf 1, and a sinkbasin 1."
    "\n\nYour task is to: put a clean mug in shelf."
)
HANDLING = """
> look
You are in the middle of a room. Looking quickly around you, you see nothing.
> inventory
You are not carrying anything.
> examine apple 1
Nothing happens.
> go to cabinet 2
You arrive at cabinet 2. The cabinet 2 is closed.
> look
You are facing the cabinet 2, cabinet 1, and shelf 1. Next to it, you see nothing.
> examine cabinet 1
The cabinet 1 is open. In it, you see a mug 2.
> open cabinet 1
Nothing happens.
> examine mug 2
Nothing happens.
> take mug 2 from cabinet 1
You pick up the mug 2 from the cabinet 1.
> look
You are facing the cabinet 2, cabinet 1, and shelf 1. Next to it, you see nothing.
> inventory
You are carrying: a mug 2.
> examine mug 2
There's nothing special about mug 2.
> examine cabinet 2
The cabinet 2 is closed.
> move mug 2 to shelf 1
You move the mug 2 to the shelf 1.
> look
You are facing the cabinet 2, cabinet 1, and shelf 1. Next to it, you see a mug 2.
> examine shelf 1
On the shelf 1, you see a mug 2, and a statue 1.
> take mug 2 from cabinet 2
Nothing happens.
> close cabinet 1
You close the cabinet 1.
> go to cabinet 1
Nothing happens.
> go to countertop 1
You arrive at countertop 1. On the countertop 1, you see a knife 1, a mug 1, a plate 1, and a tomato 1.
> examine sinkbasin 1
On the sinkbasin 1, you see nothing.
> take plate 1 from countertop 1
You pick up the plate 1 from the countertop 1.
> examine plate 1
This is a normal plate 1. In it, you see a fork 1, and a spoon 1.
> slice tomato 1 with knife 1
Nothing happens.
> move plate 1 to countertop 1
You move the plate 1 to the countertop 1.
> take knife 1 from countertop 1
You pick up the knife 1 from the countertop 1.
> slice tomato 1 with knife 1
You sliced the tomato 1 with the knife 1.
> clean knife 1 with sinkbasin 1
You clean the knife 1 using the sinkbasin 1.
> examine knife 1
This is a clean knife 1.
> move knife 1 to countertop 1
You move the knife 1 to the countertop 1.
> take tomato 1 from countertop 1
You pick up the tomato 1 from the countertop 1.
> examine tomato 1
This is a sliced tomato 1.
> go to microwave 1
You arrive at microwave 1. The microwave 1 is closed.
> heat tomato 1 with microwave 1
You heat the tomato 1 using the microwave 1.
> examine tomato 1
This is a hot sliced tomato 1.
> open microwave 1
You open the microwave 1. The microwave 1 is open. In it, you see nothing.
> close microwave 1
You close the microwave 1.
"""
STATES = """
> go to drawer 1
You arrive at drawer 1. The drawer 1 is closed.
> use desklamp 1
You turn on the desklamp 1.
> open drawer 1
You open the drawer 1. The drawer 1 is open. In it, you see a desklamp 1.
> take desklamp 1 from drawer 1
You pick up the desklamp 1 from the drawer 1.
> examine desklamp 1
This desklamp 1 is on.
> use desklamp 1
Nothing happens.
> move desklamp 1 to drawer 1
You move the desklamp 1 to the drawer 1.
> use desklamp 1
You turn on the desklamp 1.
> go to fridge 1
You arrive at fridge 1. The fridge 1 is closed.
> open fridge 1
You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.
> take apple 1 from fridge 1
You pick up the apple 1 from the fridge 1.
> examine apple 1
This is a cold apple 1.
> go to countertop 1
You arrive at countertop 1. On the countertop 1, you see a knife 1, a mug 1, a plate 1, and a tomato 1.
> clean apple 1 with sinkbasin 1
You clean the apple 1 using the sinkbasin 1.
> examine apple 1
This is a cool and clean apple 1.
> go to microwave 1
You arrive at microwave 1. The microwave 1 is closed.
> heat apple 1 with microwave 1
You heat the apple 1 using the microwave 1.
> examine apple 1
This is a hot and clean apple 1.
> go to fridge 1
You arrive at fridge 1. The fridge 1 is open. In it, you see nothing.
> cool apple 1 with fridge 1
You cool the apple 1 using the fridge 1.
> go to countertop 1
You arrive at countertop 1. On the countertop 1, you see a knife 1, a mug 1, a plate 1, and a tomato 1.
> move apple 1 to countertop 1
You move the apple 1 to the countertop 1.
> take knife 1 from countertop 1
You pick up the knife 1 from the countertop 1.
> slice apple 1 with knife 1
You sliced the apple 1 with the knife 1.
> move knife 1 to countertop 1
You move the knife 1 to the countertop 1.
> take apple 1 from countertop 1
You pick up the apple 1 from the countertop 1.
> examine apple 1
This is a cool and clean sliced apple 1.
> take mug 1 from countertop 1
Nothing happens.
> move apple 1 to countertop 1
You move the apple 1 to the countertop 1.
> take mug 1 from countertop 1
You pick up the mug 1 from the countertop 1.
> move mug 1 to sinkbasin 1
You move the mug 1 to the sinkbasin 1.
> look
You are facing the countertop 1, and sinkbasin 1. Next to it, you see a mug 1.
"""
