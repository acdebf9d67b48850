"""Toy environments, tiny policies, a scripted engine and small configurations for the tests of the trainer.

Workers import it for its environments: what needs torch, or the settings of every section, is imported where it is
used.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.engines.base import Generation, Sampling
from turnwise.environments.base import Step
from turnwise.rollout.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    import torch

    from turnwise.config import Config
    from turnwise.models.policy import Policy

COLORS = ("red", "green", "blue", "pink")


class Colors:
    """An environment of `turns` turns: each names a color, and pays 1 for a response that starts with it."""

    def __init__(self, seed: int, *, turns: int = 1):
        self.seed, self.turns, self.played, self.won = seed, turns, 0, 0

    @staticmethod
    def words(**options: Any) -> list[str]:
        return ["say", *COLORS]

    @staticmethod
    def demonstrate(task: int, *, noise: float, seed: int, turns: int = 1) -> list[str]:
        return [Colors.color(task, turn) for turn in range(turns)]

    @staticmethod
    def color(seed: int, turn: int) -> str:
        return COLORS[(seed + turn) % len(COLORS)]

    def start(self) -> str:
        return f"say {self.color(self.seed, 0)}"

    def step(self, response: str) -> Step:
        right = response.split()[:1] == [self.color(self.seed, self.played)]
        self.played += 1
        self.won += right
        return Step(
            observation=f"say {self.color(self.seed, self.played)}",
            reward=float(right),
            terminated=self.played == self.turns,
            valid=response.split()[:1] != ["say"],
            info={"success": self.won == self.turns},
        )


class Broken(Colors):
    """Raises in every first step."""

    def step(self, response: str) -> Step:
        raise OSError("the game server is gone")


class Mute:
    """No words, no demonstrations: what a person writes first."""

    def __init__(self, seed: int):
        self.seed = seed

    def start(self) -> str:
        return "say red"

    def step(self, response: str) -> Step:
        return Step(observation="", terminated=True, info={"success": response == "red"})


def color_policy(
    *, layers: int = 1, hidden: int = 16, seed: int = 0, spread: float = 8.0, context: int = 64
) -> "Policy":
    """A random policy over the words of `Colors`; `spread` scales its output layer, so that it prefers some words."""
    import torch

    from turnwise.models.settings import ModelConfig
    from turnwise.models.tiny import tiny_policy

    model = ModelConfig(hidden_size=hidden, num_layers=layers, num_heads=2, max_context=context)
    policy = tiny_policy(Colors.words(), model, seed=seed)
    with torch.no_grad():
        output_layer(policy).weight.mul_(spread)
    return policy


def output_layer(policy: "Policy") -> "torch.nn.Linear":
    import torch

    layer = policy.model.get_output_embeddings()
    assert isinstance(layer, torch.nn.Linear)
    return layer


def has_gradient(model: "torch.nn.Module") -> bool:
    return any(weight.grad is not None for weight in model.parameters())


def small_config(folder: Path, **sections: Any) -> "Config":
    """A run of `Colors` that takes about a second; sections are merged over it."""
    from turnwise.config import parse_config

    data: dict[str, Any] = {
        "run": {"folder": str(folder), "name": "run", "steps": 2, "threads": 1, "device": "cpu"},
        "environment": {"name": "tests.toys:Colors", "success_reward": 1.0},
        "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_context": 64},
        "warmstart": {"steps": 0},
        "rollout": {"groups": 3, "group_size": 4, "max_new_tokens": 3},
        "evaluate": {"episodes": 8, "final_episodes": 8},
        "update": {"learning_rate": 0.01, "warmup_steps": 0},
        "method": "grpo+aem",
    }
    for name, section in sections.items():
        both = isinstance(section, dict) and isinstance(data.get(name), dict)
        data[name] = {**data[name], **section} if both else section
    return parse_config(data)


class ScriptedEngine:
    """Answers with a function of the conversation's own number and turn; remembers what it was shown."""

    def __init__(self, respond: Callable[[int, int], list[int]]):
        self.respond = respond
        self.calls: list[tuple[int, list[int]]] = []
        self.samplings: list[Sampling] = []
        self.closed: list[list[int] | None] = []
        self._turns: Counter[int] = Counter()

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        number = conversation if sampling.draws is None else sampling.draws
        self.calls.append((number, list(prompt_ids)))
        self.samplings.append(sampling)
        ids = self.respond(number, self._turns[conversation])
        self._turns[conversation] += 1
        await asyncio.sleep(0)
        return Generation(ids, [-0.5] * len(ids), ids[-1] not in sampling.stop_ids)

    async def update_weights(self, version: int = 0) -> None:
        """There are none."""

    def close(self, conversations: Sequence[int] | None = None) -> None:
        self.closed.append(None if conversations is None else list(conversations))
        for conversation in list(self._turns) if conversations is None else conversations:
            self._turns.pop(conversation, None)

    async def aclose(self) -> None:
        self.close()


def trajectory(group: int, *turns: tuple[list[int], list[int]], vocabulary: int = 9, **fields: Any) -> Trajectory:
    """A trajectory of (prompt ids, response ids) turns."""
    made = [Turn("o", "o", prompt, response, [-1.0] * len(response), "r", False) for prompt, response in turns]
    return Trajectory(group, str(group), made, ended="terminated", **fields)


class Levels(Colors):
    """An environment of one turn and tunable difficulty: task `n` is of the kind `levels[n % len(levels)]`.

    "never" and "always" decide the outcome; "red" is won only by that word; the word "pink" breaks the environment. The
    reward is shaped: it depends on the response's length, whatever the outcome.
    """

    def __init__(self, seed: int, *, levels: Sequence[str] = ("never", "red", "always")):
        super().__init__(seed)
        self.level = levels[seed % len(levels)]

    def step(self, response: str) -> Step:
        words = response.split()
        if words[:1] == ["pink"]:
            raise ConnectionError("lost")
        success = words[:1] == ["red"] if self.level == "red" else self.level == "always"
        return Step(
            observation="",
            reward=success + len(words) / 10,
            terminated=True,
            info={"success": success, "level": self.level},
        )
