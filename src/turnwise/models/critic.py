"""Estimate returns from hidden states: a value head on the policy, a separate model, or ridge regression."""

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Float
from turnwise.credit.segments import Segments
from turnwise.models.policy import Policy, load_model
from turnwise.models.settings import (
    CriticConfig,
    HeadCriticConfig,
    LearnedCriticConfig,
    ModelConfig,
    ModelCriticConfig,
    RidgeCriticConfig,
)
from turnwise.models.tiny import tiny_model


class Ridge:
    """Remember moments of hidden states and targets of the last steps, and regress on them.

        minimise  sum_i (w . x_i + b - y_i)^2 + num * penalty * sum_j scale_j w_j^2
        scale_j: mean variance of the features in j's block

    A step is remembered by its second moments, so that memory grows with the square of the hidden size only.

    Args:
        steps: Steps to remember.
        penalty: Penalty per example, relative to the mean variance of a feature.
        blocks: Number of features in each block of features in one unit; default: all are one block.
        prior_groups: If given, the penalty is `prior_groups / groups`, with the number of groups that are remembered.
            Responses of a group share task and outcomes, so that groups, not examples, are what weights are known by.
    """

    def __init__(self, steps: int, penalty: float, blocks: Sequence[int] = (), prior_groups: float | None = None):
        self._moments: deque[np.ndarray] = deque(maxlen=steps)
        self._groups: deque[int] = deque(maxlen=steps)
        self._penalty, self._blocks, self._prior_groups = penalty, blocks, prior_groups

    def fit(
        self, hidden: Float[np.ndarray, "examples size"], target: Float[np.ndarray, " examples"], groups: int = 1
    ) -> tuple[Float[np.ndarray, " size"], float]:
        """Remember the examples of a step's groups, and return weights and bias fitted to all remembered steps."""
        extended = np.column_stack([hidden, target, np.ones(len(target))]).astype(np.float64)
        self._moments.append(extended.T @ extended)
        self._groups.append(groups)
        penalty = self._penalty if self._prior_groups is None else self._prior_groups / sum(self._groups)
        total = np.sum(self._moments, axis=0)
        num, size = total[-1, -1], len(total) - 2
        mean = total[-1, :-1] / num
        covariance = total[:-1, :-1] / num - np.outer(mean, mean)
        blocks = Segments.from_lengths(self._blocks or [size])
        scale = np.maximum(blocks.broadcast(blocks.mean(np.diag(covariance)[:size])), 1e-12)
        penalised = covariance[:size, :size] + penalty * np.diag(scale)
        weight = np.linalg.solve(penalised, covariance[:size, size])
        return weight, float(mean[size] - weight @ mean[:size])

    def state_dict(self) -> dict[str, Any]:
        """Return the moments of the remembered steps, and their numbers of groups."""
        return {"moments": list(self._moments), "groups": list(self._groups)}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Any]) -> None:
        """Restore what `state_dict` returned; folders of before 2026-11-28 have the moments alone."""
        old = {"moments": state, "groups": [1] * len(state)}
        found: Mapping[str, Any] = state if isinstance(state, Mapping) else old
        self._moments.clear()
        self._moments.extend(np.asarray(moments) for moments in found["moments"])
        self._groups.clear()
        self._groups.extend(int(number) for number in found["groups"])


