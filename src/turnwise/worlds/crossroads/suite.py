"""Suite of crossroads: roads by seed, and a teacher whose success is an option.

mile 1 bend north      every road leads on; the sign says north
mile 2 fork west       a critical turn: only west leads on
home                   the walk is won, or: dead end
"""

import copy
import zlib
from collections.abc import Sequence

import numpy as np

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Demonstrated, Step
from turnwise.environments.needs import check_counts
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import split_seeds
from turnwise.environments.words import split_words
from turnwise.worlds.crossroads.knobs import ROADS, read_knobs
from turnwise.worlds.crossroads.road import Road, action_of, draw_road

KINDS = {"short": ("bend", "fork"), "text": ("a bend", "a crossroads")}
"""Words for a turn that is not critical, and for one that is."""
VIEWS = (
    *("heath", "oak", "mill", "pond", "barn", "cliff", "reed", "chapel", "ford", "elm", "moor", "well"),
    *("hedge", "tower", "brook", "quarry", "stile", "birch", "marsh", "inn", "gate", "dune", "pine", "weir"),
)
"""Words for what is in sight, if states never recur."""
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
        """Take a road; before `start` and after the end, raise an `EnvironmentFault`."""
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
        """Return an independent copy."""
        return copy.copy(self)

    def _answer(self, *, valid: bool) -> Step:
        ended = self._turn == self._ends
        won = ended and not self._lost
        observation = ENDS[won] if ended else self._look()
        first = self._turn == 0 and self._road.knobs.reading == "text"
        roads = ROADS[: self._road.knobs.roads]
        # the words of "never" have few values, so that they alone would recur
        key = (observation, self._turn, self._seen) if self._road.knobs.recurrence == "never" else observation
        rules = RULES.format(turns=self._road.knobs.turns, roads=", ".join(roads)) if first else ""
        return Step(
            observation=rules + observation,
            reward=self._reward * won,
            terminated=ended,
            valid=valid,
            state_key=key,
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


class Crossroads:
    """Walks of known difficulty. Options: setting, num_train, num_valid, and those of `Knobs`."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        setting: str = "short",
        num_train: int = 3000,
        num_valid: int = 512,
        **options: int | float | str,
    ):
        check_counts("roads", num_train=num_train, num_valid=num_valid)
        self.knobs = read_knobs(setting, **options)
        if config.max_steps < self.knobs.turns:
            raise ConfigError(
                f"environment.max_steps={config.max_steps} is less than the {self.knobs.turns} turns of a walk; set "
                f"environment.max_steps={self.knobs.turns} or more, or fewer environment.options.turns"
            )
        self._reward = config.success_reward
        self._counts = {"train": num_train, "valid": num_valid, "test": num_valid}

    def tasks(self, split: str) -> Sequence[int]:
        """Return the seeds of a split."""
        return split_seeds(split, self._counts.get(split, 0), of="crossroads")

    def task_name(self, task: int) -> str:
        """Name a task in records."""
        return f"{self.knobs.setting}-{task}"

    def environment(self, task: int) -> CrossroadsEnvironment:
        """Build a fresh environment."""
        return CrossroadsEnvironment(draw_road(task, self.knobs), success_reward=self._reward)

    def words(self) -> list[str]:
        """Return every word of observations and responses."""
        kinds, reading = " ".join(KINDS[self.knobs.reading]), self.knobs.reading == "text"
        text = " ".join([kinds, *ENDS.values(), *ROADS[: self.knobs.roads]])
        text += {"turn": " mile Mile :", "never": f" {' '.join(VIEWS)}", "often": ""}[self.knobs.recurrence]
        text += f" {RULES} You are at . The sign says In sight : ," * reading
        return sorted({*split_words(text), *map(str, range(1, self.knobs.turns + 1))})

    def demonstrate(self, task: int, *, noise: float, seed: int) -> list[Demonstrated]:
        """Let the teacher walk, with noise: responses that name two roads, which are not to be imitated.

        Lost walks count too: without them, the policy would learn to be certain at critical turns.
        """
        road, generator = draw_road(task, self.knobs), np.random.default_rng([seed, 4241])
        environment, names = self.environment(task), ROADS[: self.knobs.roads]
        step, turns = environment.start(), list[Demonstrated]()
        for chance_A in road.teacher():
            if step.ended:
                break
            noisy = generator.random() < noise
            response = (
                " ".join(generator.choice(names, 2)) if noisy else names[generator.choice(len(names), p=chance_A)]
            )
            turns.append(Demonstrated(response, not noisy))
            step = environment.step(response)
        return turns
