"""Turn an expert's demonstrations into token sequences with the weights of their imitation."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnwise.base.blocking import blocking
from turnwise.base.errors import ConfigError
from turnwise.base.register import CONVERSATIONS, find
from turnwise.base.streams import Stream
from turnwise.config import Config, ModelConfig, WarmStartConfig
from turnwise.engines.settings import EngineConfig
from turnwise.environments.base import Demonstrated, Task
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import TeachingSuite
from turnwise.models.policy import Policy
from turnwise.rollout.context import make_context
from turnwise.rollout.settings import RolloutConfig

Demonstration = tuple[np.ndarray, np.ndarray]
"""Token ids and loss weights, `[tokens]` each."""


@dataclasses.dataclass(frozen=True)
class Teaching:
    """Configure how demonstrations are made and imitated."""

    settings: WarmStartConfig  # section `[warmstart]` of the recipe
    model: ModelConfig  # section `[model]` of the recipe
    seed: int  # seed of the run
    world: EnvironmentConfig  # section `[environment]` of the recipe
    rollout: RolloutConfig  # section `[rollout]`, for the form of prompts and the longest response
    max_tokens: int | None  # padded tokens per micro-batch; None: as many as suit the device
    engine: EngineConfig  # section `[engine]`, for what the policy plays itself

    @classmethod
    def of(cls, config: Config) -> "Teaching":
        """Take the settings from a configuration."""
        return cls(
            config.warmstart,
            config.model,
            config.run.seed,
            config.environment,
            config.rollout,
            config.update.max_tokens,
            config.engine,
        )


def demonstrations(
    how: Teaching,
    policy: Policy,
    suite: TeachingSuite,
    *,
    on_demonstration: Callable[[int, int], None] | None = None,
) -> list[Demonstration]:
    """Make token sequences with loss weights: 1 on imitated responses, less on observations.

    As in a rollout, there is one sequence per task, or with `rollout.context = "window"` one per response.
    """
    return blocking(_demonstrations(how, policy, suite, on_demonstration or (lambda done, total: None)))


def of_conversations(
    how: Teaching,
    policy: Policy,
    recorded: Sequence[Any],
    *,
    on_demonstration: Callable[[int, int], None] | None = None,
) -> list[Demonstration]:
    """Make token sequences of recorded conversations, in an order that depends on the seed.

    Raises:
        ConfigError: None fits into the policy's context.
        DataError: The gateway could not have recorded one of them from this policy.
    """
    order = np.random.default_rng([how.seed, Stream.WARM_START_TASKS]).permutation(len(recorded))[: how.settings.games]
    encode, result = find(CONVERSATIONS["encoder"])(policy.format), list[Demonstration]()
    for number, conversation in enumerate(recorded[index] for index in order.tolist()):
        pieces = encode(conversation)
        ids = [token for piece, _ in pieces for token in piece]
        weights = [how.settings.observation_weight * (not own) + own for piece, own in pieces for _ in piece]
        if ids and len(ids) <= policy.max_context:
            result.append((np.array(ids), np.array(weights, dtype=np.float32)))
        if on_demonstration:
            on_demonstration(number + 1, len(order))
    if not result:
        raise ConfigError(
            f"none of {len(order)} recorded conversations fits into model.max_context={policy.max_context} tokens"
        )
    return result


async def _demonstrations(
    how: Teaching, policy: Policy, suite: TeachingSuite, on_demonstration: Callable[[int, int], None]
) -> list[Demonstration]:
    settings = how.settings
    environments = InProcessEnvironments(suite.environment)
    chosen = chosen_tasks(how, suite) * settings.rounds
    result: list[Demonstration] = []
    for number, task in enumerate(chosen):
        turns = suite.demonstrate(task, noise=settings.noise, seed=how.seed * 1_000_003 + number)
        on_demonstration(number + 1, len(chosen))
        if turns:
            result += await sequences_of(how, policy, environments, task, turns)
    if not result:
        raise ConfigError(
            f"no demonstration of {len(chosen)} games fits into model.max_context={policy.max_context} tokens"
        )
    return result


def chosen_tasks(how: Teaching, suite: TeachingSuite, number: int = 0) -> list[Task]:
    """Choose `warmstart.games` tasks in an order that depends on the seed, new ones for each number if possible."""
    tasks, games = suite.tasks(how.world.train_split), how.settings.games
    order = np.random.default_rng([how.seed, Stream.WARM_START_TASKS]).permutation(len(tasks))
    return [tasks[index] for index in np.roll(order, -number * games)[:games].tolist()]


async def sequences_of(
    how: Teaching, policy: Policy, environments: Environments, task: Task, turns: Sequence[Demonstrated]
) -> list[Demonstration]:
    """Build the sequences of a demonstration, without the observation after the last response.

    Returns:
        One sequence, or with a window one per response, without those that teach nothing; none if any exceeds the
        policy's context.

    Raises:
        ConfigError: The policy plans, and a turn has no subgoal.
    """
    fmt, settings = policy.format, how.settings
    if fmt.plan and not all(turn.subgoal for turn in turns):
        raise ConfigError(
            "prompt.plan needs demonstrations with a subgoal per turn, which the environment does not give; return "
            "Demonstrated(response, imitate, subgoal) from its demonstrate(), or set warmstart.steps=0"
        )
    context = make_context(fmt, 0, window=how.rollout.remembered, stride=1)
    sequences: list[tuple[list[int], list[float]]] = []
    for number, turn in enumerate(turns):
        step = await environments.step(0, turns[number - 1].response) if number else await environments.start(0, task)
        switch = not number or turn.subgoal != turns[number - 1].subgoal
        prompt = context.observe(step)
        response = fmt.response_ids(turn.response, subgoal=turn.subgoal, switch=switch)
        context.respond(response)
        if context.fresh:
            sequences.append(([], []))
        ids, weights = sequences[-1]
        ids += prompt + response
        weights += [settings.observation_weight] * len(prompt)
        weights += [float(turn.imitate or settings.imitate_noise)] * len(response)
    environments.close(0)
    if any(len(ids) > policy.max_context for ids, _ in sequences):
        return []
    taught = [(ids, weights) for ids, weights in sequences if any(weights[1:])]  # the first token is never predicted
    return [(np.array(ids), np.array(weights, dtype=np.float32)) for ids, weights in taught]
