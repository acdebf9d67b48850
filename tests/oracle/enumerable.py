"""Small stopping processes on which the expected gradient of any method is a finite sum.

An agent starts at place 0 of a corridor. Each turn its response is one or two tokens: `stop`, or `go` followed by
`stay` or `move`; the episode ends on `stop` or after three turns. Two prompts share the parameters and differ in
rewards and in a prompt feature. That gives variable stopping, intermediate rewards, states that recur within and across
trajectories (place, whatever the turn), and responses of different length and entropy.
"""

import dataclasses
import itertools
from functools import cached_property

import numpy as np

import turnwise as tw

HORIZON = 3
NUM_PLACES = 3
NUM_PARAMETERS = 2 * NUM_PLACES + 1  # stop logit of a place, move logit of a place, stop logit of the second prompt
RESPONSES = ("stop", "stay", "move")


@dataclasses.dataclass(frozen=True)
class Turn:
    """One response: where it was given, its reward, its log-probability's gradient and mean token entropy."""

    place: int
    reward: float
    probability: float
    score: np.ndarray
    entropy: float


def _bernoulli(logit: float) -> tuple[float, float]:
    chance = 1.0 / (1.0 + np.exp(-logit))
    return chance, float(-chance * np.log(chance) - (1 - chance) * np.log(1 - chance))


@dataclasses.dataclass(frozen=True)
class Groups:
    """All groups of one prompt as one batch; each response with its group's probability over K, and its score."""

    batch: tw.Batch
    weight_R: np.ndarray
    score: np.ndarray


