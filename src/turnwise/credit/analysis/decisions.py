"""Define small stopping problems in which the expected gradient of any method is a finite sum.

An agent starts at place 0 of a corridor. Each response has one or two tokens: `stop`, or `go` followed by `stay` or
`move`; a `move` at the last place has no effect. The trajectory ends on `stop` or after `horizon` turns. Two prompts
share the parameters and differ in rewards and in a prompt feature. So trajectories differ in length, rewards come at
any turn, states recur within and across trajectories, and responses differ in length and entropy. Every group of K
trajectories can be enumerated with its probability.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from turnwise.base.shapes import Float

RESPONSES = ("stop", "stay", "move")
STOP, STAY, MOVE = range(3)
Parameters = Float[np.ndarray, " parameters"]


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """One response: place, turn, reward, tokens, and the gradient of each token's log-probability."""

    place: int
    next_place: int
    turn: int
    response: int
    reward: float
    token_logprob: tuple[float, ...]
    token_entropy: tuple[float, ...]
    token_score: tuple[Parameters, ...]

    @cached_property
    def score(self) -> Parameters:
        """Return the gradient of the log-probability of the whole response."""
        return np.sum(self.token_score, axis=0)

    @property
    def logprob(self) -> float:
        """Return the log-probability of the whole response (nats)."""
        return sum(self.token_logprob)


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
    """Trajectory of a prompt."""

    prompt: int
    turns: tuple[Decision, ...]

    @cached_property
    def probability(self) -> float:
        """Return the probability under the policy."""
        return float(np.exp(sum(turn.logprob for turn in self.turns)))

    @cached_property
    def total(self) -> float:
        """Return the trajectory's return."""
        return sum(turn.reward for turn in self.turns)

    @cached_property
    def score(self) -> Parameters:
        """Return the gradient of the trajectory's log-probability."""
        return np.sum([turn.score for turn in self.turns], axis=0)

    @property
    def success(self) -> float:
        """Return 1 if the last response has a positive reward, else 0."""
        return float(self.turns[-1].reward > 0)

    @property
    def stopped(self) -> bool:
        """Return whether the trajectory ended with `stop`, not at the horizon."""
        return self.turns[-1].response == STOP


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One problem and policy."""

    name: str  # name in `PROBLEMS`
    about: str  # purpose in one line
    # `[2 * places + 1]` logits: stopping at each place, moving on from each place, stopping under the second prompt
    theta: Parameters
    # `[prompts, places, responses]` reward of a response at a place
    reward: Float[np.ndarray, "prompts places responses"]
    horizon: int = 3  # largest number of turns of a trajectory
    size: int = 4  # trajectories per group in the tables, limited by the cost of enumeration

    @property
    def num_prompts(self) -> int:
        """Return the number of prompts, which are equally likely."""
        return self.reward.shape[0]

    @property
    def num_places(self) -> int:
        """Return the number of places."""
        return self.reward.shape[1]

    def token_chances(self, prompt: int, place: int, *, logits: float = 1.0) -> tuple[float, float]:
        """Compute the probability of `stop`, and of `move` after `go`, with logits scaled by `logits`."""
        stop = logits * (self.theta[place] + prompt * self.theta[-1])
        move = logits * self.theta[self.num_places + place]
        return float(1.0 / (1.0 + np.exp(-stop))), float(1.0 / (1.0 + np.exp(-move)))

    def token_logprob(self, prompt: int, place: int, response: int, *, logits: float = 1.0) -> tuple[float, ...]:
        """Compute the log-probability of each token of a response, with logits scaled by `logits`."""
        stop, move = self.token_chances(prompt, place, logits=logits)
        if response == STOP:
            return (float(np.log(stop)),)
        return float(np.log(1 - stop)), float(np.log(move if response == MOVE else 1 - move))

    def response_chances(self, prompt: int, place: int) -> list[float]:
        """Compute the probability of each response at a place."""
        return [float(np.exp(sum(self.token_logprob(prompt, place, response)))) for response in range(len(RESPONSES))]

    def after(self, place: int, response: int) -> int:
        """Return the place after a response."""
        return min(place + (response == MOVE), self.num_places - 1)

    def respond(self, prompt: int, place: int, turn: int, response: int) -> Decision:
        """Build the record of one response."""
        stop, move = self.token_chances(prompt, place)
        score = [np.zeros_like(self.theta)]
        score[0][[place, -1]] = np.array([1.0, prompt]) * ((response == STOP) - stop)
        entropy = [_binary_entropy(stop)]
        if response != STOP:
            score.append(np.zeros_like(self.theta))
            score[1][self.num_places + place] = (response == MOVE) - move
            entropy.append(_binary_entropy(move))
        reward, after = float(self.reward[prompt, place, response]), self.after(place, response)
        logprob = self.token_logprob(prompt, place, response)
        return Decision(place, after, turn, response, reward, logprob, tuple(entropy), tuple(score))

    def _walk(self, prompt: int, place: int, turn: int) -> list[tuple[Decision, ...]]:
        if turn == self.horizon:
            return [()]
        result = []
        for response in range(len(RESPONSES)):
            here = self.respond(prompt, place, turn, response)
            rest = [()] if response == STOP else self._walk(prompt, here.next_place, turn + 1)
            result += [(here, *tail) for tail in rest]
        return result

    @cached_property
    def trajectories(self) -> list[list[Decisions]]:
        """List every trajectory of every prompt."""
        return [[Decisions(prompt, turns) for turns in self._walk(prompt, 0, 0)] for prompt in range(self.num_prompts)]

    @cached_property
    def outcome_only(self) -> bool:
        """Return whether the return of every trajectory equals its success, 0 or 1."""
        return all(t.total == t.success for trajectories in self.trajectories for t in trajectories)

    def expectation(self, value: Callable[[Decisions], Any]) -> Any:
        """Compute the expectation of a property of trajectories, a number or an array, as the mean over prompts."""
        terms = [t.probability * value(t) for trajectories in self.trajectories for t in trajectories]
        return np.sum(terms, axis=0) / self.num_prompts

    def objective(self) -> float:
        """Return the expected return J."""
        return float(self.expectation(lambda t: t.total))

    @cached_property
    def gradient(self) -> Parameters:
        """Return the gradient of J: the expectation of return times score."""
        return self.expectation(lambda t: t.total * t.score)

    @cached_property
    def state_value(self) -> Float[np.ndarray, "prompts turns places"]:
        """Compute the expected return from a turn and place on; 0 after the last turn."""
        return self._expected(lambda reward, ends: reward)

    @cached_property
    def success_chance(self) -> Float[np.ndarray, "prompts turns places"]:
        """Compute the probability of success from a turn and place on."""
        return self._expected(lambda reward, ends: float(ends and reward > 0))

    def _expected(self, paid: Callable[[float, bool], float]) -> np.ndarray:
        """Compute the expected sum of `paid(reward, ends)` from every state on, by backward induction."""
        value = np.zeros((self.num_prompts, self.horizon + 1, self.num_places))
        for turn in reversed(range(self.horizon)):
            for prompt, place in itertools.product(range(self.num_prompts), range(self.num_places)):
                for response, chance in enumerate(self.response_chances(prompt, place)):
                    ends = response == STOP or turn + 1 == self.horizon
                    then = 0.0 if ends else value[prompt, turn + 1, self.after(place, response)]
                    value[prompt, turn, place] += chance * (paid(self.reward[prompt, place, response], ends) + then)
        return value


def _binary_entropy(chance: float) -> float:
    return float(-chance * np.log(chance) - (1 - chance) * np.log(1 - chance))


def _rewards(places: int, paid: dict[tuple[int, int], float]) -> np.ndarray:
    """Build the rewards of two prompts for stopping: `(prompt, place) -> reward`."""
    reward = np.zeros((2, places, len(RESPONSES)))
    for (prompt, place), amount in paid.items():
        reward[prompt, place, STOP] = amount
    return reward


def _random(name: str, seed: int) -> Problem:
    generator = np.random.default_rng(seed)
    theta = generator.normal(scale=1.5, size=7)
    return Problem(name, "something is paid at every turn, drawn at random", theta, generator.normal(size=(2, 3, 3)))


def _lengths() -> Problem:
    reward = np.zeros((2, 3, len(RESPONSES)))
    reward[:, 1, [STAY, MOVE]] = 1.0
    reward[:, 2, [STAY, MOVE]] = 3.0
    reward[1, 2, STOP] = 1.0
    theta = np.array([1.0, -1.0, -1.0, 2.0, 2.0, 0.0, 0.5])
    return Problem(
        "lengths", "few survive the first turn, and every later one pays: long trajectories earn more", theta, reward
    )


PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(
            "sparse", "pays 1 for stopping at the right place, which differs by prompt",
            np.array([-0.8, 0.3, 0.9, 0.4, 1.1, -0.2, -0.7]), _rewards(3, {(0, 1): 1.0, (1, 2): 1.0}),
        ),
        _random("dense", 1),
        _random("dense-2", 2),
        Problem(
            "failures", "the paying place is far: nearly all trajectories fail",
            np.array([-1.0, -0.6, -0.3, 0.2, -0.4, -0.2, 0.1, 0.0, 0.4]), _rewards(4, {(0, 2): 1.0, (1, 3): 1.0}),
            horizon=4, size=3,
        ),
        Problem(
            "successes", "a trained policy: nearly all trajectories succeed",
            np.array([-2.2, 2.4, -0.5, 2.6, -1.0, 0.3, 0.4]), _rewards(3, {(0, 1): 1.0, (1, 1): 1.0, (1, 2): 1.0}),
        ),
        Problem(
            "uneven", "one prompt is hard and the other easy; groups of eight, as in practice",
            np.array([-0.4, 0.2, -1.2, 0.3, 1.0]), _rewards(2, {(0, 1): 1.0, (1, 0): 1.0}),
            horizon=2, size=8,
        ),
        Problem(
            "recurring", "two places, mostly staying: the same states again and again",
            np.array([-1.6, 0.0, -1.4, -0.8, 0.6]), _rewards(2, {(0, 1): 1.0, (1, 0): 1.0}),
            horizon=4, size=3,
        ),
        _lengths(),
    )
}  # fmt: skip
"""Problems by name."""
