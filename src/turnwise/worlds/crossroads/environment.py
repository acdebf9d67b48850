"""Play crossroads: one walk.

mile 1 bend north      every road leads on; the sign says north
mile 2 fork west       a critical turn: only west leads on
home                   the walk is won, or: dead end
"""

import copy
import zlib

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import Step
from turnwise.worlds.crossroads.knobs import ROADS
from turnwise.worlds.crossroads.road import Road, action_of

KINDS = {"short": ("bend", "fork"), "text": ("a bend", "a crossroads")}
"""Words for a turn that is not critical, and one that is."""
VIEWS = (
    *("heath", "oak", "mill", "pond", "barn", "cliff", "reed", "chapel", "ford", "elm", "moor", "well"),
    *("hedge", "tower", "brook", "quarry", "stile", "birch", "marsh", "inn", "gate", "dune", "pine", "weir"),
)
"""Words for what can be seen, where states never recur."""
RULES = (
    "You walk a road of {turns} turns. At each turn, answer with the road to take, one of: {roads}. At a crossroads "
    "only the road on the sign leads home; at a bend every road does.\n"
)
ENDS = {False: "dead end", True: "home"}


class CrossroadsEnvironment:
    """One walk.

    A response is the name of a road; surrounding white space is ignored. Any other response is invalid: it takes the
    turn, and loses the walk if the turn is critical.

    Args:
        road: The road.
        success_reward: Reward of the last step of a walk that is won; all others are 0.
    """

    def __init__(self, road: Road, *, success_reward: float = 10.0):
        self._road, self._reward = road, success_reward
        self._turn, self._weather, self._seen = -1, 0, 0
        self._ends = road.knobs.turns
        """Turns until the walk ends; fewer once it is lost."""
        self._lost = False

    def start(self) -> Step:
        """Start the walk."""
        self._turn = 0
        return self._answer(valid=True)

    def step(self, response: str) -> Step:
        """Take a road.

        Raises:
            EnvironmentFault: The walk has not begun, or is over.
        """
        if not 0 <= self._turn < self._ends:
            raise EnvironmentFault(f"step() {'before start()' if self._turn < 0 else 'after the end'} of a walk.")
        knobs, turn = self._road.knobs, self._turn
        action = action_of(response.strip(), knobs)
        if not self._lost and not self._road.stays_TWA[turn, self._weather, action]:
            self._lost, self._ends = True, min(turn + 1 + knobs.delay, knobs.turns)
        self._weather = int(self._road.after_TWA[turn, self._weather, action])
        self._seen = zlib.crc32(bytes([action]), self._seen)
        self._turn += 1
        return self._answer(valid=action < knobs.roads)

    def copy(self) -> "CrossroadsEnvironment":
        """Return a copy that walks on by itself."""
        return copy.copy(self)

    def _answer(self, *, valid: bool) -> Step:
        ended = self._turn == self._ends
        won = ended and not self._lost
        observation = ENDS[won] if ended else self._look()
        first = self._turn == 0 and self._road.knobs.reading == "text"
        roads = ROADS[: self._road.knobs.roads]
        rules = RULES.format(turns=self._road.knobs.turns, roads=", ".join(roads)) if first else ""
        return Step(
            observation=rules + observation,
            reward=self._reward * won,
            terminated=ended,
            valid=valid,
            state_key=observation,
            admissible=roads,
            info={"success": won},
        )

    def _look(self) -> str:
        """Describe the turn."""
        knobs, turn = self._road.knobs, self._turn
        kind = KINDS[knobs.reading][int(self._road.critical_T[turn])]
        sign = ROADS[self._road.sign_T[turn]]
        seen = [VIEWS[self._seen // len(VIEWS) ** place % len(VIEWS)] for place in range(3)]
        if knobs.reading == "short":
            where = {"turn": f"mile {turn + 1} ", "never": " ".join(seen) + " ", "often": ""}[knobs.recurrence]
            return f"{where}{kind} {sign}"
        where = {"turn": f"Mile {turn + 1}: ", "never": f"In sight: {', '.join(seen)}. ", "often": ""}[knobs.recurrence]
        return f"{where}You are at {kind}. The sign says {sign}."