@dataclasses.dataclass(frozen=True)
class Corridor:
    """One process and policy.

    Attributes:
        theta: `[NUM_PARAMETERS]` logits.
        reward: `[prompts, places, responses]` reward of a response at a place.
    """

    theta: np.ndarray
    reward: np.ndarray
    _cache: dict[int, list["Groups"]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def _turn(self, prompt: int, place: int, response: int) -> Turn:
        stop_features, move_features = np.zeros(NUM_PARAMETERS), np.zeros(NUM_PARAMETERS)
        stop_features[place], stop_features[-1] = 1.0, float(prompt)
        move_features[NUM_PLACES + place] = 1.0
        stop, stop_entropy = _bernoulli(float(stop_features @ self.theta))
        move, move_entropy = _bernoulli(float(move_features @ self.theta))
        reward = float(self.reward[prompt, place, response])
        if RESPONSES[response] == "stop":
            return Turn(place, reward, stop, (1 - stop) * stop_features, stop_entropy)
        moves = RESPONSES[response] == "move"
        probability = (1 - stop) * (move if moves else 1 - move)
        score = -stop * stop_features + ((1 - move) if moves else -move) * move_features
        return Turn(place, reward, probability, score, (stop_entropy + move_entropy) / 2)

    def _walk(self, prompt: int, place: int, turns: int) -> list[list[Turn]]:
        if turns == HORIZON:
            return [[]]
        result = []
        for response, name in enumerate(RESPONSES):
            turn = self._turn(prompt, place, response)
            rest = [[]] if name == "stop" else self._walk(prompt, place + (name == "move"), turns + 1)
            result += [[turn, *tail] for tail in rest]
        return result

    @cached_property
    def prompts(self) -> list[list[list[Turn]]]:
        """Every trajectory of every prompt."""
        return [self._walk(prompt, 0, 0) for prompt in range(len(self.reward))]

    def value(self) -> float:
        """J: expected return, mean over prompts."""
        return float(np.mean([
            sum(probability(trajectory) * sum(turn.reward for turn in trajectory) for trajectory in trajectories)
            for trajectories in self.prompts
        ]))  # fmt: skip

    def gradient(self) -> np.ndarray:
        """Gradient of J, from the sum over all trajectories of `P * R * sum of scores`."""
        return np.mean([
            sum(
                probability(trajectory) * sum(t.reward for t in trajectory) * sum(t.score for t in trajectory)
                for trajectory in trajectories
            )
            for trajectories in self.prompts
        ], axis=0)  # fmt: skip

    def expected_update(self, method: tw.Transform, size: int) -> np.ndarray:
        """Expectation of `1/K sum_i sum_t A_it grad log pi(a_it)` over all groups of K, mean over prompts."""
        return np.mean([self._expected(method, groups) for groups in self._groups(size)], axis=0)

    def _groups(self, size: int) -> list["Groups"]:
        """Every group of K trajectories of every prompt, built once for all methods."""
        if size not in self._cache:
            self._cache[size] = [self._enumerate(trajectories, size) for trajectories in self.prompts]
        return self._cache[size]

    def _enumerate(self, trajectories: list[list[Turn]], size: int) -> "Groups":
        groups = list(itertools.product(range(len(trajectories)), repeat=size))
        chance = np.array([np.prod([probability(trajectories[n]) for n in group]) for group in groups])
        members = [trajectories[n] for group in groups for n in group]
        turns = [turn for trajectory in members for turn in trajectory]
        batch = tw.Batch(
            tw.Segments.from_lengths([size] * len(groups)),
            tw.Segments.from_lengths([len(trajectory) for trajectory in members]),
            [turn.reward for turn in turns],
            {
                "entropy": [turn.entropy for turn in turns],
                "state_key": [turn.place for turn in turns],
                "penalty": [0.0] * len(turns),
                "role": [turn.place % 2 for turn in turns],
            },
        )
        weight_R = batch.group_responses.broadcast(chance) / size
        return Groups(batch, weight_R, np.array([turn.score for turn in turns]))

    def _expected(self, method: tw.Transform, groups: "Groups") -> np.ndarray:
        batch = groups.batch
        missing = set(method.needs) - set(batch.columns)
        assert not missing, f"teach the oracle's corridor the columns {missing}"
        state = method.init() if method.init else None
        credit_R, _ = method.update(batch.reward_R, state, batch)
        return (groups.weight_R * credit_R) @ groups.score


def probability(trajectory: list[Turn]) -> float:
    """Probability of a trajectory."""
    return float(np.prod([turn.probability for turn in trajectory]))


def _sparse() -> Corridor:
    """Reward 1 for stopping at the right place; the second prompt's is further away."""
    reward = np.zeros((2, NUM_PLACES, len(RESPONSES)))
    reward[0, 1, 0] = reward[1, 2, 0] = 1.0
    return Corridor(np.array([-0.8, 0.3, 0.9, 0.4, 1.1, -0.2, -0.7]), reward)


def _dense(seed: int) -> Corridor:
    """Rewards and logits drawn at random: something is paid at every turn."""
    generator = np.random.default_rng(seed)
    return Corridor(
        generator.normal(scale=1.5, size=NUM_PARAMETERS), generator.normal(size=(2, NUM_PLACES, len(RESPONSES)))
    )


CORRIDORS: dict[str, Corridor] = {"sparse": _sparse(), "dense": _dense(1), "dense again": _dense(2)}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two vectors."""
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one method does to the gradient on one process."""

    corridor: str
    size: int
    cosine: float
    factor: float
    error: float

    def __str__(self) -> str:
        return f"{self.corridor}, K = {self.size}: cosine {self.cosine:.6f}, length x {self.factor:.6f}"


def measure(method: tw.Transform, sizes: tuple[int, ...] = (2, 3)) -> list[Measurement]:
    """Compare the expected update with grad J on every process, for every group size."""
    result = []
    for name, corridor in CORRIDORS.items():
        true = corridor.gradient()
        for size in sizes:
            update = corridor.expected_update(method, size)
            factor = float(update @ true / (true @ true))  # least-squares multiple of grad J ...
            error = float(np.abs(update - factor * true).max() / np.abs(true).max())  # ... and what is left
            result.append(Measurement(name, size, cosine(update, true), factor, error))
    return result


TOLERANCE = 1e-10  # sums of 3375 groups of float64 terms of order 1
NOT_PARALLEL = 1e-6  # least 1 - cosine that counts as biased; rounding gives 1e-15


def check_declaration(gradient: tw.Gradient | None, measured: list[Measurement]) -> None:
    """Raise AssertionError unless the measurements are what the declaration says."""
    assert gradient is not None, "a published method declares its gradient"
    report = "\n".join(map(str, measured))
    if gradient.kind == "biased":
        assert gradient.reason, "say why it is biased"
        assert min(m.cosine for m in measured) < 1 - NOT_PARALLEL, f"declared biased, but is parallel:\n{report}"
        return
    worst = max(m.error for m in measured)
    assert worst < TOLERANCE, f"declared {gradient}, but is not parallel:\n{report}"
    if gradient.kind == "scaled":
        assert gradient.factor is not None, "a scaled gradient needs its factor"
        assert gradient.formula, "a scaled gradient needs its formula"
    for m in measured:
        expected = gradient.factor(m.size) if gradient.factor is not None else 1.0
        assert abs(m.factor - expected) < TOLERANCE, f"declared {gradient}, expected x {expected}:\n{report}"
