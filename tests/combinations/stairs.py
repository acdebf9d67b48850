"""An environment with what any feature may ask of one: three turns, an expert, and demonstrations with subgoals."""

from collections.abc import Sequence
from typing import Any

from tests.gateway.asking import ask, user
from tests.toys import Colors
from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Seeded
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.extensions.judge.cases import Comparison

TURNS = 3


class Stairs(Colors):
    """Pays each right color, and is won by one of three."""

    def __init__(self, seed: int):
        super().__init__(seed, turns=TURNS)

    @staticmethod
    def demonstrate(task: int, *, noise: float, seed: int) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        colors = [Colors.color(task, turn) for turn in range(TURNS)]
        return [(color, True, colors[turn // 2]) for turn, color in enumerate(colors)]

    def step(self, response: str) -> Step:
        told = super().step(response)
        return Step(
            observation=told.observation,
            reward=told.reward,
            terminated=told.terminated,
            valid=told.valid,
            info={"success": self.won > 0},
        )


class FewStairs(Seeded):
    """Has four tasks, so that each is played again in the third step of two groups."""

    def __init__(self, config: EnvironmentConfig):
        super().__init__(Stairs, {})

    def tasks(self, split: str) -> Sequence[int]:
        return range(4)


def play(task: Any, endpoint: Endpoint) -> dict[str, Any]:
    """Play the same as a harness."""
    game, reward = Stairs(task), 0.0
    messages = [user(game.start())]
    while True:
        messages.append(ask(endpoint, messages))
        step = game.step(messages[-1]["content"])
        reward += step.reward
        if step.ended:
            return {"reward": reward, "success": step.info["success"]}
        messages.append(user(step.observation))


def decide(cases: list[Any]) -> list[Any]:
    """Judge by the number of different words."""

    def score(text: str) -> float:
        return float(len(set(text.split())))

    return [
        (score(case.first), score(case.second)) if isinstance(case, Comparison) else min(10.0, score(case.text))
        for case in cases
    ]
