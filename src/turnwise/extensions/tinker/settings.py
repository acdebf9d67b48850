"""Define the `[engine]` section of a recipe that trains through a server of the Tinker API."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import pydantic

from turnwise.base.facets import Facet, Part, for_all
from turnwise.engines.base import Engine
from turnwise.engines.settings import EngineConfig


class TinkerEngineConfig(EngineConfig, kind="tinker"):
    """Settings of a server of the Tinker API, which samples, scores and trains; see docs/how-to/tinker.md."""

    url: str = pydantic.Field(default="http://127.0.0.1:8030", pattern=r"^https?://[^/]")
    """Address of the server. Its key is in TINKER_API_KEY."""
    base_model: str | None = None
    """Name of the model on the server. Default: the only one that it offers, or `model.name`."""
    rank: int = pydantic.Field(default=32, ge=1)
    """Rank of the adapters that the server trains, unless it trains all weights."""
    loss: Literal["named", "gradient"] = "named"
    """"named": the server's own loss, `ppo`, `cispo` or `importance_sampling` for update.clip; update.kl is then part
    of the reward. "gradient": any loss of log-probabilities, computed here; the server gets its gradient per token.
    This takes one more pass for every optimiser step of a step after the first."""
    entropy: Literal["sampled"] | None = None
    """Estimate of entropies, which the server does not report. "sampled": -log p of the sampled tokens, unbiased but
    noisy. None refuses whatever reads entropies."""
    sums: Literal["tokens", "means"] = "tokens"
    """How the server adds up losses. "tokens": it sums over tokens, as the API says. "means": it takes the mean over
    the tokens of a sequence, then over sequences, as SkyRL's server on JAX does."""
    max_concurrent: int = pydantic.Field(default=512, ge=1)
    """Concurrent requests to the server; others wait."""
    timeout_s: float = pydantic.Field(default=600.0, gt=0)
    """Time limit for one answer of the server (seconds)."""
    patience_s: float = pydantic.Field(default=600.0, ge=0)
    """How long a failed request is retried (seconds); then the run ends, and can be resumed."""

    named_losses: ClassVar[Mapping[str, str]] = {"ppo": "ppo", "cispo": "cispo", "none": "importance_sampling"}
    """The server's loss for each `update.clip`."""

    def check(self) -> None:
        """Raise a ConfigError if the server does not answer."""
        from turnwise.extensions.tinker.client import Service

        Service(self).offered()

    def make(self, policy: Any, *, rounded: bool = False, apart: bool = False) -> Engine:
        """Make the engine; see `EngineConfig.make`."""
        from turnwise.extensions.tinker.engine import TinkerEngine

        policy.model.connect(self, policy.max_context)
        return TinkerEngine(policy.model, self, max_context=policy.max_context, decode=policy.decode)

    @classmethod
    def remote(cls, saved: Mapping[str, Any] | None = None) -> Any:
        """Make the model that represents the weights on the server; see `EngineConfig.remote`."""
        from turnwise.extensions.tinker.model import TinkerModel

        return TinkerModel(saved)

    def learner(self) -> Any:
        """Return the function that makes a run's learner."""
        from turnwise.extensions.tinker.learner import TinkerLearner

        return TinkerLearner

    def parts(self) -> Iterator[Part]:
        """Return what the server breaks; see `turnwise.base.facets`."""
        breaks = for_all("keeps the weights on a server", Facet.ENGINE, Facet.HERE, Facet.UNFROZEN)
        yield Part("engine.name='tinker'", breaks, mend="set engine.name=local")
        if self.loss == "named":
            breaks = {Facet.LOSS: "takes a loss of the server"}
            yield Part("engine.loss='named'", breaks, mend="set engine.loss=gradient")
        if self.entropy is None:
            breaks = {Facet.ENTROPY: "tells no entropies"}
            yield Part("engine.name='tinker'", breaks, mend="set engine.entropy=sampled, an estimate")
