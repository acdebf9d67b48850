"""A game that pays at its end, natively and as a harness plays it, whose trajectories and credit must be equal."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.gateway.asking import ask, user
from tests.toys import Colors, small_config
from turnwise.config import Config
from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Seeded
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.rollout.replays import CHECKED

TURNS = 3


class Late(Colors):
    """Three turns that are always valid; the share of right colors is paid with the last one."""

    def __init__(self, seed: int):
        super().__init__(seed, turns=TURNS)

    def step(self, response: str) -> Step:
        told = super().step(response)
        reward = self.won / TURNS if told.terminated else 0.0
        info = {"success": self.won > 1} if told.terminated else {}
        return dataclasses.replace(told, reward=reward, valid=True, info=info)


class FewLate(Seeded):
    """Has eight tasks."""

    def __init__(self, config: EnvironmentConfig):
        super().__init__(Late, {})

    def tasks(self, split: str) -> Sequence[int]:
        return range(8)


class OnlyTasks:
    """The tasks alone, as an agent with an environment of its own needs them."""

    def __init__(self, config: EnvironmentConfig):
        self.words = Late.words

    def tasks(self, split: str) -> Sequence[int]:
        return range(8)

    def task_name(self, task: int) -> str:
        return str(task)


def play(
    task: Any, endpoint: Endpoint, told: Callable[[str, int], str] = lambda observation, _: observation
) -> dict[str, Any]:
    """Play it as a harness, which may tell an observation otherwise after so many messages."""
    game = Late(task)
    messages = [user(game.start())]
    while True:
        messages.append(ask(endpoint, messages))
        step = game.step(messages[-1]["content"])
        if step.ended:
            return {"reward": step.reward, "success": step.info["success"]}
        messages.append(user(told(step.observation, len(messages))))


COUNT = itertools.count()


def play_with_a_clock(task: Any, endpoint: Endpoint) -> dict[str, Any]:
    """Play it, and tell the number of the game with the second observation."""

    def told(observation: str, messages: int) -> str:
        return f"{observation} {'say ' * (next(COUNT) % 23) if messages < 3 else ''}".strip()

    return play(task, endpoint, told)


def play_with_a_late_clock(task: Any, endpoint: Endpoint) -> dict[str, Any]:
    """Play it, and repeat in the first games only, as if a limit of some service were reached then."""
    return (play if next(STARTED) < 2 * CHECKED else play_with_a_clock)(task, endpoint)


STARTED = itertools.count()
PLAYERS = {
    "native": {},
    "harness": {"harness": {"run": "tests.gateway.late:play"}},
    "clock": {"harness": {"run": "tests.gateway.late:play_with_a_clock"}},
    "late clock": {"harness": {"run": "tests.gateway.late:play_with_a_late_clock"}},
}


def late_config(folder: Path, player: str, **sections: Any) -> Config:
    """A run of `Late`, played natively or by the harness."""
    shared: dict[str, Any] = {
        "environment": {"name": "tests.gateway.late:FewLate"},
        "model": {"max_context": 128},
        "evaluate": {"every": 0, "final_episodes": 2},
        "method": "grpo",
    }
    for name, section in sections.items():
        both = isinstance(section, dict) and isinstance(shared.get(name), dict)
        shared[name] = {**shared[name], **section} if both else section
    run = {"name": player, **shared.pop("run", {})}
    return small_config(folder, run=run, **shared, **PLAYERS[player])
