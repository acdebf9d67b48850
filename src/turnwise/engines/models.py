"""Hold the models of a run by name: the policy, and models that it is compared with."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from turnwise.base.blocking import blocking
from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.engines.base import Engine

if TYPE_CHECKING:  # pages and logs are read without torch
    from turnwise.models.critic import Critic
    from turnwise.models.policy import Policy


@dataclasses.dataclass
class NamedModel:
    """A model with what it needs to play and to learn."""

    policy: "Policy"  # weights, tokenizer and format
    engine: Engine | None = None  # samples from the policy; None for a model that only scores
    # Updates the trainable weights; None for a model that does not learn
    optimizer: Any = None  # a torch.optim.Optimizer
    version: int = 0  # training steps behind the weights that the engine has
    # Estimates returns from the hidden states of the policy, for the model named `critic`
    critic: "Critic | None" = None

    @property
    def sampler(self) -> Engine:
        """The engine, for a model that plays."""
        assert self.engine is not None, "this model does not play"
        return self.engine


class Models(Mapping[str, NamedModel]):
    """Models by name: `policy` always exists, `reference` if the run compares with one, `critic` if it has one."""

    def __init__(self, **named: NamedModel):
        self._named = named

    def __getitem__(self, name: str) -> NamedModel:
        if name not in self._named:
            raise ConfigError(f"this run has no model {name!r}.{did_you_mean(name, self._named)}")
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    @property
    def policy(self) -> NamedModel:
        """The model that plays and learns."""
        return self["policy"]

    @property
    def weights(self) -> dict[str, Any]:
        """The torch modules by name."""
        return {name: model.policy.model for name, model in self._named.items()}

    def publish(self, version: int = 0) -> None:
        """Send the weights of all models that play to their engines.

        Args:
            version: Training steps behind these weights; turns sampled from them record it.
        """
        for model in self._named.values():
            if model.optimizer is not None:
                model.optimizer.zero_grad()  # frees the gradients' memory during the next rollout
            if model.engine is not None:
                blocking(model.engine.update_weights(version))
                model.version = version
