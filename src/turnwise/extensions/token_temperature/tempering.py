"""Sample each token at a temperature that follows its entropy, as in HAPO.

    T = temperature * (1 + strength * level)
    level = d / max(d) where d > 0, d / |min(d)| elsewhere, within [-1, 1]        d = log(H) - quantile(log(H))

`H` is the entropy at `temperature`. Quantile, maximum and minimum are over the tokens of the batch played before; the
first batch has no level. The paper takes those of the previous step, and does not say what happens outside them. The
bounds at -1 and 1 are those of the released sampler.

Reference: Heterogeneous Adaptive Policy Optimization, arXiv 2509.16591.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise.engines.base import Engine, Generation, Sampling, Tempering
from turnwise.engines.sampling import MIN_ENTROPY
from turnwise.extensions.token_temperature.settings import TokenTemperatureConfig
from turnwise.rollout.around import Around
from turnwise.rollout.groups import Collector, Group, TaskBatch
from turnwise.rollout.trajectory import Trajectory, distinct_turns
from turnwise.train.extension import Extension


def tempering_of(entropy_T: np.ndarray, settings: TokenTemperatureConfig) -> Tempering | None:
    """Compute the temperatures from the entropies of a batch (nats); None if all are equal."""
    log_T = np.sort(np.log(np.maximum(entropy_T, MIN_ENTROPY)))
    if not len(log_T) or log_T[0] == log_T[-1]:
        return None
    pivot = float(log_T[round(settings.quantile * (len(log_T) - 1))])
    return Tempering(
        settings.strength,
        pivot,
        above=float(log_T[-1]) - pivot,
        below=pivot - float(log_T[0]),
        sizes_only=settings.sign == "release",
    )


class TemperedEngine:
    """Sample from another engine at a temperature per token."""

    def __init__(self, engine: Engine, tempering: Tempering):
        self._engine, self._tempering = engine, tempering
        self.close, self.aclose, self.update_weights = engine.close, engine.aclose, engine.update_weights
        self.max_rows: int | None = getattr(engine, "max_rows", None)

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; see `Engine.generate`."""
        sampling = dataclasses.replace(sampling, tempering=self._tempering)
        return await self._engine.generate(conversation, prompt_ids, sampling)


class Tempered(Around):
    """Play training batches with a collector at a temperature per token, which follows the previous step."""

    def __init__(self, collector: Collector, settings: TokenTemperatureConfig):
        super().__init__(collector)
        self._settings = settings
        self._tempering: Tempering | None = None

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups, whose engines follow the temperatures; see `Collector.plan`."""
        groups = await super().plan(batch)
        if not batch.training or self._tempering is None:
            return groups
        return [dataclasses.replace(each, engine=TemperedEngine(each.engine, self._tempering)) for each in groups]

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Compute the temperatures of the next step; see `Collector.learn`."""
        super().learn(played)
        turns = distinct_turns(each for _, own in played for each in own if each.usable)
        entropies = [turn.behavior_entropies for turn in turns if turn.behavior_entropies]
        self._tempering = tempering_of(np.concatenate(entropies or [[]]), self._settings)

    def state_dict(self) -> dict[str, Any]:
        """Return the temperatures of the next step, and the state of the collector."""
        return {**super().state_dict(), "tempering": self._tempering and dataclasses.asdict(self._tempering)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        super().load_state_dict({name: value for name, value in state.items() if name != "tempering"})
        given = state.get("tempering")
        self._tempering = Tempering(**given) if given else None


class PerToken(Extension):
    """Sample at the temperatures of `rollout.token_temperature`."""

    def collector(self, collector: Collector) -> Collector:
        """Return a collector whose engine follows the temperatures."""
        return Tempered(collector, self.settings)
