"""An environment of uneven length for budgets; a worker imports it without torch."""

import random

from tests.toys import Colors


class Uneven(Colors):
    """Trajectories of 1 to 7 turns."""

    def __init__(self, seed: int):
        super().__init__(seed, turns=random.Random(seed).choice((1, 3, 5, 7)))
