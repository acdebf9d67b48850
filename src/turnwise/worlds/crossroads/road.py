"""Draw the road of a task, and compute exact values on it by dynamic programming.

Answers look random to the player, but are the same for the same task and responses. A hidden weather does this: each
response moves it to another one of a few, and it decides whether the next road slips. So trajectories of a group that
differ in an earlier response have different luck, while the state stays small: turn, weather, and whether the walk is
lost.
"""

import dataclasses
import functools

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Bool, Float, Int
from turnwise.worlds.crossroads.knobs import ROADS, Knobs

WEATHERS = 16
"""Number of hidden weathers; more than a group has trajectories, so that luck is seldom shared."""


@dataclasses.dataclass(frozen=True, eq=False)
class Road:
    """The road of a task. An action is the number of a road; `roads` stands for a response that names none."""

    knobs: Knobs  # options of the walk
    sign_T: Int[np.ndarray, " T"]  # `[turns]` road on each sign
    critical_T: Bool[np.ndarray, " T"]  # `[turns]` whether only that road leads on
    stays_TWA: Bool[np.ndarray, "T W A"]  # `[turns, weathers, actions]` whether the walk stays winnable
    after_TWA: Int[np.ndarray, "T W A"]  # `[turns, weathers, actions]` weather after the turn

    def teacher(self) -> Float[np.ndarray, "T A"]:
        """Return the probabilities of the teacher's actions, `[turns, roads]`."""
        roads = self.knobs.roads
        named_T = np.where(self.critical_T, self.knobs.right, self.knobs.follow)
        chance_TA = np.repeat(((1 - named_T) / (roads - 1))[:, None], roads, axis=1)
        chance_TA[np.arange(len(named_T)), self.sign_T] = named_T
        return chance_TA


@functools.lru_cache(maxsize=4096)
def draw_road(seed: int, knobs: Knobs) -> Road:
    """Draw the road of a task; equal for equal arguments."""
    generator = np.random.default_rng([seed, 9173])
    turns, roads = knobs.turns, knobs.roads
    critical_T = np.zeros(turns, dtype=bool)
    critical_T[generator.permutation(turns)[: knobs.critical]] = True
    sign_T = generator.integers(roads, size=turns)
    weathers = WEATHERS if knobs.slip else 1
    size = (turns, weathers, roads)
    turned = generator.integers(1, roads, size=size) * (generator.random(size) < knobs.slip)
    right_TWA = (np.arange(roads) + turned) % roads == sign_T[:, None, None]
    stays_TWA = np.zeros((turns, weathers, roads + 1), dtype=bool)
    stays_TWA[..., :roads] = right_TWA
    stays_TWA |= ~critical_T[:, None, None]
    return Road(knobs, sign_T, critical_T, stays_TWA, generator.integers(weathers, size=stays_TWA.shape))


@dataclasses.dataclass(frozen=True, slots=True)
class RoadValues:
    """Exact values of a policy on a road that is not lost yet; once it is lost, all values are 0."""

    state_TW: Float[np.ndarray, "T W"]  # `[turns, weathers]` probability of success from a state on
    action_TWA: Float[np.ndarray, "T W A"]  # `[turns, weathers, actions]` the same after an action

    @property
    def success(self) -> float:
        """Probability of success from the start."""
        return float(self.state_TW[0, 0])


def exact_values(road: Road, chance_TA: Float[np.ndarray, "T A"]) -> RoadValues:
    """Compute success from every state by dynamic programming, for a policy that sees the turn only.

        Q(t, w, a) = stays(t, w, a) V(t + 1, after(t, w, a)),    V(t, w) = sum over a of chance(t, a) Q(t, w, a)

    Args:
        road: The road.
        chance_TA: `[turns, roads]` probability of naming each road; the rest names none.

    Raises:
        ConfigError: Probabilities of the wrong shape, below 0, or with a sum above 1.
    """
    wanted = (road.knobs.turns, road.knobs.roads)
    if chance_TA.shape != wanted or (chance_TA < 0).any() or (chance_TA.sum(1) > 1 + 1e-9).any():
        raise ConfigError(
            f"probabilities have shape {chance_TA.shape}; expected {wanted}, 0 or more, with sums of at most 1"
        )
    chance_TA = np.concatenate([chance_TA, 1 - chance_TA.sum(1, keepdims=True)], axis=1)
    action_TWA = np.zeros(road.stays_TWA.shape)
    following_W = np.ones(road.stays_TWA.shape[1])
    state_TW = np.empty(road.stays_TWA.shape[:2])
    for turn in reversed(range(len(chance_TA))):
        action_TWA[turn] = road.stays_TWA[turn] * following_W[road.after_TWA[turn]]
        state_TW[turn] = following_W = action_TWA[turn] @ chance_TA[turn]
    return RoadValues(state_TW, action_TWA)


def exact_advantages(road: Road, values: RoadValues, actions: Int[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
    """Compute A* = Q - V of the actions of a trajectory, in shares of `success_reward`.

    Args:
        road: The road.
        values: Values of the policy.
        actions: Actions from the first turn on; fewer than `turns` if the dead end showed.
    """
    result, weather = np.zeros(len(actions)), 0
    for turn, action in enumerate(actions.tolist()):
        result[turn] = values.action_TWA[turn, weather, action] - values.state_TW[turn, weather]
        if not road.stays_TWA[turn, weather, action]:
            break
        weather = int(road.after_TWA[turn, weather, action])
    return result


def action_of(response: str, knobs: Knobs) -> int:
    """Return the action of a response; `knobs.roads` if it names no road."""
    named = ROADS[: knobs.roads]
    return named.index(response) if response in named else knobs.roads