class ValueNetwork(torch.nn.Module):
    """Hold one value head per column, or twins, and the model whose hidden states they read unless it is the policy.

    A single head begins at 0 everywhere. Twins begin at random, since they must differ.
    """

    def __init__(self, trunk: PreTrainedModel | None, columns: Sequence[str], size: int, width: int, twins: bool):
        super().__init__()
        self.trunk = trunk
        self.heads = torch.nn.ModuleDict({column: _head(size, width, at_zero=not twins) for column in columns})
        self.twins = torch.nn.ModuleDict({column: _head(size, width) for column in columns if twins})

    def each(self, column: str, hidden: torch.Tensor) -> torch.Tensor:
        """Estimate `[heads, reads]` values of a column from `[reads, size]` hidden states, in float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            heads = [heads[column] for heads in (self.heads, self.twins) if column in heads]
            return torch.stack([head(hidden.float())[:, 0] for head in heads])

    def forward(self, column: str, hidden: torch.Tensor) -> torch.Tensor:
        """Estimate `[reads]` values of a column from `[reads, size]` hidden states: the least of twins."""
        return self.each(column, hidden).amin(0)


def _head(size: int, width: int, *, at_zero: bool = False) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = [torch.nn.Linear(size, width), torch.nn.Tanh()] if width else []
    last = torch.nn.Linear(width or size, 1)
    if at_zero:
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
    return torch.nn.Sequential(*layers, last)


TARGET_RATE = 0.1
"""`critic.target_rate` of a critic that bootstraps, as in ArCHer, if the recipe has no copy."""


class Critic:
    """Critic of a run, with its optimiser and its copy.

    Attributes:
        settings: Section `[critic]` of the recipe.
        learned: The same, if it learns by gradient.
        columns: Columns that it estimates.
        policy: Model of the policy, which it reads unless it has its own.
        format: The policy's format, for values that are read within a response.
        seed: Seed of the run.
        bootstraps: Whether `value_action` and `value` learn from each other, apart from the policy's passes.
        network: What learns.
        copy: Slow copy of the network. Values are read from it if the critic does not bootstrap; None: no copy.
        optimizer: Updates the network; None for ridge regression.
        ridge: Memory of ridge regression, by column.
    """

    def __init__(self, policy: Policy, settings: CriticConfig, columns: Sequence[str], *, seed: int):
        self.settings, self.columns, self.policy = settings, tuple(columns), policy.model
        self.format, self.seed = policy.format, seed
        self.learned = learned = settings if isinstance(settings, LearnedCriticConfig) else None
        self.bootstraps = bootstraps(settings, columns)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            trunk = _own_model(policy, settings, seed) if isinstance(settings, ModelCriticConfig) else None
            size = (trunk or policy.model).config.get_text_config().hidden_size
            blocks = feature_blocks(settings, size)
            network = ValueNetwork(trunk, self.columns, sum(blocks), learned.width if learned else 0, self.bootstraps)
        self.network, self.ridge = network.to(policy.model.device), {}
        self.copy: ValueNetwork | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        if learned:
            default = TARGET_RATE if self.bootstraps and not learned.target_every else None
            self._target_rate = learned.target_rate or default
            if learned.target_every or self._target_rate:
                self.copy = copy.deepcopy(self.network).requires_grad_(False)
            self.optimizer = torch.optim.AdamW(
                self.network.parameters(), lr=learned.learning_rate, weight_decay=learned.weight_decay
            )
        else:
            self.network.requires_grad_(False)
        if isinstance(settings, RidgeCriticConfig):
            prior = settings.prior_groups
            self.ridge = {column: Ridge(settings.memory, settings.penalty, blocks, prior) for column in self.columns}
        self._steps = 0

    @property
    def own(self) -> PreTrainedModel | None:
        """The critic's own model; None if it reads the policy."""
        return self.network.trunk

    @property
    def model(self) -> PreTrainedModel:
        """The model whose hidden states values are measured on."""
        return self._reading.trunk or self.policy

    @property
    def learns_along(self) -> bool:
        """Whether it learns in the policy's passes too, by gradient."""
        return self.optimizer is not None and not self.bootstraps

    @property
    def slow(self) -> ValueNetwork:
        """The copy, or the network if there is none."""
        return self.network if self.copy is None else self.copy

    @property
    def _reading(self) -> ValueNetwork:
        return self.network if self.bootstraps else self.slow

    def measure(self, column: str, hidden: torch.Tensor) -> torch.Tensor:
        """Estimate `[reads]` values without gradient, from the copy if there is one, unless the critic bootstraps."""
        with torch.no_grad():
            return self._reading(column, hidden)

    def estimate(self, column: str, hidden: torch.Tensor) -> torch.Tensor:
        """Estimate `[reads]` values with gradient, which reaches the policy's layers by `trunk_gradient` only."""
        if isinstance(self.settings, HeadCriticConfig):
            share = self.settings.trunk_gradient
            hidden = hidden.detach() if not share else share * hidden + (1 - share) * hidden.detach()
        return self.network(column, hidden)

    def step(self) -> float:
        """Take an optimiser step, renew the copy when due, and return the norm of the gradient before clipping.

        A gradient that is not finite is not used.
        """
        if self.optimizer is None or self.learned is None:
            return 0.0
        norm = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.learned.max_grad_norm))
        if not math.isfinite(norm):
            return norm
        self.optimizer.step()
        self._steps += 1
        if self.copy is not None:
            every = self.learned.target_every
            rate = self._target_rate or float(self._steps % every == 0)
            with torch.no_grad():
                for old, new in zip(self.copy.parameters(), self.network.parameters(), strict=True):
                    old.lerp_(new, rate)
        return norm

    def fit(self, column: str, hidden: np.ndarray, target: np.ndarray, groups: int) -> None:
        """Remember a step and fit ridge regression to all remembered steps, for values of the next step."""
        weight, bias = self.ridge[column].fit(hidden, target, groups)
        (head,) = self.network.heads[column]  # pyright: ignore[reportGeneralTypeIssues]
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(weight))
            head.bias.fill_(bias)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, copy, optimiser, ridge's memory and the number of optimiser steps."""
        return {
            "network": self.network.state_dict(),
            "copy": None if self.copy is None else self.copy.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "ridge": {column: ridge.state_dict() for column, ridge in self.ridge.items()},
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.network.load_state_dict(as_tensors(state["network"]))
        if self.copy is not None:
            self.copy.load_state_dict(as_tensors(state["copy"]))
        if self.optimizer is not None:
            self.optimizer.load_state_dict(as_tensors(state["optimizer"]))
        for column, ridge in self.ridge.items():
            ridge.load_state_dict(state["ridge"][column])
        self._steps = state["steps"]


def join_beside(hidden: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
    """Join `[reads, size]` hidden states with the values of `beside_states`, m, or m, d, t and b: x, m, m x, d.

    t and b say where the trajectory is, as hidden states do: they are parts of x.
    """
    mean, same_state, where = beside[:, :1], beside[:, 1:2], beside[:, 2:]
    own = torch.cat([hidden, where], dim=1)
    return torch.cat([own, mean, own * mean, same_state], dim=1)


def feature_blocks(settings: CriticConfig, size: int) -> tuple[int, ...]:
    """Return how many features of each unit a critic reads: those of `join_beside`, or the hidden states alone."""
    if not isinstance(settings, RidgeCriticConfig) or not settings.peers:
        return (size,)
    own = (size, 1, 1) if settings.visits else (size,)
    return (*own, 1, *own, *((1,) if settings.visits else ()))


def bootstraps(settings: CriticConfig, columns: Sequence[str]) -> bool:
    """Whether a critic of these columns learns by temporal differences: the method's target of `value_action`."""
    return "value_action" in columns and settings.target == "method"


def _own_model(policy: Policy, settings: ModelCriticConfig, seed: int) -> PreTrainedModel:
    """Make the critic's own model."""
    if settings.name == "policy":
        return _trunk(copy.deepcopy(policy.model).requires_grad_(True))
    if settings.name == "tiny":
        sizes = {name: getattr(settings, name) for name in ("hidden_size", "num_layers", "num_heads")}
        return _trunk(tiny_model(policy.tokenizer, ModelConfig(max_context=policy.max_context, **sizes), seed=seed))
    try:
        model, tokenizer = load_model(settings.name), AutoTokenizer.from_pretrained(settings.name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"critic.name={settings.name!r} cannot be loaded ({' '.join(str(error).split())[:200]}); expected "
            "'policy', 'tiny', the folder of a model, or a name on the hub"
        ) from None
    if tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            f"critic.name={settings.name!r} has another tokenizer than the policy; choose a model of its family"
        )
    return _trunk(model)


def _trunk(model: PreTrainedModel) -> PreTrainedModel:
    """Freeze the output layer, which a critic does not use."""
    output_layer = model.get_output_embeddings()
    if output_layer is not None and not model.config.get_text_config().tie_word_embeddings:
        output_layer.requires_grad_(False)
    return model


def as_tensors(state: Any) -> Any:
    """Replace arrays of a loaded checkpoint by tensors."""
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state)
    if isinstance(state, (list, tuple)):
        return type(state)(map(as_tensors, state))
    return {key: as_tensors(value) for key, value in state.items()} if isinstance(state, Mapping) else state
