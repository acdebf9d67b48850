"""Sample turns again that explore nothing new, by the uncertainty of their tokens (T2PO)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pydantic

from turnwise.environments.base import Task
from turnwise.errors import ConfigError
from turnwise.rollout.collectors import Independent, OnTurn, play_starts
from turnwise.rollout.engine import Engine, Generation, Sampling
from turnwise.rollout.environments import Environments
from turnwise.rollout.metrics import RESAMPLED
from turnwise.rollout.models import Models
from turnwise.rollout.settings import RolloutConfig, checked_options
from turnwise.rollout.starts import make_starts
from turnwise.rollout.trajectory import Trajectory
from turnwise.streams import Stream

LEAST = 1e-6
"""Least uncertainty of a token, so that one certain token does not make its turn certain."""


class Options(pydantic.BaseModel, extra="forbid", strict=True):
    """Options of the collector; see `Resampling`."""

    alpha: float = pydantic.Field(ge=0, le=1)
    most_entropy: float = pydantic.Field(gt=0)
    eta: float = pydantic.Field(default=0.3, gt=0)
    tries: int = pydantic.Field(default=2, ge=1)


class Resampling(Independent):
    """Play groups of trajectories, and sample a turn again if it is as uncertain as the turn before.

        sample again if 0 < |Phi_k - Phi_{k-1}| < eta        Phi = geometric mean of M over the response's tokens
        M = alpha * min(1, H / most_entropy) + (1 - alpha) * (1 - p)

    H is the entropy of a token's distribution (nats) and p the probability of the token. A turn is sampled again from
    the same state, before its action is taken, at most `tries` times; the last sample is taken as it is. Rejected
    samples are not learned from, and their tokens are counted.

    The paper has the mean log-probability of the likeliest tokens in place of p, and scales both parts by their ranges.
    How many tokens, over which range, and alpha are unknown, and the release lacks this part; M is our reconstruction.
    The other half of the method, which ends a train of thought, is not here. Its credit is `gigpo(scale=False)`.

    Args:
        environments: Where the trajectories are played.
        settings: The `[rollout]` of a recipe.
        task_name: Names a task in records.
        options: alpha: Weight of the entropy. most_entropy: Entropy from which a token counts as uncertain, in nats.
            eta: Difference from which a turn counts as new; 0.3 in the code. tries: Further samples per turn; 2 in the
            code.

    Raises:
        ConfigError: An option is missing, unknown or impossible.

    Reference: T2PO, arXiv 2605.02178; released code WillDreamer/T2PO.
    """

    def __init__(
        self,
        environments: Environments,
        settings: RolloutConfig,
        task_name: Callable[[Task], str] = str,
        **options: Any,
    ):
        super().__init__(environments, settings, task_name)
        self._options = checked_options("t2po", Options, options)

    def play(
        self,
        models: Models,
        tasks: Sequence[Task],
        *,
        seed: int,
        group_size: int | None = None,
        temperature: float | None = None,
        on_turn: OnTurn = None,
    ) -> list[Trajectory]:
        """Play each task with a group of trajectories; see `Collector.play`. A given group size re-samples nothing."""
        if group_size is not None:
            return super().play(
                models, tasks, seed=seed, group_size=group_size, temperature=temperature, on_turn=on_turn
            )
        starts = make_starts(tasks, self._settings.group_size, self._task_name)
        engine = Choosy(models.policy.sampler, len(starts), self._options)
        played = play_starts(
            models,
            starts,
            self._environments,
            self._settings,
            seed=seed,
            temperature=temperature,
            on_turn=on_turn,
            engine=engine,
        )
        for trajectory, rejected in zip(played, engine.rejected, strict=True):
            trajectory.info[RESAMPLED] = rejected
        return played


class Choosy:
    """An engine that samples a response again if it is as uncertain as the conversation's last one; see `Engine`.

    Args:
        engine: Generates.
        number: Number of trajectories; conversation c belongs to trajectory `c % number`.
        options: Options of the collector.

    Attributes:
        rejected: Number of tokens of each rejected response, per trajectory.
    """

    def __init__(self, engine: Engine, number: int, options: Options):
        self._engine, self._number, self._options = engine, number, options
        self.aclose, self.update_weights, self.close = engine.aclose, engine.update_weights, engine.close
        self._last: dict[int, float] = {}  # uncertainty of each trajectory's last response
        self.rejected: list[list[int]] = [[] for _ in range(number)]

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; see `Engine.generate`."""
        number, options = conversation % self._number, self._options
        made = await self._engine.generate(conversation, prompt_ids, sampling)
        told = uncertainty(made, options)
        for further in range(options.tries):
            if number not in self._last or not 0 < abs(told - self._last[number]) < options.eta:
                break
            self.rejected[number].append(len(made.token_ids))
            self._engine.close([conversation])  # it had the rejected response
            other = dataclasses.replace(sampling, seed=_seed(sampling.seed, further))
            made = await self._engine.generate(conversation, prompt_ids, other)
            told = uncertainty(made, options)
        self._last[number] = told
        return made


def uncertainty(made: Generation, options: Options) -> float:
    """Compute the uncertainty of a response, in [0, 1]; see `Resampling`.

    Raises:
        ConfigError: The engine reports no entropies.
    """
    M_T = (1.0 - options.alpha) * (1.0 - np.exp(made.logprobs))
    if options.alpha > 0.0:
        if made.entropies is None:
            raise ConfigError(
                "rollout.collector='t2po' needs the entropies of sampled tokens, which engine.name='server' does not "
                "report; set engine.name=local, or rollout.collector.alpha=0"
            )
        M_T = M_T + options.alpha * np.minimum(1.0, np.array(made.entropies) / options.most_entropy)
    return float(np.exp(np.log(np.maximum(M_T, LEAST)).mean()))


def _seed(seed: int, further: int) -> int:
    return int(np.random.default_rng([seed, Stream.RESAMPLING, further]).integers(2**62))
